"""Arithmetic on elements: add, sub, mul, minimum, maximum, neg, abs and the functions of one number."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import NUMPY, RANGES, DType, Value
from tosaic.ir.qparams import QParams, accumulator, quantize
from tosaic.lower import arithmetic as arith
from tosaic.lower import elementwise, powers, rounding
from tosaic.lower.arguments import Operand, first_tensor, operand, unary
from tosaic.lower.constraints import describe
from tosaic.lower.forms import binop, unop
from tosaic.lower.formula import Number
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, Fields, op, with_inplace
from tosaic.lower.registry import add as add_record
from tosaic.lower.samples import Sample, call, f32, i8, i16, i32, torch
from tosaic.lower.tensor import Const, Stored, Tensor, is_int16, with_value


def _quantize_constant(t: Tensor, dtype: DType) -> Tensor:
    """Quantize a float constant with its own qparams, as the operand of a quantized tensor."""
    if not (isinstance(t, Const) and t.q is None and t.is_float):
        return t
    peak = float(np.max(np.abs(t.real()), initial=0.0)) or 1.0
    most = RANGES[dtype][1]
    q = QParams((peak / most,), (0,), dtype, -most, most)
    return Const(quantize(t.real().astype(np.float32), q).astype(NUMPY[dtype]), dtype, q)


def _pair(lo: Lowering, a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    x, y = elementwise.match_operands(lo, a, b)
    if x.q is not None or y.q is not None:
        wide = any(t.q is not None and t.dtype is DType.I16 for t in (x, y))
        dtype = DType.I16 if wide else DType.I8
        x, y = _quantize_constant(x, dtype), _quantize_constant(y, dtype)
    return elementwise.promote(lo, x, y)


def _samples_binary(name: str) -> Callable[[], list[Sample]]:
    def samples() -> list[Sample]:
        def run(x: Any, y: Any) -> Any:
            return getattr(torch, name)(x, y)

        cases = [
            call(run, f32(4), f32(4)),
            call(run, f32(1, 3, 8, 8), f32(1, 3, 8, 8)),
            call(run, f32(3, 17, 4, 5), f32(1, 17, 1, 1)),
            call(run, f32(5, 1), f32(1, 6)),
            call(run, f32(2, 3, 4), f32(4)),
            call(run, f32(2, 3, 4), f32(1)),
            call(run, f32(1, 64, 2, 2, 3), f32(1, 64, 2, 2, 3)),
            call(run, f32(3, 4), f32(3, 4, low=-20.0, high=0.5)),
            call(lambda x: run(x, 1.5), f32(2, 5)),
            call(lambda x: run(x, x), f32(2, 5)),
            call(run, i32(3, 5), i32(3, 5)),
            call(run, i8(3, 5), i8(3, 5)),
            call(run, i16(3, 5, low=-(2**15), high=2**15), i16(1, 5)),
            call(run, i8(3, 5), i32(3, 1)),
        ]
        return cases

    return samples


def _samples_add() -> list[Sample]:
    return [
        *_samples_binary("add")(),
        call(lambda x, y: torch.add(x, y, alpha=2.0), f32(3, 4), f32(3, 4)),
        call(lambda x, y: torch.add(x, y, alpha=-0.5), f32(3, 4), f32(3, 4)),
        call(lambda x, y: torch.ops.aten.add_(x * 1.0, y), f32(3, 4), f32(3, 4)),
        call(lambda x: x + x, i32(5)),
        call(lambda x: torch.add(x, 3, alpha=2), i32(5)),
        call(lambda x, y, z: x * y + y * z, f32(1, 5, 4, 4), f32(1, 5, 4, 4), f32(1, 1, 4, 4)),
        call(lambda x, y: (x * y).add(x.sigmoid() * y, alpha=0.5), f32(3, 17), f32(3, 17, low=-30.0, high=4.0)),
    ]


@binop(
    "add",
    is_sum=True,
    in_norm="added",
    computes_int16=True,
    samples=_samples_add,
)
def add(lo: Lowering, self: Operand, other: Operand, alpha: float = 1) -> Tensor:
    x, y = _pair(lo, self, other)
    power = powers.add(lo, x, y) if alpha == 1 else None
    return arith.add(lo, x, y, alpha=alpha) if power is None else power


@binop(
    "sub",
    is_sum=True,
    computes_int16=True,
    samples=lambda: [
        *_samples_binary("sub")(),
        call(lambda x, y: torch.sub(x, y, alpha=2.0), f32(3, 4), f32(3, 4)),
        call(lambda x: torch.sub(x, 3, alpha=2), i32(5)),
        call(lambda x, y: x * y - y * x.tanh(), f32(2, 3, 4), f32(2, 3, 4)),
    ],
)
def sub(lo: Lowering, self: Operand, other: Operand, alpha: float = 1) -> Tensor:
    return arith.add(lo, *_pair(lo, self, other), alpha=alpha, subtract=True)


@binop(
    "rsub",
    inplace=False,
    computes_int16=True,
    samples=lambda: [
        *_samples_binary("rsub")(),
        call(lambda x, y: torch.rsub(x, y, alpha=-2.0), f32(3, 4), f32(3, 4)),
        call(lambda x: 3 - x, i32(5)),
        call(lambda x: torch.rsub(x, 3, alpha=2), i32(1, 64)),
    ],
)
def rsub(lo: Lowering, self: Operand, other: Operand, alpha: float = 1) -> Tensor:
    x, y = _pair(lo, other, self)
    return arith.add(lo, x, y, alpha=alpha, subtract=True)


def _samples_extreme(name: str) -> list[Sample]:
    return [
        *_samples_binary(name)()[:-6],
        *_samples_binary(name)()[-3:],
        call(lambda x: getattr(torch, name)(x, torch.full((1, 5), 0.5)), f32(2, 5)),
        call(lambda x: getattr(torch, name)(x, x * 0.5), f32(2, 5)),
        call(lambda x, y: getattr(torch, name[:3])(x, y), f32(1, 3, 5), f32(3, 1)),
        call(getattr(torch, name), i32(3, 5), i32(3, 5)),
    ]


@op(
    "maximum",
    "maximum.default",
    "max.other",
    pointwise=True,
    computes_int16=True,
    samples=lambda: _samples_extreme("maximum"),
)
def maximum(lo: Lowering, self: Operand, other: Operand) -> Tensor:
    return elementwise.take_extreme(lo, self, other, lambda b, x, y: tosa.maximum(b, x, y))


@op(
    "minimum",
    "minimum.default",
    "min.other",
    pointwise=True,
    computes_int16=True,
    samples=lambda: _samples_extreme("minimum"),
)
def minimum(lo: Lowering, self: Operand, other: Operand) -> Tensor:
    return elementwise.take_extreme(lo, self, other, lambda b, x, y: tosa.minimum(b, x, y))


@binop(
    "mul",
    is_product=True,
    in_norm="multiplied",
    reads_int16=True,
    computes_int16=True,
    samples=_samples_binary("mul"),
)
def mul(lo: Lowering, self: Operand, other: Operand) -> Tensor:
    x, y = elementwise.match_operands(lo, self, other)
    if isinstance(y, Const) and y.size == 1 and isinstance(x, Stored) and x.is_accumulator:
        factor = float(y.real().reshape(-1)[0])
        if factor > 0:
            return arith.scaled(x, factor)
    return arith.multiply(lo, *_pair(lo, x, y))


def _samples_neg() -> list[Sample]:
    return [
        call(lambda x: -x, f32(4)),
        call(lambda x: -x, f32(3, 17, 2, 2)),
        call(lambda x: -x, i32(2, 3)),
        call(lambda x: -x, i8(64)),
    ]


def _samples_abs() -> list[Sample]:
    return [
        call(lambda x: x.abs(), f32(4)),
        call(lambda x: x.abs(), f32(3, 17, 2, 2, low=-30.0, high=2.0)),
        call(lambda x, y: (x - y).abs(), f32(1, 64), f32(3, 64)),
        call(lambda x: x.abs(), i32(2, 3)),
        call(lambda x: x.abs(), i8(64)),
        call(lambda x: x.abs(), i16(2, 3)),
    ]


def _samples_unary(name: str, low: float, high: float) -> Callable[[], list[Sample]]:
    def samples() -> list[Sample]:
        def run(x: Any) -> Any:
            return getattr(torch, name)(x)

        return [
            call(run, f32(7, low=low, high=high)),
            call(run, f32(3, 17, 4, 4, low=low, high=high)),
            call(run, f32(1, 2, 3, 2, 2, low=low, high=high)),
        ]

    return samples


def _sqrt(b: Builder, v: Value) -> Value:
    return Number(b, v).sqrt().value


def _to_other_sign(name: str, build: Callable[[Builder, Value], Value], samples: Callable[[], list[Sample]]) -> None:
    """Register neg or abs: in int8 and int16 the lowest number is its own negative, and TOSA's operators saturate."""

    def lower(lo: Lowering, self: Tensor) -> Tensor:
        if is_int16(self):
            wide = lo.rescale(self.value, DType.I32, [1.0], self.qparams.zp)
            return with_value(self, build(lo.b, wide), accumulator((self.qparams.s,)))

        def built(b: Builder, value: Value) -> Value:
            if value.dtype not in (DType.I8, DType.I16):
                return build(b, value)
            return arith.wrap(lo, build(b, arith.to_int32(b, value)), value.dtype)

        return unary(lo, built, self)

    fields = Fields(pointwise=True, computes_int16=True, samples=samples)
    add_record(name, *with_inplace(f"{name}.default"), beside=samples, lower=lower, **fields)


