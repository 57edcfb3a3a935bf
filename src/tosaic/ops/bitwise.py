"""Operators on the bits of integers: and, or, xor, not, and the shifts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import NUMPY, Array, DType, Value
from tosaic.lower import arithmetic as arith
from tosaic.lower import elementwise
from tosaic.lower.arguments import Operand, first_tensor
from tosaic.lower.booleans import CODES, combine, invert, is_condition, to_condition
from tosaic.lower.constraints import describe
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op, with_inplace
from tosaic.lower.samples import Sample, call, f32, i8, i16, i32, torch, with_booleans
from tosaic.lower.tensor import Const, Stored, Tensor, with_value

#: number of bits of the integer types
_BITS = {DType.I8: 8, DType.I16: 16, DType.I32: 32}
_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_OPERATORS: dict[str, arith.Binary] = {"and": tosa.bitwise_and, "or": tosa.bitwise_or, "xor": tosa.bitwise_xor}


def _check_amount(lo: Lowering, a: Arguments) -> str:
    """Find a shift of int32 numbers to the right by computed amounts, or one of constants."""
    x, amount = a["self"], a["other"]
    known = not isinstance(amount, Tensor) or (isinstance(amount, Const) and amount.size == 1)
    small = all(isinstance(t, Stored) and t.q is None and t.dtype in (DType.I8, DType.I16) for t in (x, amount))
    return "" if small or (known and isinstance(x, Stored)) else _check_bits(lo, a)


def _check_bits(lo: Lowering, a: Arguments) -> str:
    """Find operands that are neither conditions nor an int8 tensor with a number."""
    operands = [a[name] for name in ("self", "other") if name in a]
    computed = [t for t in operands if isinstance(t, Stored)]
    single = len(computed) == 1 and computed[0].q is None and computed[0].dtype is DType.I8
    numbers = all(not isinstance(t, Const) or t.size == 1 for t in operands)
    if all(map(is_condition, computed)) or (single and numbers):
        return ""
    return f"it takes {' and '.join(map(describe, operands))}"


_NO_BITS = Constraint(
    "an operator on bits takes booleans, or an int8 tensor and a number",
    _check_bits,
    "use an Ethos-U85, or int8 numbers and a constant",
    lambda target: not target.has_booleans,
)


_NO_SHIFTS = Constraint(
    "a shift is by one constant number, or of 8 or 16 bits",
    _check_amount,
    "use an Ethos-U85, a constant amount, or int16",
    lambda target: not target.has_shifts,
)


def _match(lo: Lowering, a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """Convert two operands to integers of one type."""
    x, y = elementwise.promote(lo, *elementwise.match_operands(lo, a, b))
    if x.q is not None or y.q is not None or x.dtype not in _BITS:
        raise Unsupported(f"it takes {describe(x)} and {describe(y)}", "cast both operands to integers")
    return x, y


def _build(lo: Lowering, x: Tensor, y: Tensor, build: arith.Binary, compute: Callable[[Array, Array], Array]) -> Tensor:
    """Build an operator on bits, or a table if the target has no such operators."""
    if lo.target.has_booleans:
        return arith.build_binary(lo, build, x, y)
    table = compute(_list_numbers(x), _list_numbers(y)).astype(np.int8)
    value = x if isinstance(x, Stored) else y
    assert isinstance(value, Stored), "constants are folded"
    return with_value(value, tosa.table(lo.b, value.value, table))


def _list_numbers(t: Tensor) -> Array:
    """List the possible numbers of an operand: all of int8, or the one number of a constant."""
    return t.array.reshape(-1)[:1] if isinstance(t, Const) else CODES.astype(np.int8)


def _bitwise(kind: str) -> None:
    def lower(lo: Lowering, self: Operand, other: Operand) -> Tensor:
        if any(isinstance(t, Tensor) and is_condition(t) and not t.is_const for t in (self, other)):
            like = first_tensor(self, other)
            x, y = (
                t if isinstance(t, Tensor) else Const(np.full((1,) * like.rank, t), DType.BOOL) for t in (self, other)
            )
            return combine(lo, kind, to_condition(lo, x), to_condition(lo, y))
        return _build(lo, *_match(lo, self, other), _OPERATORS[kind], _FUNCTIONS[kind])

    def run(x: Any, y: Any) -> Any:
        return getattr(torch, f"bitwise_{kind}")(x, y)

    def samples() -> list[Sample]:
        return [
            call(lambda x, y: torch.where(run(x > y, x <= 0.5), x, y), f32(3, 17), f32(3, 17)),
            call(lambda x, y: run(x > y, x <= 0.5), f32(3, 17), f32(3, 17), targets=with_booleans),
            call(lambda x: torch.where(run(x > 0.5, x > 1.0), x, -x), f32(1, 3, 4, 4)),
            call(lambda x: run(x, 6), i8(3, 17)),
            call(lambda x: run(-7, x), i8(64)),
            call(run, i32(3, 5), i32(3, 5), targets=with_booleans),
            call(lambda x: run(x, 6), i32(4), targets=with_booleans),
            call(run, i8(1, 5), i8(3, 5), targets=with_booleans),
            call(run, i16(3, 5), i16(3, 1), targets=with_booleans),
            call(run, i16(3, 5), i8(5), targets=with_booleans),
        ]

    forms = (f"bitwise_{kind}.Tensor", f"bitwise_{kind}.Scalar", f"bitwise_{kind}.Scalar_Tensor")
    python = (f"__{kind}__.Tensor", f"__{kind}__.Scalar")
    overloads = (*with_inplace(*forms[:2]), forms[2], *python)
    op(f"bitwise_{kind}", *overloads, pointwise=True, constraints=[_NO_BITS], samples=samples)(lower)


_bitwise("and")
_bitwise("or")
_bitwise("xor")


@op(
    "bitwise_not",
    *with_inplace("bitwise_not.default"),
    pointwise=True,
    constraints=[_NO_BITS],
    samples=lambda: [
        call(lambda x, y: torch.where(~(x > y), x, y), f32(1, 17), f32(3, 17)),
        call(lambda x, y: ~(x > y), f32(1, 17), f32(3, 17), targets=with_booleans),
        call(lambda x: torch.where(~(x > 0.5), x, -x), f32(1, 64)),
        call(lambda x: ~x, i8(3, 17)),
        call(lambda x: ~x, i16(5), targets=with_booleans),
        call(lambda x: ~x, i32(3, 4), targets=with_booleans),
    ],
)
def bitwise_not(lo: Lowering, self: Tensor) -> Tensor:
    if is_condition(self):
        return invert(lo, self)
    x, ones = _match(lo, self, -1)
    if lo.target.has_booleans and isinstance(x, Stored):
        return with_value(x, tosa.bitwise_not(lo.b, x.value))
    return _build(lo, x, ones, tosa.bitwise_xor, np.bitwise_xor)


def _shift(
    direction: str, build: Callable[[Lowering, Value, Value], Value], compute: Callable[[Array, Array], Array]
) -> None:
    """Register a shift. For an amount outside of 0..bits - 1 torch shifts all bits out, as `compute` does for int8."""
    left = direction == "left"

    def lower(lo: Lowering, self: Operand, other: Operand) -> Tensor:
        x, amount = _match(lo, self, other)
        bits = _BITS[x.dtype]
        if not lo.target.has_shifts and x.dtype is DType.I8 and (x.is_const or amount.is_const):
            return _build(lo, x, amount, tosa.logical_left_shift, compute)
        if isinstance(amount, Const):
            amounts = amount.array.astype(np.int64)
            whole = (amounts < 0) | (amounts >= bits)
            first = _full(amount, np.where(whole, bits - 1, amounts))
            if not lo.target.has_shifts:
                out = _shift_int32(lo, x, int(first.array.reshape(-1)[0]), left)
            else:
                out = arith.build_binary(lo, lambda b, u, v: build(lo, u, v), x, first)
            if left and whole.any():
                second = _full(amount, whole)
                out = arith.build_binary(lo, tosa.logical_left_shift, out, second)
            return out
        shift = _shift_by_tensor if lo.target.has_shifts else _shift_by_tensor_int32
        return shift(lo, x, amount, build, left)

    def run(x: Any, y: Any) -> Any:
        return getattr(torch, f"bitwise_{direction}_shift")(x, y)

    def samples() -> list[Sample]:
        return [
            call(lambda x: run(x, 3), i8(3, 17)),
            call(lambda x: run(x, 9), i8(64)),
            call(lambda x: run(-77, x), i8(3, 5, low=0, high=8)),
            call(lambda x: run(x, 2), i16(2, 3, 4)),
            call(lambda x: run(x, 1), i16(64, low=-(2**15), high=2**15)),
            call(lambda x: run(x, 0), i32(2, 3)),
            call(lambda x: run(x, 7), i32(3, 17, low=-(2**31), high=2**31 - 1)),
            call(lambda x: x << 31 if direction == "left" else x >> 31, i32(2, 3)),
            call(lambda x: run(x, 40), i32(2, 3)),
            call(run, i8(3, 5), i8(3, 5, low=-2, high=10)),
            call(run, i16(3, 5), i16(1, 5, low=-1, high=18)),
            call(run, i32(1, 5, low=-(2**30), high=2**30), i32(3, 1, low=-1, high=34), targets=with_booleans),
            call(lambda x: run(x, torch.tensor([0, 1, 7, 8], dtype=torch.int8)), i8(2, 4), targets=with_booleans),
        ]

    forms = [f"bitwise_{direction}_shift.{kind}" for kind in ("Tensor", "Tensor_Scalar")]
    python = [f"__{direction[0]}shift__.{kind}" for kind in ("Tensor", "Scalar")]
    overloads = (*with_inplace(*forms), f"bitwise_{direction}_shift.Scalar_Tensor", *python)
    op(f"{direction}_shift", *overloads, quant="none", constraints=[_NO_SHIFTS], samples=samples)(lower)


def _full(like: Const, numbers: Array) -> Const:
    return Const(numbers.astype(NUMPY[like.dtype]), like.dtype)


def _shift_by_tensor(
    lo: Lowering, x: Tensor, amount: Tensor, build: Callable[[Lowering, Value, Value], Value], left: bool
) -> Tensor:
    """Shift by computed amounts: one that is too large, or negative, shifts all bits out, the last one on its own."""
    (u, v), view = lo.align(x, amount)
    kind, bits = DType.I32 if lo.spec.support_integer() else DType.F32, _BITS[x.dtype]

    def number(n: int) -> Value:
        return lo.constant(np.full((1,) * v.rank, n), kind)

    wide = v if v.dtype is kind else tosa.cast(lo.b, v, kind)
    wide = tosa.select(lo.b, tosa.greater(lo.b, number(0), wide), number(bits), wide)
    first = tosa.minimum(lo.b, wide, number(bits - 1))
    shifted = build(lo, u, _to(lo.b, first, v.dtype))
    if left:
        second = tosa.sub(lo.b, tosa.minimum(lo.b, wide, number(bits)), first)
        shifted = build(lo, shifted, _to(lo.b, second, v.dtype))
    return with_value(view, shifted)


def _shift_by_tensor_int32(
    lo: Lowering, x: Tensor, amount: Tensor, build: Callable[[Lowering, Value, Value], Value], left: bool
) -> Tensor:
    """Shift by computed amounts with the shifts of Ethos-U55; numbers to the right have 8 or 16 bits."""
    (u, v), view = lo.align(x, amount)
    b, wide, bits = lo.b, arith.to_int32(lo.b, u), arith.to_int32(lo.b, v)

    def number(n: int) -> Value:
        return lo.constant(np.full((1,) * v.rank, n), DType.I32)

    # A negative amount becomes one above all others.
    sign = tosa.maximum(b, tosa.minimum(b, bits, number(0)), number(-1))
    bits = tosa.minimum(b, tosa.maximum(b, bits, number(0)), number(32))
    bits = tosa.minimum(b, tosa.sub(b, bits, tosa.mul(b, sign, number(32))), number(32))
    if left:
        first = tosa.minimum(b, bits, number(31))
        wide = tosa.logical_left_shift(b, tosa.logical_left_shift(b, wide, first), tosa.sub(b, bits, first))
    else:
        # Half of the divisor is subtracted from twice the number, which turns the nearest number into the floor.
        bits = tosa.minimum(b, bits, number(_BITS[x.dtype] - 1))
        half = tosa.logical_left_shift(b, number(1), bits)
        twice = tosa.sub(b, tosa.mul(b, wide, number(2)), half)
        wide = tosa.arithmetic_right_shift(b, twice, tosa.add(b, bits, number(1)), round=True)
    return with_value(view, wide if x.dtype is DType.I32 else arith.wrap(lo, wide, x.dtype))


def _to(b: Builder, value: Value, dtype: DType) -> Value:
    return value if value.dtype is dtype else tosa.cast(b, value, dtype)


def _shift_int32(lo: Lowering, x: Tensor, amount: int, left: bool) -> Tensor:
    """Shift by a number with the shifts of Ethos-U55: of int32, to the nearest number where it is to the right."""
    assert isinstance(x, Stored), "constants are folded"
    wide, b = arith.to_int32(lo.b, x.value), lo.b

    def number(n: int) -> Value:
        return lo.constant(np.full((1,) * x.value.rank, n), DType.I32)

    if left:
        wide = tosa.logical_left_shift(b, wide, number(amount))
    elif amount:
        # The lowest bit first: then half of the rest can be subtracted, which turns the nearest number into the floor.
        last = tosa.logical_left_shift(b, wide, number(31))
        odd = tosa.arithmetic_right_shift(b, last, number(31))
        wide = tosa.arithmetic_right_shift(b, tosa.add(b, wide, odd), number(1))
        if amount > 1:
            wide = tosa.sub(b, wide, number(1 << (amount - 2)))
            wide = tosa.arithmetic_right_shift(b, wide, number(amount - 1), round=True)
    return with_value(x, wide if x.dtype is DType.I32 else arith.wrap(lo, wide, x.dtype))


def _shift_left(x: Array, amount: Array) -> Array:
    amounts = amount.astype(np.int64)
    inside = (amounts >= 0) & (amounts < 8)
    return np.where(inside, x.astype(np.int64) << np.where(inside, amounts, 0), 0).astype(np.uint8).view(np.int8)


def _shift_right(x: Array, amount: Array) -> Array:
    amounts = amount.astype(np.int64)
    return x.astype(np.int64) >> np.where((amounts >= 0) & (amounts < 8), amounts, 7)


def _build_right(lo: Lowering, x: Value, amount: Value) -> Value:
    if lo.spec.support_integer():
        return tosa.arithmetic_right_shift(lo.b, x, amount)
    return _shift_right_in_float(lo.b, x, amount)


def _shift_right_in_float(b: Builder, x: Value, amount: Value) -> Value:
    """Shift right with the profile FP, which has shifts of unsigned numbers only, and add the bits of the sign."""
    if x.dtype is not DType.I32:
        wide = [tosa.cast(b, tosa.cast(b, v, DType.F32), DType.I32) for v in (x, amount)]
        return tosa.cast(b, tosa.cast(b, _shift_right_in_float(b, *wide), DType.F32), x.dtype)

    def number(n: int) -> Value:
        return b.const(np.full((1,) * x.rank, n, np.int32), DType.I32)

    sign = tosa.sub(b, number(0), tosa.logical_right_shift(b, x, number(31)))
    ones = tosa.logical_left_shift(b, sign, tosa.sub(b, number(31), amount))
    return tosa.add(b, tosa.logical_right_shift(b, x, amount), tosa.logical_left_shift(b, ones, number(1)))


_shift("left", lambda lo, x, amount: tosa.logical_left_shift(lo.b, x, amount), _shift_left)
_shift("right", _build_right, _shift_right)
