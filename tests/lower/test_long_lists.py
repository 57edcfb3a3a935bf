"""More pieces than a list of tensors may have in TOSA are concatenated in several steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tosaic
from support import samples


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


CASES: dict[str, tuple[Any, torch.Tensor]] = {
    "interpolate": (lambda x: F.interpolate(x, 300, mode="linear"), rand(3, 2, 1)),
    "nearest": (lambda x: F.interpolate(x + 1.0, scale_factor=300), rand(1, 3, 2)),
    "pool": (lambda x: F.avg_pool2d(x, 2), rand(300, 2, 4, 4)),
    "flip": (lambda x: x.argmax(-1).to(torch.int32).flip(0), rand(300, 5)),
    "groups": (nn.Conv2d(600, 600, 1, groups=300), rand(1, 600, 2, 2)),
}


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("name", CASES)
def test_more_pieces_than_a_list_holds(name: str, target: str) -> None:
    function, given = CASES[name]
    program = tosaic.compile(samples.Call(function).eval(), (given,), target, calibration=[(given,)])
    assert len(program.delegates) == 1
    assert all(reason.is_io for reason in program.reasons)
    assert program.verify(rounds=1).ok
