"""The elementwise operators and the reductions: definitions and builders.

Binary operators require equal ranks: they check, and leave a RESHAPE to the caller.
"""

from __future__ import annotations

import math

import numpy as np

from tosaic.core.errors import Invalid
from tosaic.ir.build import Builder
from tosaic.ir.definition import AXIS, NAN_MODE, Attribute, Field, Infer, Legality, OpDef, allow, constant, tensor
from tosaic.ir.encode import decode, encode
from tosaic.ir.graph import RANGES, Array, DType, Op, Type, Value
from tosaic.ir.infer import (
    broadcast,
    get_axis,
    get_numbers,
    keep_type,
    need_dtype,
    need_type,
    need_zero_point,
)

_FLOAT = allow("in", "f16, f32: FP", "bf16: bf16")
_INTEGER = allow("in", "i8, i16, i32: INT")
_LOGICAL = allow("in", "bool: INT | FP")
_ARITHMETIC = allow("in", "i32: INT | FP", "f16, f32: FP", "bf16: bf16")
_ORDERED = allow("in", "i32: INT", "f16, f32: FP", "bf16: bf16")
_SIGNED = allow("in", "i8, i16, i32: INT", "f16, f32: FP", "bf16: bf16")


class Unary(OpDef):
    """An operator on one tensor whose result has the same type."""

    def __init__(self, name: str, legal: Legality) -> None:
        super().__init__(name, (tensor("input1"),), infer=keep_type, legal=legal)

    def __call__(self, b: Builder, x: Value) -> Value:
        return b.emit(self, (x,))[0]


erf = Unary("ERF", _FLOAT)
sigmoid = Unary("SIGMOID", _FLOAT)
tanh = Unary("TANH", _FLOAT)
abs = Unary("ABS", _ORDERED)
bitwise_not = Unary("BITWISE_NOT", _INTEGER)
ceil = Unary("CEIL", _FLOAT)
clz = Unary("CLZ", allow("in", "i32: INT"))
cos = Unary("COS", _FLOAT)
exp = Unary("EXP", _FLOAT)
floor = Unary("FLOOR", _FLOAT)
log = Unary("LOG", _FLOAT)
logical_not = Unary("LOGICAL_NOT", _LOGICAL)
reciprocal = Unary("RECIPROCAL", _FLOAT)
rsqrt = Unary("RSQRT", _FLOAT)
sin = Unary("SIN", _FLOAT)


def _infer_binary(op: Op) -> Type:
    x, y = op.operand("input1"), op.operand("input2")
    need_dtype(y, x.dtype, "input2")
    return Type(x.dtype, broadcast(x.shape, y.shape))


class Binary(OpDef):
    """An operator on two tensors of one dtype, which are broadcast to one shape."""

    def __init__(self, name: str, legal: Legality, infer: Infer = _infer_binary) -> None:
        super().__init__(name, (tensor("input1"), tensor("input2")), infer=infer, legal=legal)

    def __call__(self, b: Builder, x: Value, y: Value) -> Value:
        return b.emit(self, (x, y))[0]


add = Binary("ADD", _ARITHMETIC)
sub = Binary("SUB", _ARITHMETIC)
pow = Binary("POW", _FLOAT)
bitwise_and = Binary("BITWISE_AND", _INTEGER)
bitwise_or = Binary("BITWISE_OR", _INTEGER)
bitwise_xor = Binary("BITWISE_XOR", _INTEGER)
logical_and = Binary("LOGICAL_AND", _LOGICAL)
logical_or = Binary("LOGICAL_OR", _LOGICAL)
logical_xor = Binary("LOGICAL_XOR", _LOGICAL)


def _infer_comparison(op: Op) -> Type:
    return Type(DType.BOOL, _infer_binary(op).shape)


equal = Binary("EQUAL", _ORDERED, _infer_comparison)
greater = Binary("GREATER", _ORDERED, _infer_comparison)
greater_equal = Binary("GREATER_EQUAL", _ORDERED, _infer_comparison)


def _infer_intdiv(op: Op) -> Type:
    divisor = get_numbers(op.operand("input2"))
    if divisor is not None and not bool(divisor.all()):
        raise Invalid("the divisor contains a zero")
    return _infer_binary(op)


