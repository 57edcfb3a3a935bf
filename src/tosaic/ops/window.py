"""Parts of a tensor that may overlap: unfold, im2col and its inverse, as_strided, diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tosaic.lower import lookup, movement
from tosaic.lower.arguments import pair
from tosaic.lower.aten import Aten, T
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, composite, with_copy
from tosaic.lower.samples import F, call, f32, i32
from tosaic.lower.tensor import Tensor


@data_movement(
    "unfold",
    *with_copy("unfold.default"),
    samples=lambda: [
        call(lambda x: (x + 1.0).unfold(1, 3, 2), f32(3, 9)),
        call(lambda x: (x + 1.0).unfold(-1, 4, 1) * 2.0, f32(1, 17, 9)),
        call(lambda x: (x + 1.0).unfold(0, 2, 3), f32(11)),
        call(lambda x: (x + 1.0).unfold(2, 2, 2), f32(1, 3, 64, 2)),
        call(lambda x: (x + 1).unfold(0, 3, 1), i32(5, 2)),
    ],
)
def unfold(lo: Lowering, self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if self.rank == 0:
        return lo.reshape(self, (size,))
    x, d = movement.require_movable(lo, self), dimension % self.rank
    count = (x.shape[d] - size) // step + 1
    if step == size:
        whole = movement.crop(lo, x, d, 0, count * size)
        split = lo.reshape(whole, (*x.shape[:d], count, size, *x.shape[d + 1 :]))
        return lo.permute(split, [*(i for i in range(split.rank) if i != d + 1), d + 1])
    if count <= size:
        # Each window is a slice.
        parts = [movement.crop(lo, x, d, i * step, size) for i in range(count)]
        joined = movement.concatenate(lo, [lo.reshape(p, (*p.shape[:d], 1, *p.shape[d:])) for p in parts], d)
        return lo.permute(joined, [*(i for i in range(joined.rank) if i != d + 1), d + 1])
    return movement.concatenate(
        lo, [lo.reshape(p, (*p.shape, 1)) for p in (_take_steps(lo, x, d, i, count, step) for i in range(size))], -1
    )


def _take_steps(lo: Lowering, x: Tensor, dim: int, start: int, count: int, step: int) -> Tensor:
    """Take `count` elements along a dimension, `step` apart."""
    return movement.subsample(lo, movement.crop(lo, x, dim, start, (count - 1) * step + 1), dim, step)


def _count_windows(
    sizes: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> tuple[int, ...]:
    """Count the positions of a kernel along both dimensions of an image."""
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    return tuple((n + 2 * p - r) // s + 1 for n, p, r, s in zip(sizes, padding, reach, stride, strict=True))


@data_movement(
    "im2col",
    samples=lambda: [
        call(lambda x: F.unfold(x + 1.0, 3, padding=1), f32(1, 3, 6, 6)),
        call(lambda x: F.unfold(x + 1.0, (2, 3), dilation=2, padding=(1, 0), stride=(2, 1)), f32(3, 1, 7, 8)),
        call(lambda x: F.unfold(x + 1.0, 2, stride=2), f32(17, 4, 6)),
    ],
)
def im2col(
    lo: Lowering,
    self: Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    kernel, apart, pad, step = map(pair, (kernel_size, dilation, padding, stride))
    x = movement.require_movable(lo, self)
    (c, h, w), batch = x.shape[-3:], x.shape[:-3]
    count = _count_windows((h, w), kernel, apart, pad, step)
    x = lo.reshape(x, (*(batch or (1,)), c, h, w))
    x = movement.pad(lo, x, [(0, 0), (0, 0), *((p, p) for p in pad)], 0.0)
    parts: list[Tensor] = []
    for i, j in np.ndindex(*kernel):
        rows = _take_steps(lo, x, 2, i * apart[0], count[0], step[0])
        part = _take_steps(lo, rows, 3, j * apart[1], count[1], step[1])
        parts.append(lo.reshape(part, (*part.shape[:2], 1, prod(count))))
    out = movement.concatenate(lo, parts, 2)
    return lo.reshape(out, (*batch, c * prod(kernel), prod(count)))


@composite(
    "col2im",
    samples=lambda: [
        call(lambda x: F.fold(x + 1.0, (6, 6), 3, padding=1), f32(1, 27, 36)),
        call(lambda x: F.fold(x + 1.0, (6, 4), 2, stride=2), f32(3, 12, 6)),
        call(lambda x: F.fold(x + 1.0, (7, 8), (2, 3), dilation=(2, 1), padding=(1, 0), stride=(2, 1)), f32(6, 24)),
    ],
)
def col2im(
    aten: Aten[T],
    self: T,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> T:
    """Write it as a transposed convolution that copies each channel to one pixel of its windows."""
    size, kernel, apart, pad, step = map(pair, (output_size, kernel_size, dilation, padding, stride))
    *batch, features, _ = aten.shape(self)
    channels = features // prod(kernel)
    count = _count_windows(size, kernel, apart, pad, step)
    image = aten("reshape.default", self, [*(batch or [1]), features, *count])
    ones = np.tile(np.eye(prod(kernel), dtype=np.float32), (channels, 1)).reshape(features, 1, *kernel)
    reach = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in zip(count, step, pad, apart, kernel, strict=True)
    ]
    rest = [n - r for n, r in zip(size, reach, strict=True)]
    out = aten("conv_transpose2d.input", image, aten.constant(ones), None, step, pad, rest, channels, apart)
    return aten("reshape.default", out, [*batch, channels, *size])


def _check_order(lo: Lowering, a: Arguments) -> str:
    return "" if lo.memory_order is not None else "it is a part of one"


@data_movement(
    "as_strided",
    *with_copy("as_strided.default"),
    constraints=[
        Constraint(
            "a tensor that is read by strides is all that is in its memory",
            _check_order,
            "call .clone() before as_strided",
        )
    ],
    samples=lambda: [
        call(lambda x: (x + 1.0).as_strided((2, 3), (4, 1)), f32(2, 4)),
        call(lambda x: (x + 1.0).as_strided((3, 4), (2, 1), 1) * 2.0, f32(3, 17)),
        call(lambda x: (x + 1.0).as_strided((4, 3), (1, 4)), f32(3, 4)),
        call(lambda x: (x + 1.0).as_strided((9, 2, 4), (7, 3, 0), 2), f32(1, 64)),
        call(lambda x: (x + 1).as_strided((2, 2), (2, 1)), i32(6)),
    ],
)
def as_strided(
    lo: Lowering, self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    positions = np.full(tuple(size), storage_offset or 0, np.int64)
    for axis, step in enumerate(stride):
        positions += np.arange(size[axis]).reshape(-1, *([1] * (len(size) - axis - 1))) * step
    assert lo.memory_order is not None, "_check_order refuses it"
    return lookup.take_flat(lo, lo.permute(movement.require_movable(lo, self), lo.memory_order), positions)


@data_movement(
    "diagonal",
    *with_copy("diagonal.default"),
    samples=lambda: [
        call(lambda x: (x + 1.0).diagonal(), f32(4, 4)),
        call(lambda x: (x + 1.0).diagonal(1, -2, -1) * 2.0, f32(3, 4, 17)),
        call(lambda x: (x + 1.0).diagonal(offset=-2, dim1=2, dim2=0), f32(3, 2, 64)),
        call(lambda x: (x + 1).diagonal(), i32(3, 4)),
    ],
)
def diagonal(lo: Lowering, self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = dim1 % self.rank, dim2 % self.rank
    x = movement.require_movable(lo, self)
    x = lo.permute(x, [*(i for i in range(x.rank) if i not in (a, b)), a, b])
    rows, columns = x.shape[-2:]
    count = min(rows + min(offset, 0), columns - max(offset, 0))
    # Elements of a diagonal are one row and one column apart.
    start = offset if offset >= 0 else -offset * columns
    line = lo.reshape(x, (*x.shape[:-2], rows * columns))
    return _take_steps(lo, line, line.rank - 1, start, count, columns + 1)
