"""Operators whose every operand is a parameter: folded, lowered or left on the CPU, but never an internal error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import tosaic
from support import samples
from tosaic.ops import registry

FP, U85 = "TOSA-1.0+FP", "ethos-u85-256"
CASES = [(op, i) for op, record in registry().records.items() for i in range(len(record.samples()))]
#: What stays on the CPU here and has another result there, or none: torch's kernel keeps a dimension whose size does
#: not change, and the decomposition that exir takes for it scales it; no runtime has a kernel for singular values.
NOT_COMPARED = {("upsample_bilinear2d", 16), ("upsample_linear1d", 3), ("matrix_norm", 2)}
FIRST = [case for case in CASES if case[1] == 0]


class OfParameters(torch.nn.Module):
    """A sample's function of buffers, and one sum with an input."""

    def __init__(self, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        super().__init__()
        self.model, self.count = model, len(inputs)
        for i, tensor in enumerate(inputs):
            self.register_buffer(f"b{i}", tensor)

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(*(getattr(self, f"b{i}") for i in range(self.count))), x + 1.0


def check(op: str, index: int, target: str) -> None:
    model, inputs, _ = samples.exported(op, index)
    x = torch.linspace(-1.0, 1.0, 8)
    whole = OfParameters(model, inputs).eval()
    program = tosaic.compile(whole, (x,), target, calibration=[(x,)])
    if target == FP and (op, index) not in NOT_COMPARED:
        with torch.no_grad():
            want = tree_leaves(whole(x))
        for got, expected in zip(program.run(x), want, strict=True):
            scale = max(1.0, float(expected.double().abs().max())) if expected.numel() else 1.0
            np.testing.assert_allclose(got, expected.detach().numpy(), rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize(("op", "index"), FIRST)
def test_first_sample(op: str, index: int) -> None:
    check(op, index, FP)


def test_every_other_element_of_a_parameter() -> None:
    x = torch.linspace(-1.0, 1.0, 8)
    whole = OfParameters(samples.Call(lambda p: p[:, ::2]), (torch.arange(12.0).reshape(2, 6),)).eval()
    for target in (FP, U85):
        program = tosaic.compile(whole, (x,), target, calibration=[(x,)])
        np.testing.assert_allclose(program.run(x)[0], whole(x)[0].numpy(), atol=0.05 if target == U85 else 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "index"), CASES)
@pytest.mark.parametrize("target", [FP, U85])
def test_every_sample(op: str, index: int, target: str) -> None:
    check(op, index, target)
