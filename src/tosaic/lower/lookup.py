"""Elements of a tensor at given positions along a dimension: read, written, and weighted sums of them."""

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
from tosaic.lower.arguments import integers, make_movable
from tosaic.lower.lowering import Lowering, concat_values
from tosaic.lower.tensor import Const, Stored, Tensor, inverse, of_value, with_value

#: from this many pieces on, a look-up is one operator instead of a slice for each piece
_MOST_PIECES = 16
#: up to this many weights such a look-up is a convolution
_MOST_WEIGHTS = 1 << 20


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
        if lo.target.is_npu and x.is_plain_quantized and x.dtype is DType.I8 and len(indices) * size <= _MOST_WEIGHTS:
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
    wide = concat_values(lo.b, [rows] * times, 1)
    value = lo.emit(lo.reshape(of_value(wide), (*shape[:axis], shape[axis] * times, *shape[axis + 1 :])))
    return replace(x, value=value, shape=(*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :]))


def linear_combination(lo: Lowering, x: Tensor, dim: int, rows: Array, divisor: int) -> Tensor:
    """Compute sums along a dimension with int8 weights [new, old], divided and rounded once, with the input's scale."""
    q = lo.require_quantized(x).qparams
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


def take_flat(lo: Lowering, x: Tensor, positions: Array) -> Tensor:
    """Take the elements at constant positions, counted in the order of the dimensions; the result has their shape."""
    line = take(lo, lo.reshape(x, (x.size,)), 0, [int(i) for i in positions.reshape(-1)])
    return lo.reshape(line, positions.shape)


def put(lo: Lowering, x: Tensor, dim: int, indices: Sequence[int], source: Tensor) -> Tensor:
    """Replace the elements at constant indices along a dimension by those of another tensor."""
    size = x.shape[dim]
    wanted = list(range(size))
    for number, index in enumerate(indices):
        wanted[index] = size + number
    runs = _runs(wanted)
    if len(runs) > _MOST_PIECES:
        return take(lo, movement.concatenate(lo, [x, source], dim), dim, wanted)
    parts = [
        movement.crop(lo, *((x, dim, first) if first < size else (source, dim, first - size)), count)
        for first, count, _ in runs
    ]
    return movement.concatenate(lo, parts, dim)


def gather(lo: Lowering, x: Tensor, dim: int, indices: Tensor) -> Tensor:
    """Build GATHER along a dimension; the dimensions of the indices replace it."""
    before, size, after = prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])
    out = gather_rows(lo, lo.reshape(x, (before, size, after)), _rows(lo, indices, before))
    return lo.reshape(out, (*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :]))


def gather_rows(lo: Lowering, x: Tensor, indices: Value) -> Tensor:
    """Build GATHER of rows: x [N,K,C] and indices [N,W] give [N,W,C]."""
    return _from_numbers(lo, of_value(tosa.gather(lo.b, _to_numbers(lo, x), indices), x.q), x.dtype)


def scatter(lo: Lowering, x: Tensor, dim: int, indices: Tensor, source: Tensor) -> Tensor:
    """Build SCATTER along a dimension; the dimensions of the indices replace it in the source."""
    before, size, after = prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])
    rows = lo.reshape(source, (before, indices.size, after))
    out = scatter_rows(lo, lo.reshape(x, (before, size, after)), _rows(lo, indices, before), rows)
    return lo.reshape(out, x.shape)


def scatter_rows(lo: Lowering, x: Tensor, indices: Value, source: Tensor) -> Tensor:
    """Build SCATTER of rows: x [N,K,C] with the rows at indices [N,W] replaced from [N,W,C]."""
    if x.q is not None:
        source = movement.requantize(lo, source, x.q)
    out = tosa.scatter(lo.b, _to_numbers(lo, x), indices, _to_numbers(lo, source))
    return _from_numbers(lo, of_value(out, x.q), x.dtype)


def _to_numbers(lo: Lowering, x: Tensor) -> Value:
    """Return a value that GATHER and SCATTER can move: they have no booleans."""
    value = lo.emit(x)
    if x.dtype is not DType.BOOL:
        return value
    if "INT" in lo.spec.profiles:
        return tosa.cast(lo.b, value, DType.I8)
    one, zero = (lo.b.number(n, value, DType.F32) for n in (1.0, 0.0))
    return tosa.select(lo.b, value, one, zero)


def _from_numbers(lo: Lowering, x: Stored, dtype: DType) -> Tensor:
    if dtype is not DType.BOOL:
        return x
    if not x.is_float:
        return of_value(tosa.cast(lo.b, x.value, DType.BOOL))
    zero = lo.b.number(0.0, x.value, DType.F32)
    return of_value(tosa.logical_not(lo.b, tosa.equal(lo.b, x.value, zero)))


def locate(indices: Array, dim: int, shape: Sequence[int]) -> Array:
    """Find the positions in a tensor of this shape at which torch's gather reads and scatter writes."""
    where = list(np.indices(indices.shape))
    where[dim] = indices
    return np.asarray(np.ravel_multi_index(where, list(shape)))


def flatten_indices(lo: Lowering, indices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Combine one index per dimension into positions in all of them, counted in the order of the dimensions."""
    if all(isinstance(i, Const) for i in indices):
        wide = np.broadcast_arrays(*(i.array for i in indices if isinstance(i, Const)))
        flat = np.ravel_multi_index([a % n for a, n in zip(wide, sizes, strict=True)], list(sizes))
        return Const(np.asarray(flat, np.int32), DType.I32)
    total: Tensor | None = None
    for place, (index, size) in enumerate(zip(indices, sizes, strict=True)):
        each = make_movable(lo, _scale(lo, _wrap_negative(lo, index, size), prod(sizes[place + 1 :])))
        total = each if total is None else arith.build_binary(lo, tosa.add, total, each)
    assert total is not None
    return total


def _wrap_negative(lo: Lowering, t: Tensor, size: int) -> Tensor:
    """Count negative indices from the end: add size times the sign bit."""
    if isinstance(t, Const):
        return Const(t.array.astype(np.int32) % size, DType.I32)
    digit, factor = (lo.b.number(n, t.value, DType.I32) for n in (31, size))
    more = tosa.mul(lo.b, tosa.logical_right_shift(lo.b, t.value, digit), factor)
    return with_value(t, tosa.add(lo.b, t.value, more))


def _scale(lo: Lowering, t: Tensor, factor: int) -> Tensor:
    if factor == 1:
        return t
    if isinstance(t, Const):
        return Const(t.array.astype(np.int32) * np.int32(factor), DType.I32)
    return with_value(t, tosa.mul(lo.b, t.value, lo.b.number(factor, t.value, DType.I32)))


def _rows(lo: Lowering, indices: Tensor, count: int) -> Value:
    """Return the indices as [count, W], the same in each row."""
    return integers(lo, indices, (1, indices.size), count)
