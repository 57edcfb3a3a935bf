"""Rules of the elementwise operators and the reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tosaic.core.errors import Invalid
from tosaic.ir.graph import DType, Type, Value
from tosaic.ir.rule import (
    Attrs,
    Rule,
    broadcast,
    get_axis,
    get_bool,
    get_choice,
    get_number,
    get_numbers,
    need_dtype,
    need_type,
    need_zero_point,
)
from tosaic.ir.rules_tensor import NAN_MODES

_BITS = {DType.I8: 8, DType.I16: 16, DType.I32: 32}
_TABLES = {DType.I8: (256, DType.I8), DType.I16: (513, DType.I32)}


def _unary(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    return (inputs[0].type,)


def _binary(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    a, b = inputs[:2]
    need_dtype(b, a.dtype, "input2")
    return (Type(a.dtype, broadcast(a.shape, b.shape)),)


def _binary_nan(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    get_choice(attrs, "nan_mode", NAN_MODES)
    return _binary(inputs, attrs)


def _compare(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    (same,) = _binary(inputs, attrs)
    return (Type(DType.BOOL, same.shape),)


def _shift(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    amount, bits = get_numbers(inputs[1]), _BITS.get(inputs[1].dtype)
    if amount is not None and bits is not None and bool(((amount < 0) | (amount >= bits)).any()):
        raise Invalid(f"a shift amount is outside 0..{bits - 1}")
    return _binary(inputs, attrs)


def _arithmetic_right_shift(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    get_bool(attrs, "round")
    return _shift(inputs, attrs)


def _intdiv(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    divisor = get_numbers(inputs[1])
    if divisor is not None and not bool(divisor.all()):
        raise Invalid("the divisor holds a zero")
    return _binary(inputs, attrs)


def _mul(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    shift = inputs[2]
    need_type(shift, Type(DType.I8, (1,)), "shift")
    (same,) = _binary(inputs, attrs)
    data = get_numbers(shift)
    if data is not None:
        amount = int(data[0])
        if not 0 <= amount <= 63:
            raise Invalid(f"shift {amount} is outside 0..63")
        if amount and same.dtype is not DType.I32:
            raise Invalid(f"shift must be 0 for {same.dtype.value}: only i32 takes one")
    return (Type(DType.I32 if same.dtype.is_int else same.dtype, same.shape),)


def _clamp(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    (x,) = inputs
    low, high = get_number(attrs, "min_val"), get_number(attrs, "max_val")
    get_choice(attrs, "nan_mode", NAN_MODES)
    if math.isnan(low) or math.isnan(high):
        raise Invalid("min_val or max_val is not a number")
    if high < low:
        raise Invalid(f"max_val {high} is below min_val {low}")
    if x.dtype.is_int:
        limit = 1 << (_BITS.get(x.dtype, 32) - 1)
        if not isinstance(low, int) or not isinstance(high, int) or low < -limit or high >= limit:
            raise Invalid(f"min_val {low} or max_val {high} is no {x.dtype.value}")
    return (x.type,)


def _negate(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, input_zp, output_zp = inputs
    need_zero_point(input_zp, x, "input1_zp")
    need_zero_point(output_zp, x, "output_zp")
    return (x.type,)


def _table(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, table = inputs
    if x.dtype not in _TABLES:
        raise Invalid(f"input1 must be i8 or i16, not {x.dtype.value}")
    size, result = _TABLES[x.dtype]
    need_type(table, Type(x.dtype, (size,)), "table")
    return (Type(result, x.shape),)


def _select(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    condition, yes, no = inputs
    need_dtype(condition, DType.BOOL, "input1")
    need_dtype(no, yes.dtype, "input3")
    return (Type(yes.dtype, broadcast(broadcast(condition.shape, yes.shape), no.shape)),)


def _reduce(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    (x,) = inputs
    axis = get_axis(attrs, x.rank)
    return (Type(x.dtype, (*x.shape[:axis], 1, *x.shape[axis + 1 :])),)


def _reduce_nan(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    get_choice(attrs, "nan_mode", NAN_MODES)
    return _reduce(inputs, attrs)


def _all(kinds: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(kinds.split(), rule)


ELEMENTWISE_RULES: Mapping[str, Rule] = {
    **_all("ERF SIGMOID TANH ABS BITWISE_NOT CEIL CLZ COS EXP FLOOR LOG LOGICAL_NOT RECIPROCAL RSQRT SIN", _unary),
    **_all("ADD SUB POW BITWISE_AND BITWISE_OR BITWISE_XOR LOGICAL_AND LOGICAL_OR LOGICAL_XOR", _binary),
    **_all("MAXIMUM MINIMUM", _binary_nan),
    **_all("EQUAL GREATER GREATER_EQUAL", _compare),
    **_all("LOGICAL_LEFT_SHIFT LOGICAL_RIGHT_SHIFT", _shift),
    **_all("REDUCE_ALL REDUCE_ANY REDUCE_PRODUCT REDUCE_SUM", _reduce),
    **_all("REDUCE_MAX REDUCE_MIN", _reduce_nan),
    "ARITHMETIC_RIGHT_SHIFT": _arithmetic_right_shift,
    "CLAMP": _clamp,
    "INTDIV": _intdiv,
    "MUL": _mul,
    "NEGATE": _negate,
    "SELECT": _select,
    "TABLE": _table,
}
