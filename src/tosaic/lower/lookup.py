"""Elements of a tensor at given positions along a dimension, and weighted sums of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.graph import Array, DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower import movement
from tosaic.lower.arguments import integers
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Const, Stored, Tensor, inverse, of_value

#: from this many pieces on, a look-up is one operator instead of a slice for each piece
_MOST_PIECES = 16


def _runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Group indices into (first, count, step) with steps of one or zero."""
    runs: list[tuple[int, int, int]] = []
    for index in indices:
        if runs:
            first, count, step = runs[-1]
            ahead = index - (first + (count - 1) * step)
            if ahead in (0, 1) and (count == 1 or ahead == step):
                runs[-1] = (first, count + 1, ahead)
                continue
        runs.append((index, 1, 1))
    return runs


def _repeats(indices: Sequence[int], size: int) -> int:
    """Return how often every index occurs consecutively, if all occur equally often; else 0."""
    times = len(indices) // size
    whole = times * size == len(indices) and all(i == k // times for k, i in enumerate(indices))
    return times if whole else 0


def take(lo: Lowering, x: Tensor, dim: int, indices: Sequence[int]) -> Tensor:
    """Take the elements at constant indices along a dimension."""
    size = x.shape[dim]
    if list(indices) == list(range(size)):
        return x
    if isinstance(x, Const):
        return Const(np.ascontiguousarray(np.take(x.array, list(indices), dim)), x.dtype, x.q)
    if _repeats(indices, size):
        return _repeat_each(lo, x, dim, len(indices) // size)
    runs = _runs(indices)
    if len(runs) > _MOST_PIECES:
        if lo.target.is_npu and x.is_code and x.dtype is DType.I8:
            rows = np.zeros((len(indices), size), np.int8)
            rows[np.arange(len(indices)), list(indices)] = 1
            return linear_combination(lo, x, dim, rows, 1)
        if lo.target.has_gather:
            return gather(lo, x, dim, Const(np.asarray(indices, np.int32), DType.I32))
    parts: list[Tensor] = []
    for first, count, step in runs:
        piece = movement.crop(lo, x, dim, first, count if step else 1)
        parts.append(
            piece if step else movement.tile(lo, piece, tuple(count if i == dim else 1 for i in range(x.rank)))
        )
    return movement.concatenate(lo, parts, dim)


def _repeat_each(lo: Lowering, x: Tensor, dim: int, times: int) -> Tensor:
    """Repeat every element: concatenate copies along the next inner dimension and view them in another shape."""
    x = lo.store(x)
    axis, shape = x.perm[dim], x.value.shape
    rows = lo.emit(lo.reshape(of_value(x.value), (prod(shape[: axis + 1]), prod(shape[axis + 1 :]))))
    wide = tosa.concat(lo.b, [rows] * times, 1)
    value = lo.emit(lo.reshape(of_value(wide), (*shape[:axis], shape[axis] * times, *shape[axis + 1 :])))
    return replace(x, value=value, shape=(*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :]))


def linear_combination(lo: Lowering, x: Tensor, dim: int, rows: Array, divisor: int) -> Tensor:
    """Compute sums along a dimension with int8 weights [new, old], divided and rounded once, with the input's scale."""
    q = lo.codes(x).qparams
    return combine(lo, x, dim, rows, QParams((1.0 / divisor,), (0,), DType.I8, -127, 127), q)


def combine(lo: Lowering, x: Tensor, dim: int, rows: Array, weight_q: QParams, into: QParams | None = None) -> Stored:
    """Compute sums along a dimension with int8 weights [new, old]: quantized `into` some qparams, or an accumulator.

    It is a 1x1 convolution with that dimension as channels.
    """
    x = lo.store(x)
    others = sorted((d for d in range(x.rank) if d != dim), key=lambda d: x.perm[d])
    order = (*others, dim)
    last = lo.permute(x, order)
    image = lo.permute(lo.reshape(last, (1, 1, prod(last.shape[:-1]), last.shape[-1])), (0, 3, 1, 2))
    weight = np.ascontiguousarray(rows.reshape(rows.shape[0], 1, 1, rows.shape[1]))
    out = arith.convolve(lo, image, weight, weight_q, None)
    # Before it is moved: 8 bits are cheaper to move than 32.
    out = out if into is None else replace(lo.quantize(out, into), q=into)
    flat = lo.reshape(lo.permute(out, (0, 2, 3, 1)), (*last.shape[:-1], rows.shape[0]))
    return lo.permute(flat, inverse(order))


def gather(lo: Lowering, x: Tensor, dim: int, indices: Tensor) -> Tensor:
    """Build GATHER along a dimension; the dimensions of the indices replace it."""
    before, size, after = prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])
    values = lo.emit(lo.reshape(x, (before, size, after)))
    out = of_value(tosa.gather(lo.b, values, _rows(lo, indices, before)), x.q)
    return lo.reshape(out, (*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :]))


def _rows(lo: Lowering, indices: Tensor, count: int) -> Value:
    """Return the indices as [count, W], the same in each row."""
    if isinstance(indices, Const):
        return integers(lo, lo.constant(indices.array.reshape(1, -1), DType.I32), (1, indices.size), count)
    return integers(lo, lo.emit(indices), (1, indices.size), count)
