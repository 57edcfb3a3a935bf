"""Batch norms in train mode, which use the statistics of their input and update the running ones."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

import tosaic


class Trained(torch.nn.Module):
    """A batch norm in train mode, alone or after a layer into which it must not be folded."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("mean", torch.full((3,), 2.0))
        self.register_buffer("var", torch.full((3,), 4.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = functional.batch_norm(self.layer(x), self.mean, self.var, training=True, momentum=0.5)
        return out.relu(), self.mean + self.var


@pytest.mark.parametrize("target", ["ethos-u55-128", "TOSA-1.0+FP"])
@pytest.mark.parametrize("layer", [torch.nn.Conv2d(3, 3, 3), torch.nn.Tanh()], ids=["conv", "tanh"])
def test_statistics_of_the_input_are_used_and_kept(layer: torch.nn.Module, target: str) -> None:
    torch.manual_seed(0)
    model = Trained(copy.deepcopy(layer)).eval()
    x = (2.0 * torch.randn(2, 3, 8, 8),)
    with torch.no_grad():
        wanted = copy.deepcopy(model)(*x)
    quantized = not target.endswith("FP")
    program = tosaic.compile(model, x, target, quantized=quantized, calibration=[x] if quantized else None)
    assert [reason for reason in program.reasons if not reason.is_io] == []
    allowed = 0.05 if quantized else 1e-5
    for got, want in zip(program.run(*x), wanted, strict=True):
        torch.testing.assert_close(torch.as_tensor(got), want, rtol=0.0, atol=allowed * float(want.abs().max()))