_to_other_sign("neg", lambda b, v: tosa.negate(b, v), _samples_neg)
_to_other_sign("abs", tosa.abs, _samples_abs)
unop("exp", tosa.exp, _samples_unary("exp", -4.0, 3.0))
unop("log", tosa.log, _samples_unary("log", 0.05, 6.0))
unop("sqrt", _sqrt, _samples_unary("sqrt", 0.0, 9.0), is_steep=True, in_norm="rooted")
unop("rsqrt", tosa.rsqrt, _samples_unary("rsqrt", 0.1, 9.0), in_norm="rooted")
unop("reciprocal", tosa.reciprocal, _samples_unary("reciprocal", 0.25, 6.0))
unop("erf", tosa.erf, _samples_unary("erf", -3.0, 3.0))
unop("floor", tosa.floor, _samples_unary("floor", -9.0, 9.0), rounding.round_down)
unop("ceil", tosa.ceil, _samples_unary("ceil", -9.0, 9.0), rounding.round_up)
unop("sin", tosa.sin, _samples_unary("sin", -6.0, 6.0))
unop("cos", tosa.cos, _samples_unary("cos", -6.0, 6.0))


def _check_power(lo: Lowering, a: Arguments) -> str:
    like = a["self"] if isinstance(a["self"], Tensor) else a["exponent"]
    return _describe_power(a) if like.q is not None else ""


