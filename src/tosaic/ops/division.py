"""Quotients and remainders, whole or rounded, of floats, integers and quantized tensors; rounding to decimals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.core.targets import Target
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType
from tosaic.lower import arithmetic as arith
from tosaic.lower import elementwise, rounding
from tosaic.lower.arguments import Operand, unary
from tosaic.lower.aten import Aten, T, is_number
from tosaic.lower.constraints import describe
from tosaic.lower.formula import Number, apply, combine
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op, with_inplace
from tosaic.lower.samples import Sample, call, f32, i32, torch
from tosaic.lower.tensor import Const, Stored, Tensor, is_int16


def _decompose_div(aten: Aten[T], self: T, other: T | float) -> T | None:
    if is_number(aten, other):
        return None
    return aten("mul.Tensor", self, aten("reciprocal.default", other))


@op(
    "div",
    *with_inplace(*(f"{name}.{kind}" for name in ("div", "divide", "true_divide") for kind in ("Tensor", "Scalar"))),
    pointwise=True,
    decompose=_decompose_div,
    samples=lambda: [
        call(lambda x, y: x / y, f32(4), f32(4, low=0.5, high=2.0)),
        call(lambda x, y: x / y, f32(1, 3, 8, 8), f32(1, 3, 8, 8, low=0.5, high=2.0)),
        call(lambda x, y: x / y, f32(5, 1), f32(1, 6, low=-4.0, high=-1.0)),
        call(lambda x: x / 3.0, f32(2, 5)),
        call(lambda x: x / 4, f32(2, 5)),
        call(lambda x, y: torch.divide(x, y), f32(3, 4), f32(4, low=0.5, high=2.0)),
        call(lambda x: torch.true_divide(x, 1.5), f32(3, 4)),
        call(lambda x, y: (x * 1.0).div_(y), f32(3, 17), f32(3, 1, low=0.5, high=2.0)),
    ],
)
def div(lo: Lowering, self: Operand, other: Operand) -> Tensor:
    x, y = elementwise.match_operands(lo, self, other)
    if isinstance(y, Const) and y.size == 1 and isinstance(x, Stored) and x.is_accumulator:
        divisor = float(y.real().reshape(-1)[0])
        if divisor > 0:
            return arith.scaled(x, 1.0 / divisor)
    if x.q is not None or y.q is not None:
        raise Unsupported(
            "a quotient of two quantized tensors has no integer form",
            "quantize with Tosaic's quantizer, which replaces it with a product with the reciprocal",
        )
    if not x.is_float:
        raise Unsupported("a true division of integers returns float", "divide with rounding_mode='trunc'")
    if isinstance(y, Const):
        return arith.multiply(lo, x, Const((1.0 / y.real()).astype(np.float32), DType.F32))
    return arith.multiply(lo, x, unary(lo, tosa.reciprocal, y))


def _halve(x: Number) -> tuple[Number, Number]:
    """Split a number into two of 12 bits, whose products are exact."""
    wide = 4097.0 * x
    high = wide - (wide - x)
    return high, x - high


def _subtract_product(a: Number, q: Number, b: Number) -> Number:
    """Compute a - q * b with the exact product, as a fused operator would."""
    product, (q1, q2), (b1, b2) = q * b, _halve(q), _halve(b)
    lost = ((q1 * b1 - product) + q1 * b2 + q2 * b1) + q2 * b2
    return (a - product) - lost


def _divide(a: Number, b: Number) -> Number:
    """Divide and round once; a product with the reciprocal may be one step off, and on the other side of an integer."""
    inverse = b.reciprocal()
    first = a * inverse
    rest = _subtract_product(a, first, b)
    return rest.is_nan().choose(first, first + rest * inverse)


def _divide_whole(a: Number, b: Number) -> tuple[Number, Number]:
    """Return the quotient of the sizes without its fraction, and the remainder: exact for quotients below 2**24.

    A larger one is itself known to one part in 2**24 only; the remainder is 0 if it comes out as no remainder at all.
    """
    a, b = abs(a), abs(b)
    count = (a * b.reciprocal()).floor()
    rest = _subtract_product(a, count, b)
    over, under = rest >= b, rest < 0.0
    count = over.choose(count + 1.0, under.choose(count - 1.0, count))
    rest = over.choose(rest - b, under.choose(rest + b, rest))
    rest = (abs(rest) > b).choose(0.0, rest)
    small = a < b
    return small.choose(0.0, count), small.choose(a, rest)


def _fmod(a: Number, b: Number) -> Number:
    return _divide_whole(a, b)[1].with_sign_of(a)


def _remainder(a: Number, b: Number) -> Number:
    rest = _fmod(a, b)
    return ((rest < 0.0) & (b > 0.0) | (rest > 0.0) & (b < 0.0)).choose(rest + b, rest)


def _floor_divide(a: Number, b: Number) -> Number:
    count, rest = _divide_whole(a, b)
    opposite = (a < 0.0) ^ (b < 0.0)
    down = (rest > 0.0).choose(-1.0 - count, -count)
    whole = abs(a).equals(math.inf).choose(math.nan, opposite.choose(down, count))
    return b.equals(0.0).choose(a * b.reciprocal(), whole)


def _divide_integers(a: Number, b: Number) -> tuple[Number, Number, Number]:
    """Return the quotient rounded towards zero, the remainder, and 1 where the quotient rounded down is one less.

    Both profiles have the shift that finds a sign; only one has comparisons of integers.
    """
    count = Number(a.b, tosa.intdiv(a.b, a.value, b.value))
    rest = a - count * b
    below = _find_sign(b) * _find_sign(0 - rest) + (1 - _find_sign(b)) * _find_sign(rest)
    return count, rest, below


def _find_sign(x: Number) -> Number:
    """Return 1 for a negative integer, 0 for any other."""
    return Number(x.b, tosa.logical_right_shift(x.b, x.value, x.constant(31).value))


def _fmod_integers(a: Number, b: Number) -> Number:
    return a - Number(a.b, tosa.intdiv(a.b, a.value, b.value)) * b


def _remainder_integers(a: Number, b: Number) -> Number:
    _, rest, below = _divide_integers(a, b)
    return rest + below * b


def _floor_divide_integers(a: Number, b: Number) -> Number:
    count, _, below = _divide_integers(a, b)
    return count - below


def _trunc_divide_integers(a: Number, b: Number) -> Number:
    return Number(a.b, tosa.intdiv(a.b, a.value, b.value))


_Formula = Callable[[Number, Number], Number]


def _lower(lo: Lowering, real: _Formula, whole: _Formula, a: Operand, b: Operand) -> Tensor:
    """Build a division of floats, or of plain int32 tensors."""
    x, y = elementwise.match_operands(lo, a, b)
    if x.q is not None or y.q is not None or x.is_float:
        return combine(lo, real, x, y)
    return arith.build_binary(lo, lambda b, u, v: whole(Number(b, u), Number(b, v)).value, x, y)


def _check_integers(lo: Lowering, a: Arguments) -> str:
    operands = [a["self"], a["other"]]
    integers = any(isinstance(t, Tensor) and t.q is None and not t.is_float for t in operands)
    return f"it is of {' and '.join(map(describe, operands))}" if integers else ""


_INTEGERS = Constraint(
    "integers are not divided, only quantized tensors by a number or by each other",
    _check_integers,
    "use an Ethos-U85, or divide float tensors, which are quantized",
    lambda target: not target.divides_integers,
)


def _samples(run: Callable[[Any, Any], Any], *more: Sample) -> list[Sample]:
    """List samples of a division that rounds; the divisors of integers are never zero."""

    def divides(target: Target) -> bool:
        return target.divides_integers

    return [
        call(run, f32(64), f32(64, low=0.5, high=2.0)),
        call(run, f32(3, 17, 4, 4, low=-9.0, high=9.0), f32(1, 17, 1, 1, low=-4.0, high=-1.0)),
        call(run, f32(5, 1), f32(1, 6, low=0.75, high=2.0)),
        call(lambda x: run(x, 0.375), f32(3, 64)),
        call(lambda x: run(x, -2), f32(1, 5, 2, 2, 3, low=-9.0, high=9.0)),
        call(lambda x: run(x, torch.tensor(0.7)), f32(2, 5)),
        call(run, f32(3, 300, low=-40.0, high=40.0), f32(3, 300, low=0.1, high=3.0), flavors=("FP",)),
        call(run, i32(3, 64), i32(3, 64, low=1, high=9), targets=divides),
        call(run, i32(3, 64), i32(1, 64, low=-9, high=-1), targets=divides),
        call(lambda x: run(x, 7), i32(2, 3, 5), targets=divides),
        call(lambda x: run(x, -4), i32(2, 3, 5), flavors=("FP",)),
        *more,
    ]


def _round_quotient(aten: Aten[T], self: T | float, other: T | float, how: str) -> T:
    return aten(f"{how}.default", aten("div.Tensor", self, other))


def _decompose_mode(aten: Aten[T], self: T, other: T | float, rounding_mode: str | None) -> T | None:
    if is_number(aten, other):
        return None
    if rounding_mode is None:
        return aten("div.Tensor", self, other)
    return _round_quotient(aten, self, other, rounding_mode)


def _divide_by(mode: str | None) -> Callable[[Any, Any], Any]:
    return lambda x, y: torch.div(x, y, rounding_mode=mode)


@op(
    "div_mode",
    *with_inplace(*(f"{name}.{kind}_mode" for name in ("div", "divide") for kind in ("Tensor", "Scalar"))),
    pointwise=True,
    decompose=_decompose_mode,
    constraints=[_INTEGERS],
    samples=lambda: [
        *_samples(_divide_by("floor")),
        *_samples(_divide_by("trunc")),
        call(_divide_by(None), f32(3, 17), f32(17, low=0.5, high=2.0)),
        call(lambda x: torch.div(x, 0.3, rounding_mode=None), f32(2, 5)),
        call(lambda x, y: torch.divide(x, y, rounding_mode="floor"), f32(2, 5), f32(2, 5, low=0.5, high=2.0)),
        call(lambda x: (x * 1.0).div_(0.5, rounding_mode="trunc"), f32(2, 5)),
    ],
)
def div_mode(lo: Lowering, self: Operand, other: Operand, rounding_mode: str | None) -> Tensor:
    if rounding_mode is None:
        return div(lo, self, other)
    if rounding_mode == "floor":
        return _lower(lo, _floor_divide, _floor_divide_integers, self, other)
    return _lower(lo, lambda a, b: _divide(a, b).trunc(), _trunc_divide_integers, self, other)


def _decompose_floor(aten: Aten[T], self: T, other: T | float) -> T | None:
    return None if is_number(aten, other) else _round_quotient(aten, self, other, "floor")


@op(
    "floor_divide",
    "floor_divide.default",
    "floor_divide.Scalar",
    "floor_divide_.Tensor",
    "floor_divide_.Scalar",
    pointwise=True,
    decompose=_decompose_floor,
    constraints=[_INTEGERS],
    samples=lambda: _samples(
        lambda x, y: x // y,
        call(lambda x, y: torch.ops.aten.floor_divide_(x * 1.0, y), f32(2, 5), f32(2, 5, low=0.5, high=2.0)),
    ),
)
def floor_divide(lo: Lowering, self: Operand, other: Operand) -> Tensor:
    return _lower(lo, _floor_divide, _floor_divide_integers, self, other)


def _decompose_rest(how: str) -> Callable[[Aten[T], T | float, T | float], T | None]:
    """Subtract the product of the rounded quotient and the divisor."""

    def decompose(aten: Aten[T], self: T | float, other: T | float) -> T | None:
        if is_number(aten, other) or is_number(aten, self):
            return None
        return aten("sub.Tensor", self, aten("mul.Tensor", _round_quotient(aten, self, other, how), other))

    return decompose


@op(
    "remainder",
    *with_inplace("remainder.Tensor", "remainder.Scalar"),
    "remainder.Scalar_Tensor",
    pointwise=True,
    decompose=_decompose_rest("floor"),
    constraints=[_INTEGERS],
    samples=lambda: _samples(
        lambda x, y: x % y,
        call(lambda x: 3.0 % x, f32(2, 5, low=0.5, high=2.0)),
        call(lambda x, y: (x * 1.0).remainder_(y), f32(2, 5), f32(2, 5, low=0.5, high=2.0)),
    ),
)
def remainder(lo: Lowering, self: Operand, other: Operand) -> Tensor:
    return _lower(lo, _remainder, _remainder_integers, self, other)


@op(
    "fmod",
    *with_inplace("fmod.Tensor", "fmod.Scalar"),
    pointwise=True,
    decompose=_decompose_rest("trunc"),
    constraints=[_INTEGERS],
    samples=lambda: _samples(
        lambda x, y: torch.fmod(x, y),
        call(lambda x, y: (x * 1.0).fmod_(y), f32(2, 5), f32(2, 5, low=0.5, high=2.0)),
    ),
)
def fmod(lo: Lowering, self: Operand, other: Operand) -> Tensor:
    return _lower(lo, _fmod, _fmod_integers, self, other)


@op(
    "round",
    *with_inplace("round.default", "round.decimals"),
    "special_round.default",
    pointwise=True,
    computes_int16=True,
    computes_in_float32=True,
    samples=lambda: [
        call(lambda x: x.round(), f32(64, low=-9.0, high=9.0)),
        call(lambda x: (x * 4.0).floor().mul(0.5).round(), f32(3, 17, 4, 4)),
        call(lambda x: torch.round(x, decimals=1), f32(1, 2, 3, 2, 2)),
        call(lambda x: torch.round(x, decimals=-1), f32(3, 5, low=-90.0, high=90.0)),
        call(lambda x: torch.special.round(x, decimals=2), f32(3, 5)),
        call(lambda x: torch.round_(x * 3.0, decimals=1), f32(3, 5)),
    ],
)
def round(lo: Lowering, self: Tensor, decimals: int = 0) -> Tensor:
    if is_int16(self):
        return rounding.round_to_even(lo, self, 10.0**decimals)

    def formula(x: Number) -> Number:
        unit = x.constant(10.0 ** abs(decimals))
        if decimals > 0:
            return _divide((x * unit).round(), unit)
        return _divide(x, unit).round() * unit if decimals < 0 else x.round()

    return apply(lo, formula, self)
