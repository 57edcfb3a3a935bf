"""Numbers in order: a sorting network, whose operators are on blocks of rows.

A number of 8 or 16 bits is packed with its position into one number of 32 bits, and two of them are put in order by
MAXIMUM and MINIMUM, which every target has. Other numbers are compared, and move together with their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.graph import RANGES, Array, DType, Value
from tosaic.lower.arguments import integers, keep_dims, make_movable
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Const, Tensor, inverse, of_value

#: The order of a number and its position have 30 bits together.
MOST_PLACES = 1 << 14

#: values that move together: a number and what decides between equal ones, or both packed
_Row = Sequence[Value]


def is_packed(x: Tensor) -> bool:
    """Tell whether a number and its position fit one number of 32 bits."""
    return x.dtype in (DType.I8, DType.I16)


def find_ranks(
    lo: Lowering, x: Tensor, ranks: range, dim: int, largest: bool, keepdim: bool = True
) -> tuple[Tensor, Tensor]:
    """Find the numbers of some ranks in a dimension, and their positions; of equal numbers the first comes first."""
    dim = dim % x.rank
    order = (dim, *(i for i in range(x.rank) if i != dim))
    moved = lo.permute(x if x.q is None else lo.require_quantized(x), order)
    columns = lo.emit(lo.reshape(make_movable(lo, moved), (x.shape[dim], x.size // x.shape[dim])))
    found = (_find_packed if is_packed(x) else _find_pairs)(lo, columns, ranks, largest)
    shape = (len(ranks), *moved.shape[1:])
    both = [lo.permute(lo.reshape(of_value(v), shape), inverse(order)) for v in found]
    values, places = (keep_dims(lo, t, [dim], keepdim) for t in both)
    if x.dtype is DType.I32:
        values = of_value(integers(lo, values, values.shape))
    return replace(values, q=x.q), of_value(integers(lo, places, places.shape))


def _find_packed(lo: Lowering, columns: Value, ranks: range, largest: bool) -> _Row:
    """Find numbers of each column, and their positions, with one key for both."""

    def number(value: int) -> Value:
        return lo.constant(np.full((1, 1), value), DType.I32)

    b, height = lo.b, columns.shape[0]
    sign = 1 if largest else -1
    behind = lo.constant(np.arange(height)[::-1].reshape(-1, 1), DType.I32)
    keys = tosa.add(b, tosa.mul(b, lo.rescale(columns, DType.I32, [1.0]), number(sign * MOST_PLACES)), behind)
    (keys,) = _select(lo, [keys], ranks, [-(1 << 30)])
    # Between two multiples, so that rounding to the nearest rounds down.
    found = lo.rescale(tosa.sub(b, keys, number(MOST_PLACES // 2)), DType.I32, [1.0 / MOST_PLACES])
    places = tosa.sub(b, number(height - 1), tosa.sub(b, keys, tosa.mul(b, found, number(MOST_PLACES))))
    return [lo.rescale(tosa.mul(b, found, number(sign)), columns.dtype, [1.0]), places]


def _find_pairs(lo: Lowering, columns: Value, ranks: range, largest: bool) -> _Row:
    """Find numbers of each column, and their positions."""
    height, width = columns.shape
    every = np.full((1, 1), not largest)
    least = -np.inf if columns.dtype.is_float else RANGES[DType.I32][0]
    # Of equal numbers the first has the largest of these.
    behind = np.repeat(-np.arange(height, dtype=np.int32).reshape(-1, 1), width, 1)
    row = [_mirror(lo, columns, every), lo.emit(make_movable(lo, Const(behind, DType.I32)))]
    values, places = _select(lo, row, ranks, [least, -height])
    return [_mirror(lo, values, every), tosa.negate(lo.b, places)]


def _select(lo: Lowering, row: _Row, ranks: range, last: Sequence[float]) -> _Row:
    """Put rows in order, the largest first, and take those of some ranks; `last` is less than all of them.

    Blocks are put in order, every other one backwards: two neighbors together rise and then fall, or the reverse. Such
    a sequence is put in order by comparing its halves, then the halves of these, and so on. As soon as a block has
    enough rows, only the larger half of two neighbors is kept.
    """
    size = 1
    while (height := row[0].shape[0]) > size:
        if height // size % 2:
            row = [tosa.pad(lo.b, v, (0, size, 0, 0), fill) for v, fill in zip(row, last, strict=True)]
        if size < ranks.stop:
            size *= 2
        else:
            row, _ = _compare(lo, row, size)
        backwards = (np.arange(row[0].shape[0]) // size % 2 == 1).reshape(-1, 1)
        row = [_mirror(lo, v, backwards) for v in row]
        distance = size // 2
        while distance:
            row = _join(lo, *_compare(lo, row, distance), distance)
            distance //= 2
        row = [_mirror(lo, v, backwards) for v in row]
    return [tosa.slice(lo.b, v, (ranks.start, 0), (len(ranks), v.shape[1])) for v in row]


def _compare(lo: Lowering, row: _Row, distance: int) -> tuple[_Row, _Row]:
    """Compare each row with the one at a distance, in blocks of two distances; return the larger and the smaller."""
    b, (height, width) = lo.b, row[0].shape
    shape = (height // (2 * distance), 2, distance * width)
    grouped = [lo.emit(lo.reshape(of_value(v), shape)) for v in row]
    first, second = ([tosa.slice(b, v, (0, half, 0), (shape[0], 1, shape[2])) for v in grouped] for half in (0, 1))
    if len(row) == 1:
        larger, smaller = ([extreme(b, first[0], second[0])] for extreme in (tosa.maximum, tosa.minimum))
    else:
        tie = tosa.logical_and(b, tosa.equal(b, first[0], second[0]), tosa.greater(b, first[1], second[1]))
        ahead = tosa.logical_or(b, tosa.greater(b, first[0], second[0]), tie)
        larger = [tosa.select(b, ahead, u, v) for u, v in zip(first, second, strict=True)]
        smaller = [tosa.select(b, ahead, v, u) for u, v in zip(first, second, strict=True)]
    rows = [[lo.emit(lo.reshape(of_value(v), (height // 2, width))) for v in half] for half in (larger, smaller)]
    return rows[0], rows[1]


def _join(lo: Lowering, first: _Row, second: _Row, distance: int) -> _Row:
    """Put rows back into the blocks that were compared."""
    height, width = first[0].shape
    shape = (height // distance, 1, distance * width)
    pairs = [[lo.emit(lo.reshape(of_value(v), shape)) for v in pair] for pair in zip(first, second, strict=True)]
    return [lo.emit(lo.reshape(of_value(tosa.concat(lo.b, pair, 1)), (2 * height, width))) for pair in pairs]


def _mirror(lo: Lowering, value: Value, chosen: Array) -> Value:
    """Reverse the order of the chosen rows."""
    if not chosen.any():
        return value
    if value.dtype is DType.I32 and lo.target.has_booleans:
        return tosa.bitwise_xor(lo.b, value, lo.constant(-chosen.astype(np.int32), DType.I32))
    return tosa.mul(lo.b, value, lo.constant(1 - 2 * chosen.astype(np.int32), value.dtype))
