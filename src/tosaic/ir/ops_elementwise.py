"""Builders of the elementwise operators and the reductions.

Binary operators want equal ranks: they check, and leave a RESHAPE to the caller.
"""

from __future__ import annotations

import numpy as np

from tosaic.ir.build import Builder
from tosaic.ir.encode import decode, encode
from tosaic.ir.graph import Array, DType, Type, Value
from tosaic.ir.ops_tensor import zero_point


def clamp(b: Builder, x: Value, low: float, high: float, *, nan_mode: str = "PROPAGATE") -> Value:
    """Limit to low..high: integers for an integer tensor, else rounded to the tensor's own precision."""
    if x.dtype.is_float:
        low, high = (float(n) for n in decode(encode(np.array([low, high], dtype=np.float64), x.dtype), x.dtype))
    return b.emit("CLAMP", (x,), min_val=low, max_val=high, nan_mode=nan_mode)[0]


def erf(b: Builder, x: Value) -> Value:
    return b.emit("ERF", (x,))[0]


def sigmoid(b: Builder, x: Value) -> Value:
    return b.emit("SIGMOID", (x,))[0]


def tanh(b: Builder, x: Value) -> Value:
    return b.emit("TANH", (x,))[0]


def add(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("ADD", (x, y))[0]


def arithmetic_right_shift(b: Builder, x: Value, y: Value, *, round: bool = False) -> Value:
    return b.emit("ARITHMETIC_RIGHT_SHIFT", (x, y), round=round)[0]


def bitwise_and(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("BITWISE_AND", (x, y))[0]


def bitwise_or(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("BITWISE_OR", (x, y))[0]


def bitwise_xor(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("BITWISE_XOR", (x, y))[0]


def intdiv(b: Builder, x: Value, y: Value) -> Value:
    """Integer division, rounded towards zero."""
    return b.emit("INTDIV", (x, y))[0]


def logical_and(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("LOGICAL_AND", (x, y))[0]


def logical_left_shift(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("LOGICAL_LEFT_SHIFT", (x, y))[0]


def logical_right_shift(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("LOGICAL_RIGHT_SHIFT", (x, y))[0]


def logical_or(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("LOGICAL_OR", (x, y))[0]


def logical_xor(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("LOGICAL_XOR", (x, y))[0]


def maximum(b: Builder, x: Value, y: Value, *, nan_mode: str = "PROPAGATE") -> Value:
    return b.emit("MAXIMUM", (x, y), nan_mode=nan_mode)[0]


def minimum(b: Builder, x: Value, y: Value, *, nan_mode: str = "PROPAGATE") -> Value:
    return b.emit("MINIMUM", (x, y), nan_mode=nan_mode)[0]


def mul(b: Builder, x: Value, y: Value, shift: int = 0) -> Value:
    """The product; integers give i32, and an i32 product may be shifted right with rounding."""
    return b.emit("MUL", (x, y, b.const(np.array([shift]), DType.I8)))[0]


def pow(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("POW", (x, y))[0]


def sub(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("SUB", (x, y))[0]


def table(b: Builder, x: Value, table: Array | None) -> Value:
    """Look up each number: 256 entries for i8, 513 (interpolated, i32 result) for i16; None in a dry run."""
    size = 256 if x.dtype is DType.I8 else 513
    entries = b.hole(Type(x.dtype, (size,))) if table is None else b.const(table, x.dtype)
    return b.emit("TABLE", (x, entries))[0]


def abs(b: Builder, x: Value) -> Value:
    return b.emit("ABS", (x,))[0]


def bitwise_not(b: Builder, x: Value) -> Value:
    return b.emit("BITWISE_NOT", (x,))[0]


def ceil(b: Builder, x: Value) -> Value:
    return b.emit("CEIL", (x,))[0]


def clz(b: Builder, x: Value) -> Value:
    """The number of leading zero bits."""
    return b.emit("CLZ", (x,))[0]


def cos(b: Builder, x: Value) -> Value:
    return b.emit("COS", (x,))[0]


def exp(b: Builder, x: Value) -> Value:
    return b.emit("EXP", (x,))[0]


def floor(b: Builder, x: Value) -> Value:
    return b.emit("FLOOR", (x,))[0]


def log(b: Builder, x: Value) -> Value:
    return b.emit("LOG", (x,))[0]


def logical_not(b: Builder, x: Value) -> Value:
    return b.emit("LOGICAL_NOT", (x,))[0]


def negate(b: Builder, x: Value, *, x_zp: int = 0, out_zp: int = 0) -> Value:
    return b.emit("NEGATE", (x, zero_point(b, x_zp, x.dtype), zero_point(b, out_zp, x.dtype)))[0]


def reciprocal(b: Builder, x: Value) -> Value:
    return b.emit("RECIPROCAL", (x,))[0]


def rsqrt(b: Builder, x: Value) -> Value:
    return b.emit("RSQRT", (x,))[0]


def sin(b: Builder, x: Value) -> Value:
    return b.emit("SIN", (x,))[0]


def select(b: Builder, condition: Value, yes: Value, no: Value) -> Value:
    return b.emit("SELECT", (condition, yes, no))[0]


def equal(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("EQUAL", (x, y))[0]


def greater(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("GREATER", (x, y))[0]


def greater_equal(b: Builder, x: Value, y: Value) -> Value:
    return b.emit("GREATER_EQUAL", (x, y))[0]


def reduce_all(b: Builder, x: Value, axis: int) -> Value:
    return b.emit("REDUCE_ALL", (x,), axis=axis)[0]


def reduce_any(b: Builder, x: Value, axis: int) -> Value:
    return b.emit("REDUCE_ANY", (x,), axis=axis)[0]


def reduce_max(b: Builder, x: Value, axis: int, *, nan_mode: str = "PROPAGATE") -> Value:
    return b.emit("REDUCE_MAX", (x,), axis=axis, nan_mode=nan_mode)[0]


def reduce_min(b: Builder, x: Value, axis: int, *, nan_mode: str = "PROPAGATE") -> Value:
    return b.emit("REDUCE_MIN", (x,), axis=axis, nan_mode=nan_mode)[0]


def reduce_product(b: Builder, x: Value, axis: int) -> Value:
    return b.emit("REDUCE_PRODUCT", (x,), axis=axis)[0]


def reduce_sum(b: Builder, x: Value, axis: int) -> Value:
    """The sum along `axis`, which stays with size 1."""
    return b.emit("REDUCE_SUM", (x,), axis=axis)[0]