def _check_integer_power(lo: Lowering, a: Arguments) -> str:
    x, y = a["self"], a["exponent"]
    number = y.real().reshape(-1)[0] if isinstance(y, Const) and y.size == 1 else y
    like = x if isinstance(x, Tensor) else y
    if like.q is not None or like.is_float or isinstance(number, float):
        return ""
    short = isinstance(x, Tensor) and not isinstance(number, Tensor) and 0 < number <= _LONGEST_PRODUCT
    return "" if short else _describe_power(a)


def _describe_power(a: Arguments) -> str:
    return f"it is of {describe(a['self'])} and {describe(a['exponent'])}"


@op(
    "pow",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "pow_.Scalar",
    "pow_.Tensor",
    pointwise=True,
    in_norm="raised",
    constraints=[
        Constraint(
            "a power of integers has a constant exponent from 1 to 8",
            _check_integer_power,
            "use a constant exponent from 1 to 8",
        ),
        Constraint(
            "a power is a lookup table of one quantized tensor, or takes floats",
            _check_power,
            "use a constant exponent",
        ),
    ],
    samples=lambda: [
        call(lambda x: x.pow(2), f32(2, 5)),
        call(lambda x: x.pow(3), f32(2, 5)),
        call(lambda x: x**0.5, f32(1, 3, 4, 4, low=0.0, high=4.0)),
        call(lambda x: x**-1.5, f32(6, low=0.5, high=4.0)),
        call(lambda x: 2.0**x, f32(6)),
        call(lambda x: x**4, f32(3, 17)),
        call(lambda x: x**-3, f32(3, 4, low=-4.0, high=-0.5)),
        call(lambda x: x**2.3, f32(1, 5, low=0.0, high=3.0)),
        call(lambda x: x**13, f32(2, 5, low=-1.3, high=1.3)),
        call(lambda x: torch.ops.aten.pow_(x * 1.0, 3), f32(2, 5)),
        call(lambda x: 0.5**x, f32(6)),
        call(lambda x, y: x**y, f32(6, low=0.5, high=4.0), f32(6), flavors=("FP",)),
        call(lambda x, y: x ** y.floor(), f32(3, 1, low=-3.0, high=-0.5), f32(1, 5), flavors=("FP",)),
    ],
)
def pow(lo: Lowering, self: Operand, exponent: Operand) -> Tensor:
    like = first_tensor(self, exponent)
    x, y = operand(lo, self, like), operand(lo, exponent, like)
    if isinstance(y, Const) and y.size == 1:
        number = float(y.real().reshape(-1)[0])
        if number == 1.0:
            return x
        if (2.0 * number).is_integer() and 0.0 < abs(number) <= _LONGEST_PRODUCT:
            return unary(lo, lambda b, v: _multiply_roots(Number(b, v), number).value, x)
    if isinstance(x, Const) and x.size == 1 and math.log(max(base := float(x.real().reshape(-1)[0]), 1.0)) > 0.0:
        return unary(lo, lambda b, v: (math.log(base) * Number(b, v)).exp().value, y)
    return arith.build_binary(lo, lambda b, u, v: _raise(Number(b, u), Number(b, v)).value, x, y)