intdiv = Binary("INTDIV", allow("in", "i32: INT | FP"), _infer_intdiv)


def _infer_shift(op: Op) -> Type:
    amount, bits = op.operand("input2"), {DType.I8: 8, DType.I16: 16, DType.I32: 32}
    numbers, size = get_numbers(amount), bits.get(amount.dtype)
    if numbers is not None and size is not None and bool(((numbers < 0) | (numbers >= size)).any()):
        raise Invalid(f"a shift amount is outside 0..{size - 1}")
    return _infer_binary(op)


_SHIFT = allow("in", "i8, i16, i32: INT | FP")
logical_left_shift = Binary("LOGICAL_LEFT_SHIFT", _SHIFT, _infer_shift)
logical_right_shift = Binary("LOGICAL_RIGHT_SHIFT", _SHIFT, _infer_shift)
ARITHMETIC_RIGHT_SHIFT = OpDef(
    "ARITHMETIC_RIGHT_SHIFT",
    (tensor("input1"), tensor("input2")),
    (Attribute("round", Field.BOOL),),
    infer=_infer_shift,
    legal=_INTEGER,
)


def arithmetic_right_shift(b: Builder, x: Value, amount: Value, *, round: bool = False) -> Value:
    """Shift right and keep the sign; with `round`, to the nearest number."""
    return b.emit(ARITHMETIC_RIGHT_SHIFT, (x, amount), round=round)[0]


class Extreme(OpDef):
    """The larger or the smaller of two numbers; `nan_mode` selects the result if one is NaN."""

    def __init__(self, name: str) -> None:
        operands = (tensor("input1"), tensor("input2"))
        super().__init__(name, operands, (NAN_MODE,), infer=_infer_binary, legal=_ORDERED)

    def __call__(self, b: Builder, x: Value, y: Value, *, nan_mode: str = "PROPAGATE") -> Value:
        return b.emit(self, (x, y), nan_mode=nan_mode)[0]


maximum = Extreme("MAXIMUM")
minimum = Extreme("MINIMUM")


def _infer_mul(op: Op) -> Type:
    shift = get_numbers(need_type(op, "shift", Type(DType.I8, (1,))))
    same = _infer_binary(op)
    if shift is not None:
        amount = int(shift[0])
        if not 0 <= amount <= 63:
            raise Invalid(f"shift {amount} is outside 0..63")
        if amount and same.dtype is not DType.I32:
            raise Invalid(f"shift must be 0 for {same.dtype.value}: only i32 takes one")
    return Type(DType.I32 if same.dtype.is_int else same.dtype, same.shape)


MUL = OpDef(
    "MUL",
    (tensor("input1"), tensor("input2"), constant("shift")),
    infer=_infer_mul,
    legal=allow("in", "i8, i16: INT", "i32: INT | FP", "f16, f32: FP", "bf16: bf16"),
)


def mul(b: Builder, x: Value, y: Value, shift: int = 0) -> Value:
    """Multiply; integers give i32, and an i32 product may be shifted right with rounding."""
    return b.emit(MUL, (x, y, b.const(np.array([shift]), DType.I8)))[0]


def _infer_negate(op: Op) -> Type:
    x = op.operand("input1")
    need_zero_point(op, "input1_zp", x.dtype)
    need_zero_point(op, "output_zp", x.dtype)
    return x.type


NEGATE = OpDef(
    "NEGATE", (tensor("input1"), constant("input1_zp"), constant("output_zp")), infer=_infer_negate, legal=_SIGNED
)


def negate(b: Builder, x: Value, *, x_zp: int = 0, out_zp: int = 0) -> Value:
    return b.emit(NEGATE, (x, b.zero_point(x_zp, x.dtype), b.zero_point(out_zp, x.dtype)))[0]


def _get_number(op: Op, name: str) -> int | float:
    value = op.attrs[name]
    return value if isinstance(value, int) else op.get(name, float)


