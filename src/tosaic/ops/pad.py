"""Padding: with a constant, by reflection, by repeating the border, and around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tosaic.core.errors import Unsupported
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import op
from tosaic.lower.samples import F, Sample, call, f32, i32, torch
from tosaic.lower.tensor import Tensor
from tosaic.ops.shape import cut, joined, movable, padded, tiled
from tosaic.ops.shuffle import mirrored

#: what stands before or after a tensor: (tensor, dimension, count, whether it is the front)
Side = Callable[[Lowering, Tensor, int, int, bool], Tensor]


def _reflected(lo: Lowering, x: Tensor, dim: int, count: int, front: bool) -> Tensor:
    return mirrored(lo, cut(lo, x, dim, 1 if front else x.shape[dim] - 1 - count, count), dim)


def _repeated(lo: Lowering, x: Tensor, dim: int, count: int, front: bool) -> Tensor:
    edge = cut(lo, x, dim, 0 if front else x.shape[dim] - 1, 1)
    return tiled(lo, edge, tuple(count if i == dim else 1 for i in range(x.rank)))


def _wrapped(lo: Lowering, x: Tensor, dim: int, count: int, front: bool) -> Tensor:
    return cut(lo, x, dim, x.shape[dim] - count if front else 0, count)


_SIDES: dict[str, Side] = {"reflect": _reflected, "replicate": _repeated, "circular": _wrapped}


def _amounts(pad: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """(before, after) for each dimension; torch lists them from the last dimension on."""
    amounts = [(0, 0)] * rank
    for i in range(len(pad) // 2):
        amounts[rank - 1 - i] = (int(pad[2 * i]), int(pad[2 * i + 1]))
    return amounts


def surrounded(lo: Lowering, x: Tensor, pad: Sequence[int], mode: str) -> Tensor:
    """Padding that is made of the tensor itself, one dimension after the other."""
    amounts, x = _amounts(pad, x.rank), movable(lo, x)
    x = padded(lo, x, [(min(a, 0), min(b, 0)) for a, b in amounts], 0.0)
    for dim, (before, after) in enumerate(amounts):
        front = [_SIDES[mode](lo, x, dim, before, True)] if before > 0 else []
        back = [_SIDES[mode](lo, x, dim, after, False)] if after > 0 else []
        if front or back:
            x = joined(lo, [*front, x, *back], dim)
    return x


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


@op("pad", "aten.constant_pad_nd.default", "aten.pad.default", quant="share", moves=True, samples=_samples_pad)
def pad(lo: Lowering, self: Tensor, pad: Sequence[int], value: float | None = None, mode: str = "constant") -> Tensor:
    if mode == "constant":
        return padded(lo, movable(lo, self), _amounts(pad, self.rank), float(value or 0.0))
    if mode not in _SIDES:
        raise Unsupported(f"padding with mode `{mode}` is not available", f"use one of {', '.join(_SIDES)}")
    return surrounded(lo, self, pad, mode)


@op(
    "reflection_pad",
    "aten.reflection_pad1d.default",
    "aten.reflection_pad2d.default",
    "aten.reflection_pad3d.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: torch.ops.aten.reflection_pad1d(x + 1.0, [2, 1]), f32(3, 1, 5)),
        call(lambda x: torch.ops.aten.reflection_pad2d(x + 1.0, [1, 2, 0, 3]), f32(1, 64, 5, 4)),
        call(lambda x: torch.ops.aten.reflection_pad2d(x + 1.0, [1, 1, 1, 1]), f32(3, 5, 4)),
        call(lambda x: torch.ops.aten.reflection_pad3d(x + 1.0, [1, 0, 1, 1, 0, 1]), f32(1, 3, 2, 3, 4)),
    ],
)
def reflection_pad(lo: Lowering, self: Tensor, padding: Sequence[int]) -> Tensor:
    return surrounded(lo, self, padding, "reflect")


@op(
    "replication_pad",
    "aten.replication_pad1d.default",
    "aten.replication_pad2d.default",
    "aten.replication_pad3d.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: torch.ops.aten.replication_pad1d(x + 1.0, [2, 1]), f32(3, 1, 5)),
        call(lambda x: torch.ops.aten.replication_pad2d(x + 1.0, [1, 2, 0, 3]), f32(1, 64, 5, 4)),
        call(lambda x: torch.ops.aten.replication_pad2d(x + 1.0, [-1, 2, 1, 1]), f32(17, 5, 4)),
        call(lambda x: torch.ops.aten.replication_pad3d(x + 1.0, [1, 0, 1, 1, 0, 2]), f32(1, 3, 2, 3, 4)),
    ],
)
def replication_pad(lo: Lowering, self: Tensor, padding: Sequence[int]) -> Tensor:
    return surrounded(lo, self, padding, "replicate")