#: the largest exponent that is written as products
_LONGEST_PRODUCT = 8.0


def _multiply_roots(x: Number, exponent: float) -> Number:
    """Raise to a multiple of 0.5: by products, the square root and the reciprocal."""
    factors = [x.sqrt()] if abs(exponent) % 1.0 else []
    power, count = x, int(abs(exponent))
    while count:
        if count % 2:
            factors.append(power)
        count //= 2
        if count:
            power = power * power
    result = functools.reduce(operator.mul, factors)
    return result.reciprocal() if exponent < 0.0 else result


def _raise(x: Number, y: Number) -> Number:
    """Raise x to y. POW is defined for a positive base and finite numbers; logarithms find the other limits."""
    size = abs(x)
    usual = (size > 0.0) & (size < math.inf) & (abs(y) < math.inf)
    power = Number(x.b, tosa.pow(x.b, usual.choose(size, 1.0).value, usual.choose(y, 1.0).value))
    limit = size.equals(1.0).choose(1.0, (y * size.log()).exp())
    result = y.equals(0.0).choose(1.0, usual.choose(power, limit))
    even = (0.5 * y).floor().equals(0.5 * y)
    broken = size.equals(math.inf).choose(result, math.nan)
    below = y.floor().equals(y).choose(even.choose(result, -result), broken)
    return (x < 0.0).choose(below, result)