def _infer_clamp(op: Op) -> Type:
    x = op.operand("input")
    low, high = _get_number(op, "min_val"), _get_number(op, "max_val")
    if math.isnan(low) or math.isnan(high):
        raise Invalid("min_val or max_val is not a number")
    if high < low:
        raise Invalid(f"max_val {high} is below min_val {low}")
    if x.dtype.is_int:
        smallest, largest = RANGES[x.dtype]
        if not isinstance(low, int) or not isinstance(high, int) or low < smallest or high > largest:
            raise Invalid(f"min_val {low} or max_val {high} does not fit {x.dtype.value}")
    return x.type


CLAMP = OpDef(
    "CLAMP",
    (tensor("input"),),
    (Attribute("min_val", Field.NUMBER), Attribute("max_val", Field.NUMBER), NAN_MODE),
    infer=_infer_clamp,
    legal=allow("in", "i8: INT", "i16: int16", "f16, f32: FP", "bf16: bf16"),
)


def clamp(b: Builder, x: Value, low: float, high: float, *, nan_mode: str = "PROPAGATE") -> Value:
    """Limit to low..high: integers for an integer tensor, else rounded to the tensor's own precision."""
    if x.dtype.is_float:
        low, high = (float(n) for n in decode(encode(np.array([low, high], dtype=np.float64), x.dtype), x.dtype))
    return b.emit(CLAMP, (x,), min_val=low, max_val=high, nan_mode=nan_mode)[0]


def _infer_table(op: Op) -> Type:
    x = op.operand("input1")
    sizes = {DType.I8: (256, DType.I8), DType.I16: (513, DType.I32)}
    if x.dtype not in sizes:
        raise Invalid(f"input1 must be i8 or i16, not {x.dtype.value}")
    size, result = sizes[x.dtype]
    need_type(op, "table", Type(x.dtype, (size,)))
    return Type(result, x.shape)


TABLE = OpDef(
    "TABLE", (tensor("input1"), constant("table")), infer=_infer_table, legal=allow("in", "i8: INT", "i16: int16")
)


def table(b: Builder, x: Value, table: Array) -> Value:
    """Look up each number: 256 entries for i8, 513 (interpolated, i32 result) for i16."""
    return b.emit(TABLE, (x, b.const(table, x.dtype)))[0]


def _infer_select(op: Op) -> Type:
    condition, yes, no = op.inputs
    need_dtype(condition, DType.BOOL, "input1")
    need_dtype(no, yes.dtype, "input3")
    return Type(yes.dtype, broadcast(broadcast(condition.shape, yes.shape), no.shape))


SELECT = OpDef(
    "SELECT",
    (tensor("input1"), tensor("input2"), tensor("input3")),
    infer=_infer_select,
    legal=allow("input2", "bool: INT | FP", "i8, i16, i32: INT", "f16, f32: FP", "bf16: bf16"),
)


def select(b: Builder, condition: Value, yes: Value, no: Value) -> Value:
    return b.emit(SELECT, (condition, yes, no))[0]


def _infer_reduction(op: Op) -> Type:
    x = op.operand("input")
    axis = get_axis(op, x.rank)
    return Type(x.dtype, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))


class Reduction(OpDef):
    """An operator along one axis, which is kept with size 1."""

    def __init__(self, name: str, legal: Legality) -> None:
        super().__init__(name, (tensor("input"),), (AXIS,), infer=_infer_reduction, legal=legal)

    def __call__(self, b: Builder, x: Value, axis: int) -> Value:
        return b.emit(self, (x,), axis=axis)[0]


reduce_all = Reduction("REDUCE_ALL", _LOGICAL)
reduce_any = Reduction("REDUCE_ANY", _LOGICAL)
reduce_product = Reduction("REDUCE_PRODUCT", _FLOAT)
reduce_sum = Reduction("REDUCE_SUM", _ORDERED)


class ExtremeReduction(OpDef):
    """The largest or smallest number along one axis, which is kept with size 1."""

    def __init__(self, name: str) -> None:
        super().__init__(name, (tensor("input"),), (AXIS, NAN_MODE), infer=_infer_reduction, legal=_SIGNED)

    def __call__(self, b: Builder, x: Value, axis: int, *, nan_mode: str = "PROPAGATE") -> Value:
        return b.emit(self, (x,), axis=axis, nan_mode=nan_mode)[0]


reduce_max = ExtremeReduction("REDUCE_MAX")
reduce_min = ExtremeReduction("REDUCE_MIN")
