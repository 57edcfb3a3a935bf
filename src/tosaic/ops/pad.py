"""Padding: with a constant, by reflection, by repeating the border, and around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tosaic.lower import movement
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint
from tosaic.lower.samples import F, Sample, call, f32, i32, torch
from tosaic.lower.tensor import Tensor


def _samples_pad() -> list[Sample]:
    def run(mode: str, *pad: int) -> Callable[[Any], Any]:
        return lambda x: F.pad(x + 1.0, pad, mode=mode)

    return [
        call(lambda x: F.pad(x + 1.0, (1, 2)), f32(2, 5)),
        call(lambda x: F.pad(x + 1.0, (1, 0, 2, 1)), f32(1, 17, 4, 4)),
        call(lambda x: F.pad(x + 1.0, (1, 1), value=0.5), f32(3, 4)),
        call(lambda x: F.pad(x + 1.0, (-1, 2, 0, -1)), f32(3, 4, 4)),
        call(lambda x: F.pad(x + 1.0, (0, 0, 0, 0, 1, 1), mode="constant", value=-1.0), f32(1, 3, 2, 2)),
        call(lambda x: F.pad(x + 1, (1, 2, 0, 1)), i32(3, 4)),
        call(run("reflect", 1, 2), f32(1, 3, 5)),
        call(run("reflect", 2, 1, 3, 0), f32(3, 17, 5, 4)),
        call(run("reflect", 3, 2), f32(2, 64)),
        call(run("replicate", 2, 1, 0, 3), f32(1, 64, 3, 4)),
        call(run("replicate", 3, 3), f32(3, 1, 5, low=-30.0, high=1.0)),
        call(run("circular", 1, 2, 2, 0), f32(1, 3, 4, 4)),
        call(
            lambda x: F.conv2d(F.pad(torch.relu(x), (1, 1, 1, 1), mode="reflect"), torch.ones(2, 3, 3, 3)),
            f32(1, 3, 6, 6),
        ),
    ]


@data_movement(
    "pad",
    "constant_pad_nd.default",
    "pad.default",
    samples=_samples_pad,
)
def pad(lo: Lowering, self: Tensor, pad: Sequence[int], value: float | None = None, mode: str = "constant") -> Tensor:
    if mode == "constant":
        return movement.pad(
            lo, movement.require_movable(lo, self), movement.list_amounts(pad, self.rank), float(value or 0.0)
        )
    return movement.pad_from_itself(lo, self, pad, mode)


def _check_reflection(lo: Lowering, a: Arguments) -> str:
    padding = a["padding"]
    for size, first, last in zip(reversed(a["self"].shape), padding[::2], padding[1::2], strict=False):
        if min(first, last) < 0 and max(first, last) >= size + min(first, last):
            return f"a dimension of {size} is padded by {first} and {last}"
    return ""


@data_movement(
    "reflection_pad",
    "reflection_pad1d.default",
    "reflection_pad2d.default",
    "reflection_pad3d.default",
    constraints=[
        Constraint(
            "a dimension that is reflected at one end is not cropped at the other",
            _check_reflection,
            "pad with non-negative sizes, then crop",
        )
    ],
    samples=lambda: [
        call(lambda x: torch.ops.aten.reflection_pad1d(x + 1.0, [2, 1]), f32(3, 1, 5)),
        call(lambda x: torch.ops.aten.reflection_pad2d(x + 1.0, [1, 2, 0, 3]), f32(1, 64, 5, 4)),
        call(lambda x: torch.ops.aten.reflection_pad2d(x + 1.0, [1, 1, 1, 1]), f32(3, 5, 4)),
        call(lambda x: torch.ops.aten.reflection_pad3d(x + 1.0, [1, 0, 1, 1, 0, 1]), f32(1, 3, 2, 3, 4)),
    ],
)
def reflection_pad(lo: Lowering, self: Tensor, padding: Sequence[int]) -> Tensor:
    return movement.pad_from_itself(lo, self, padding, "reflect")


@data_movement(
    "replication_pad",
    "replication_pad1d.default",
    "replication_pad2d.default",
    "replication_pad3d.default",
    samples=lambda: [
        call(lambda x: torch.ops.aten.replication_pad1d(x + 1.0, [2, 1]), f32(3, 1, 5)),
        call(lambda x: torch.ops.aten.replication_pad2d(x + 1.0, [1, 2, 0, 3]), f32(1, 64, 5, 4)),
        call(lambda x: torch.ops.aten.replication_pad2d(x + 1.0, [-1, 2, 1, 1]), f32(17, 5, 4)),
        call(lambda x: torch.ops.aten.replication_pad3d(x + 1.0, [1, 0, 1, 1, 0, 2]), f32(1, 3, 2, 3, 4)),
    ],
)
def replication_pad(lo: Lowering, self: Tensor, padding: Sequence[int]) -> Tensor:
    return movement.pad_from_itself(lo, self, padding, "replicate")
