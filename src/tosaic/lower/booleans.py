"""Conditions: which numbers of a tensor are not zero, as a boolean tensor or as a pending table of booleans.

A target without boolean tensors has tables of booleans only: functions of an int8 value, stored as ones and zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Const, Stored, Tensor, with_value

Codes: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

#: all int8 values, in the order of a table
CODES: Codes = np.arange(-128, 128)
#: the qparams of int8 and int16 numbers that are what they stand for
PLAIN = QParams((1.0,), (0,), DType.I8, -128, 127)
PLAIN_INT16 = QParams((1.0,), (0,), DType.I16, -(2**15), 2**15 - 1)


def is_table(t: Tensor) -> bool:
    """Tell whether a tensor is a pending table of booleans."""
    return isinstance(t, Stored) and t.lut is not None and t.lut.dtype == np.bool_


def is_condition(t: Tensor) -> bool:
    """Tell whether a tensor is boolean, as a pending table too."""
    return t.dtype is DType.BOOL or is_table(t)


def to_condition(lo: Lowering, t: Tensor) -> Tensor:
    """Find the numbers that are not zero: a boolean tensor or a pending table of booleans."""
    if isinstance(t, Const):
        return Const(t.real() != 0.0, DType.BOOL)
    if is_condition(t):
        return t
    if t.lut is not None:
        return _with_table(t, t.lut != 0.0)
    if t.q is not None and t.dtype is DType.I8:
        return _with_table(lo.require_quantized(t), np.not_equal(CODES, t.q.zp))
    if t.q is not None:
        value = lo.rescale(lo.require_quantized(t).value, DType.I32, [1.0], t.q.zp)
        if not lo.target.has_booleans:
            return of_sign(lo, t, value, lambda codes: codes != 0)
    elif t.is_float or lo.target.has_booleans:
        value = t.value
    else:
        return of_sign(lo, t, t.value, lambda codes: codes != 0)
    if not value.dtype.is_float and lo.spec.support_integer():
        return with_value(t, tosa.cast(lo.b, value, DType.BOOL))
    value = value if value.dtype.is_float else tosa.cast(lo.b, value, DType.F32)
    zero = lo.b.number(0.0, value, value.dtype)
    return with_value(t, tosa.logical_not(lo.b, tosa.equal(lo.b, value, zero)))


def of_sign(lo: Lowering, view: Stored, value: Value, holds: Callable[[Codes], Mask]) -> Stored:
    """Make a table of booleans from the sign of integers, which is all that is left of them in int8."""
    if value.dtype is DType.I32:
        # A RESCALE is not defined for the largest numbers.
        for bound, build in ((-127, tosa.maximum), (127, tosa.minimum)):
            value = build(lo.b, value, lo.b.number(bound, value, DType.I32))
    if value.dtype is not DType.I8:
        value = lo.rescale(value, DType.I8, [1.0])
    return _with_table(with_value(view, value, PLAIN), holds(CODES))


def _with_table(t: Stored, table: Mask) -> Stored:
    # A table of booleans has their dtype, and those of numbers have float32.
    return replace(t, lut=np.asarray(table), clamp=None)


def store_bool(lo: Lowering, t: Tensor) -> Tensor:
    """Return a stored tensor of booleans for a condition."""
    if isinstance(t, Stored) and t.lut is not None:
        return with_value(t, tosa.cast(lo.b, lo.emit_table(t), DType.BOOL))
    if t.dtype is not DType.BOOL:
        raise Unsupported("it uses numbers as booleans", "compare the numbers with zero")
    return t


def to_ones(lo: Lowering, t: Tensor) -> Tensor:
    """Return a condition as int8 numbers: one where it holds, zero elsewhere."""
    if isinstance(t, Const):
        return Const(t.array.astype(np.int8), DType.I8)
    if t.lut is not None:
        return with_value(t, lo.emit_table(t))
    return with_value(t, tosa.cast(lo.b, t.value, DType.I8))


def to_float(lo: Lowering, t: Stored) -> Stored:
    """Return a stored condition as float32 numbers: one where it holds, zero elsewhere."""
    one, zero = (lo.b.number(n, t.value, DType.F32) for n in (1.0, 0.0))
    return with_value(t, tosa.select(lo.b, t.value, one, zero))


#: by name: the operator on booleans, and one on int32 ones and zeros that is one where it holds
_LOGIC = {
    "and": (tosa.logical_and, tosa.minimum),
    "or": (tosa.logical_or, tosa.maximum),
    "xor": (tosa.logical_xor, tosa.add),
}


def combine(lo: Lowering, name: str, x: Tensor, y: Tensor) -> Tensor:
    """Combine two conditions by `and`, `or` or `xor`."""
    logical, numeric = _LOGIC[name]
    if lo.target.has_booleans:
        (u, v), view = lo.align(store_bool(lo, x), store_bool(lo, y))
        return with_value(view, logical(lo.b, u, v))
    (u, v), view = lo.align(to_ones(lo, x), to_ones(lo, y))
    wide = numeric(lo.b, lo.rescale(u, DType.I32, [1.0]), lo.rescale(v, DType.I32, [1.0]))
    return _with_table(with_value(view, lo.rescale(wide, DType.I8, [1.0]), PLAIN), CODES == 1)


def invert(lo: Lowering, x: Tensor) -> Tensor:
    """Invert a condition."""
    if isinstance(x, Const):
        return Const(np.logical_not(x.array), DType.BOOL)
    return _with_table(x, x.lut == 0) if x.lut is not None else with_value(x, tosa.logical_not(lo.b, x.value))
