"""Operators without a record become those that torch makes of them, or stay whole on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import tosaic


class Net(torch.nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function = torch.nn.Linear(8, 8), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


WHOLE = {
    "einsum": lambda y: torch.einsum("bij,bkj->bik", y, y),
    "glu": functional.glu,
    "tril": torch.tril,
    "normalize": functional.normalize,
    "unfold": lambda y: functional.unfold(y[None], 2),
    "std": lambda y: y.std(-1),
}


@pytest.mark.parametrize("name", WHOLE)
def test_on_the_npu_in_one_delegate(name: str) -> None:
    model = Net(WHOLE[name]).eval()
    x = torch.linspace(-2, 2, 2 * 6 * 8).sin().reshape(2, 6, 8)
    program = tosaic.compile(model, (x,), "ethos-u55-128")
    assert [r.op for r in program.reasons if not r.border] == []
    assert len(program.delegates) == 1
    (got,), want = program.run(x), model(x).detach().numpy()
    noise = np.square(got - want).mean() / np.square(want).mean()
    assert noise < 1e-3
    assert program.verify().ok


def test_what_reads_at_computed_positions_stays_whole() -> None:
    model = Net(lambda y: functional.grid_sample(y[None], y[None, :, :4, :2])).eval()
    program = tosaic.compile(model, (torch.rand(2, 8, 8),), "ethos-u85-256")
    left = [r.op for r in program.reasons if not r.border and r.op.startswith("aten.")]
    assert left == ["aten.grid_sampler.default"]


def test_the_line_is_kept() -> None:
    program = tosaic.compile(Net(functional.glu).eval(), (torch.rand(4, 8),), "ethos-u55-128")
    lines = {str(origin["where"]) for delegate in program.delegates for origin in delegate.origins}
    assert lines
    assert all("test_decompose.py:" in line for line in lines)
