"""Constants that a delegate reads and others read too: the caller, the CPU, another delegate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support.apis import Call, compile_both

RANDOM = torch.Generator().manual_seed(6)
X = torch.randn(1, 3, 6, 6, generator=RANDOM)
W = torch.randn(4, 3, 2, 2, generator=RANDOM)


def again(x: torch.Tensor) -> torch.Tensor:
    """Leave the delegate and come back."""
    return x.double().float()[:, :3]


FUNCTIONS: dict[str, Any] = {
    "returned": lambda w, x: (F.conv2d(x, w), w),
    "returned-twice": lambda w, x: (F.conv2d(x, w), w, w),
    "joined": lambda w, x: (torch.cat([x[:, :, :2, :2] * 2, w]) * 3, F.conv2d(x, w)),
    "joined-and-returned": lambda w, x: (torch.cat([x[:, :, :2, :2] * 2, w]) * 3, w),
    "everywhere": lambda w, x: (F.conv2d(again(F.conv2d(x, w)), w), w.double(), w),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_constant_with_readers_outside_its_delegate(name: str) -> None:
    weight = nn.Parameter(W.clone(), requires_grad=False)

    def function(layer: Any, x: torch.Tensor) -> Any:
        return FUNCTIONS[name](layer.shared, x)

    model = Call(function)
    model.layer.shared = weight
    program, _ = compile_both(function, (X,), "TOSA-1.0+FP", model.eval())
    assert program.delegates
