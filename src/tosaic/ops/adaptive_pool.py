"""Adaptive pooling of rows, images and volumes to any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.lower import arithmetic as arith
from tosaic.lower import movement, pooling
from tosaic.lower.arguments import pair, triple
from tosaic.lower.lowering import Lowering
from tosaic.lower.pool_positions import list_cells, locate_max
from tosaic.lower.pooling import Cells, PoolWindow, find_cells
from tosaic.lower.registry import Arguments, Constraint, op
from tosaic.lower.samples import F, Input, Sample, call, f32, torch
from tosaic.lower.tensor import Stored, Tensor


def _check_rank(lo: Lowering, a: Arguments) -> str:
    rank = a["self"].rank
    return "" if rank in (3, 4) else f"the tensor has {rank}"


_IMAGES = Constraint(
    "pooling takes an image of 3 or 4 dimensions", _check_rank, "reshape its input to an image of 3 or 4 dimensions"
)


def _samples(name: str, size: int) -> list[Sample]:
    """Return the samples of a pooling of so many dimensions; the first results of those that have several."""

    def run(*sizes: int | None) -> Callable[[Any], Any]:
        return lambda x: getattr(F, name)(x, sizes[-size:])

    def image(lead: tuple[int, ...], *sizes: int, low: float = -2.0, high: float = 2.0) -> Input:
        return f32(*lead, *sizes[-size:], low=low, high=high)

    return [
        call(run(1, 1, 1), image((1, 17), 3, 7, 7)),
        call(run(2, 2, 3), image((3, 3), 4, 8, 9)),
        call(run(2, 3, 4), image((1, 3), 3, 7, 9)),
        call(run(2, 3, 3), image((1, 4), 1, 1, 1)),
        call(run(3, 3, 2), image((1, 3), 1, 1, 4)),
        call(run(2, 5, 6), image((64,), 2, 5, 6)),
        call(run(2, 2, 3), image((1, 3), 4, 4, 5, low=-30.0, high=0.1)),
    ]


@op(
    "adaptive_avg_pool2d",
    "adaptive_avg_pool2d.default",
    "_adaptive_avg_pool2d.default",
    computes_in_float32=True,
    constraints=[_IMAGES],
    samples=lambda: [
        call(lambda x: F.adaptive_avg_pool2d(x, 1), f32(1, 17, 7, 7)),
        call(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), f32(3, 3, 8, 9)),
        call(lambda x: F.adaptive_avg_pool2d(x, 3), f32(1, 3, 10, 10)),
        call(lambda x: F.adaptive_avg_pool2d(x, (3, 4)), f32(1, 3, 7, 9)),
        call(lambda x: F.adaptive_avg_pool2d(x, (None, 2)), f32(1, 3, 4, 6)),
        call(lambda x: F.adaptive_avg_pool2d(x, (5, 6)), f32(1, 3, 5, 6)),
        call(lambda x: F.adaptive_avg_pool2d(x, 1), f32(64, 6, 6)),
        call(lambda x: F.adaptive_avg_pool2d(x, 3), f32(1, 4, 1, 1)),
        call(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), f32(1, 3, 1, 4)),
    ],
)
def adaptive_avg_pool2d(lo: Lowering, self: Tensor, output_size: Sequence[int]) -> Tensor:
    x = self if self.q is None else lo.require_quantized(self)
    return pooling.apply_to_images(lo, x, lambda image: _average_image(lo, image, pair(output_size)))


@op("adaptive_avg_pool1d", computes_in_float32=True, samples=lambda: _samples("adaptive_avg_pool1d", 1))
def adaptive_avg_pool1d(lo: Lowering, self: Tensor, output_size: Sequence[int]) -> Tensor:
    x = self if self.q is None else lo.require_quantized(self)
    return pooling.apply_to_rows(lo, x, lambda image: _average_image(lo, image, (1, int(output_size[0]))))


@op(
    "adaptive_avg_pool3d",
    "adaptive_avg_pool3d.default",
    "_adaptive_avg_pool3d.default",
    computes_in_float32=True,
    # Torch takes any rank for an average of everything.
    samples=lambda: [
        *_samples("adaptive_avg_pool3d", 3),
        call(lambda x: F.adaptive_avg_pool3d(x, 1), f32(2, 3, 3, 3, 2, 3)),
        call(lambda x: F.adaptive_avg_pool3d(x, 1), f32(3, 2, 5)),
    ],
)
def adaptive_avg_pool3d(lo: Lowering, self: Tensor, output_size: Sequence[int]) -> Tensor:
    x = self if self.q is None else lo.require_quantized(self)
    lead = (1, 1, *x.shape[:-3])
    full = lo.reshape(x, (prod(lead[:-1]), lead[-1], *x.shape[-3:]))
    grid, times = _find_grid(full, triple(output_size))
    out = _repeat(lo, _average_cells(lo, full, grid), times)
    return lo.reshape(out, (*x.shape[:-3], *out.shape[2:]))


def _find_grid(x: Tensor, counts: Sequence[int]) -> tuple[list[Cells], list[int]]:
    """Return the windows along each axis, and how often each result is repeated: one for windows that are the same."""
    grid = [pooling.find_cells(size, count) for size, count in zip(x.shape[2:], counts, strict=True)]
    same = [len(set(cells)) == 1 for cells in grid]
    cut = [cells[:1] if one else cells for cells, one in zip(grid, same, strict=True)]
    return cut, [len(cells) if one else 1 for cells, one in zip(grid, same, strict=True)]


def _repeat(lo: Lowering, x: Tensor, times: Sequence[int]) -> Tensor:
    return x if max(times) == 1 else movement.tile(lo, pooling.quantize_sums(lo, x), (1, 1, *times))


def _average_image(lo: Lowering, x: Tensor, counts: Sequence[int]) -> Tensor:
    grid, times = _find_grid(x, counts)
    steps = [pooling.find_progression(cells) for cells in grid]
    regular = [step for step in steps if step is not None]
    if len(regular) == len(grid):
        kernel, stride = zip(*regular, strict=True)
        out = pooling.sum_windows(lo, x, PoolWindow(x.shape, kernel, stride, 0, False), prod(kernel))
    else:
        out = _average_cells(lo, x, grid)
    return _repeat(lo, out, times)


def _average_cells(lo: Lowering, x: Tensor, grid: Sequence[Cells]) -> Tensor:
    """Compute one mean per cell; quantized before they are concatenated, so that unequal cells share a scale."""
    dims = range(2, x.rank)
    if all(len(cells) == 1 for cells in grid):
        return arith.sum_over(lo, x, dims, prod(x.shape[2:]))
    last = (0, x.rank - 1, *range(1, x.rank - 1))
    value, q = lo.to_layout(x, last), None if x.q is None else lo.out_q("pooling")

    def collect(*bounds: tuple[int, int]) -> Tensor:
        axis = len(bounds)
        if axis < len(grid):
            return movement.concatenate(lo, [collect(*bounds, cell) for cell in grid[axis]], 2 + axis)
        start, size = [a for a, _ in bounds], [b - a for a, b in bounds]
        piece = tosa.slice(lo.b, value, (0, *start, 0), (x.shape[0], *size, x.shape[1]))
        mean = arith.sum_over(lo, Stored((*x.shape[:2], *size), piece, last, x.q), dims, prod(size))
        return mean if q is None else movement.requantize(lo, mean, q)

    return collect()


def _find_maxima(lo: Lowering, x: Tensor, counts: Sequence[int]) -> Tensor:
    """Find the maximum of each cell of an image, one axis after the other."""
    grid, times = _find_grid(x, counts)
    steps = [pooling.find_progression(cells) for cells in grid]
    kernel = [1 if step is None else step[0] for step in steps]
    stride = [1 if step is None else step[1] for step in steps]
    if kernel != [1, 1]:
        x = pooling.pool_max(lo, x, kernel, stride, 0, 1, False)
    for axis, (cells, step) in enumerate(zip(grid, steps, strict=True)):
        if step is None:
            sizes = [(b - a, 1) if axis == 0 else (1, b - a) for a, b in cells]
            pieces = [movement.crop(lo, x, 2 + axis, a, b - a) for a, b in cells]
            found = [
                pooling.pool_max(lo, piece, size, 1, 0, 1, False) for piece, size in zip(pieces, sizes, strict=True)
            ]
            x = movement.concatenate(lo, found, 2 + axis)
    return movement.tile(lo, x, (1, 1, *times))


def _locate(lo: Lowering, x: Tensor, counts: Sequence[int]) -> Tensor | Unsupported:
    sizes = x.shape[x.rank - len(counts) :]
    axes = [list_cells(find_cells(size, count)) for size, count in zip(sizes, counts, strict=True)]
    return locate_max(lo, x, axes)


def _samples_max(name: str, size: int) -> list[Sample]:
    """Return the samples of the maxima alone, and with their positions as the targets hold them."""

    def both(*sizes: int | None) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            values, indices = getattr(F, name)(x, sizes[-size:], return_indices=True)
            return values, indices.to(torch.int32)

        return run

    return [
        *_samples(name, size),
        call(both(2, 2, 3), f32(3, 3, *(4, 6, 6)[-size:])),
        call(both(2, 3, 4), f32(1, 17, *(3, 7, 9)[-size:])),
        call(both(3, 1, 2), f32(64, *(2, 5, 1)[-size:])),
    ]


@op(
    "adaptive_max_pool2d",
    quant="share",
    computes_in_float32=True,
    fits_int32=True,
    samples=lambda: _samples_max("adaptive_max_pool2d", 2),
)
def adaptive_max_pool2d(lo: Lowering, self: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor | Unsupported]:
    x = self if self.q is None else lo.require_quantized(self)
    counts = pair(output_size)
    values = pooling.apply_to_images(lo, x, lambda image: _find_maxima(lo, image, counts))
    return values, _locate(lo, self, counts)


@op(
    "adaptive_max_pool1d",
    quant="share",
    computes_in_float32=True,
    fits_int32=True,
    samples=lambda: _samples_max("adaptive_max_pool1d", 1),
)
def adaptive_max_pool1d(lo: Lowering, self: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor | Unsupported]:
    x = self if self.q is None else lo.require_quantized(self)
    counts = (int(output_size[0]),)
    values = pooling.apply_to_rows(lo, x, lambda image: _find_maxima(lo, image, (1, *counts)))
    return values, _locate(lo, self, counts)


@op(
    "adaptive_max_pool3d",
    quant="share",
    computes_in_float32=True,
    fits_int32=True,
    samples=lambda: _samples_max("adaptive_max_pool3d", 3),
)
def adaptive_max_pool3d(lo: Lowering, self: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor | Unsupported]:
    x = self if self.q is None else lo.require_quantized(self)
    d, h, w = triple(output_size)
    values = pooling.apply_to_volumes(
        lo,
        x,
        lambda image: _find_maxima(lo, image, (h, w)),
        lambda image: _find_maxima(lo, image, (image.shape[2], d)),
    )
    return values, _locate(lo, self, (d, h, w))
