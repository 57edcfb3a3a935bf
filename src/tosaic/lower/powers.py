"""Sums of squares of 16-bit values in 32 bits, as the norms of vectors are computed from them.

Half of the bits of a sum of squares are those of its root, so none of it is rounded to 16 bits: functions of it are
tables for parts of 32 bits (`interpolation.fit_parts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.graph import RANGES, DType
from tosaic.ir.qparams import accumulator
from tosaic.lower.arithmetic import multiply
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Const, Stored, Tensor, with_value

#: the end of the numbers of 32 bits, and what the reach of every other sum is below
_END, _LEAST = 2.0**31, 2.0**29.5


def is_power(t: Tensor) -> TypeGuard[Stored]:
    """Tell whether a tensor is a sum of squares in 32 bits."""
    return isinstance(t, Stored) and t.reach is not None and t.reach > _LEAST and t.clamp is None


def find_square(t: Tensor) -> Stored | None:
    """Find the tensor of 16 bits whose square is pending as a table; None if something else is pending."""
    if not isinstance(t, Stored) or t.lut is None or t.dtype is not DType.I16 or t.qparams.zp:
        return None
    least, most = RANGES[DType.I16]
    reals = np.arange(least, most + 1) * t.qparams.s
    # The square of the lowest number of all, which is not symmetric, has one bit more.
    is_square = t.qparams.qmin > least and np.allclose(t.lut, reals**2, rtol=1e-6, atol=0.0)
    return replace(t, lut=None) if is_square else None


def add(lo: Lowering, x: Tensor, y: Tensor) -> Stored | None:
    """Build x + y for two squares, or for a sum of squares and a number; None for other operands."""
    if is_power(x) and isinstance(y, Const) and y.size == 1:
        return _add_number(lo, x, float(y.real().reshape(-1)[0]))
    first, second = find_square(x), find_square(y)
    return None if first is None or second is None else _add_squares(lo, first, second)


def _add_squares(lo: Lowering, x: Stored, y: Stored) -> Stored:
    """Build x**2 + y**2 without any rounding of the square with the larger steps."""
    unit = max(x.qparams.s, y.qparams.s) ** 2
    squares = [multiply(lo, t, t) for t in (x, y)]
    values, view = lo.align(*squares)
    terms = [
        value if t.qparams.s == unit else lo.rescale(value, DType.I32, [t.qparams.s / unit])
        for value, t in zip(values, squares, strict=True)
    ]
    reach = sum((t.qparams.qmax * t.qparams.s) ** 2 for t in (x, y)) / unit
    return replace(with_value(view, tosa.add(lo.b, *terms), accumulator((unit,))), reach=reach)


def _add_number(lo: Lowering, x: Stored, number: float) -> Stored | None:
    """Build the sum with a number that is not negative, in the steps of the sum of squares."""
    if number < 0.0 or x.reach is None:
        return None
    # A number larger than all sums makes the steps coarser.
    bits = max(math.ceil(math.log2((x.reach + number / x.qparams.s + 1.0) / _END)), 0)
    unit = x.qparams.s * 2.0**bits
    value = x.value
    if bits:
        value = tosa.arithmetic_right_shift(lo.b, value, lo.b.number(bits, value, DType.I32))
    if steps := round(number / unit):
        value = tosa.add(lo.b, value, lo.b.number(steps, value, DType.I32))
    return replace(with_value(x, value, accumulator((unit,))), reach=x.reach * 2.0**-bits + steps)


def sum_over(lo: Lowering, x: Tensor, dims: Sequence[int], divisor: float) -> Stored | None:
    """Sum squares over dimensions (kept as size one) and divide by a constant; None for other operands."""
    base = find_square(x)
    if base is None:
        return None
    squares = multiply(lo, base, base)
    squares = lo.store(squares)
    count = math.prod(squares.shape[d] for d in dims)
    # A square has 30 bits.
    coarser = max(math.ceil(math.log2(count)) - 1, 0)
    value = lo.rescale(squares.value, DType.I32, [2.0**-coarser]) if coarser else squares.value
    for axis in sorted(squares.perm[d] for d in dims):
        value = tosa.reduce_sum(lo.b, value, axis)
    shape = tuple(1 if i in dims else d for i, d in enumerate(squares.shape))
    reach = count * base.qparams.qmax**2 * 2.0**-coarser
    return Stored(shape, value, squares.perm, accumulator((squares.qparams.s * 2.0**coarser / divisor,)), reach=reach)
