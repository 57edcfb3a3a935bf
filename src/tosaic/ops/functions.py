"""Functions of one or two real numbers beyond those of TOSA: expm1, asin, sinh, erfinv, atan2, hypot ...

In float they are formulas, accurate to a few float32 steps; near zero those that vanish there are polynomials, because
a formula would cancel. The coefficients are minimax fits of the relative error. In int8 a function of one tensor is a
TABLE, and one of two tensors is decomposed before calibration into steps of small range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tosaic.ir import ops as tosa
from tosaic.lower import rounding
from tosaic.lower.arguments import Operand
from tosaic.lower.aten import Aten, T, is_number
from tosaic.lower.formula import Number, apply, combine
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import add, with_inplace
from tosaic.lower.samples import Sample, call, f32, torch
from tosaic.lower.tensor import Stored, Tensor, is_int16

_LN2, _PI = math.log(2.0), math.pi

#: expm1(x) / x for |x| < 0.5
_EXPM1 = (1.00000012, 0.499999821, 0.166659743, 0.0416687019, 0.00840768311, 0.00138888194)
#: sinh(x) / x by x**2 for |x| < 1
_SINH = (1.0, 0.166667342, 0.00832991209, 0.000203939897)
#: asinh(x) / x by x**2 for |x| < 0.5
_ASINH = (1.0, -0.166661412, 0.0748257712, -0.0425807722, 0.0199085958)
#: atanh(x) / x by x**2 for |x| < 1/3
_ATANH = (0.999999821, 0.333380014, 0.197947308, 0.171130255)
#: asin(x) / x by x**2 for |x| < 0.5
_ASIN = (1.00000012, 0.166651309, 0.0754715353, 0.0396778956, 0.0505920164)
#: atan(x) / x by x**2 for |x| < 1
_ATAN = (
    *(0.999999881, -0.333319902, 0.199697241, -0.140194803),
    *(0.099142909, -0.0594863668, 0.0242523849, -0.00469327066),
)
#: erfinv(x) / x by w - 2.5, where w = -log(1 - x**2) < 5
_ERFINV_CENTER = (
    *(1.50140917, 0.246641427, -0.00417625858, -0.00125463144),
    *(0.000217336026, -4.09419954e-06, -3.18588354e-06, 3.15633343e-07),
)
#: erfinv(x) / x by sqrt(w) - 3 for larger w
_ERFINV_TAIL = (2.83297801, 1.00167739, 0.0094018206, -0.00766733661, 0.00593971414, -0.0035418896, 0.000994484173)


def _near_zero(x: Number, limit: float, coefficients: Sequence[float], elsewhere: Number) -> Number:
    """Evaluate an odd function by a polynomial below a limit."""
    return (abs(x) < limit).choose(x * (x * x).polynomial(coefficients), elsewhere)


def _expm1(x: Number) -> Number:
    return (abs(x) < 0.5).choose(x * x.polynomial(_EXPM1), x.exp() - 1.0)


def _log1p(x: Number) -> Number:
    """Compute log(1 + x); near zero it is 2 atanh(x / (2 + x))."""
    ratio = x * (2.0 + x).reciprocal()
    near = (ratio + ratio) * (ratio * ratio).polynomial(_ATANH)
    return (abs(x) < 0.5).choose(near, (1.0 + x).log())


def _halves(x: Number) -> tuple[Number, Number]:
    """Compute exp(x) / 2 and exp(-x) / 2 as products, which overflow no earlier than sinh and cosh do."""
    up, down = (0.5 * x).exp(), (-0.5 * x).exp()
    return (0.5 * up) * up, (0.5 * down) * down


def _sinh(x: Number) -> Number:
    up, down = _halves(x)
    return _near_zero(x, 1.0, _SINH, up - down)


def _cosh(x: Number) -> Number:
    up, down = _halves(x)
    return up + down


def _asinh(x: Number) -> Number:
    """Compute log(a + sqrt(a**2 + 1)) with no square that overflows."""
    size = abs(x)
    inverse = size.reciprocal()
    half = 0.5 + 0.5 * (1.0 + inverse * inverse).sqrt()
    return _near_zero(x, 0.5, _ASINH, ((size * half).log() + _LN2).with_sign_of(x))


def _acosh(x: Number) -> Number:
    """Compute log(x + sqrt(x**2 - 1)); a product of two roots is NaN everywhere below 1."""
    root = ((x - 1.0).rsqrt() * (x + 1.0).rsqrt()).reciprocal()
    return (0.5 * x + 0.5 * root).log() + _LN2


def _atanh(x: Number) -> Number:
    return _near_zero(x, 1.0 / 3.0, _ATANH, 0.5 * ((1.0 + x).log() - (1.0 - x).log()))


def _tan(x: Number) -> Number:
    return Number(x.b, tosa.sin(x.b, x.value)) * Number(x.b, tosa.cos(x.b, x.value)).reciprocal()


def _asin(x: Number) -> Number:
    """Compute by a polynomial up to 0.5, and above by asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2))."""
    size = abs(x)
    outer = size > 0.5
    square = outer.choose(0.5 - 0.5 * size, size * size)
    angle = outer.choose(square.sqrt(), size) * square.polynomial(_ASIN)
    return outer.choose(0.5 * _PI - 2.0 * angle, angle).with_sign_of(x)


def _acos(x: Number) -> Number:
    return 0.5 * _PI - _asin(x)


def _atan(x: Number) -> Number:
    """Compute by a polynomial up to 1, and above by atan(a) = pi/2 - atan(1 / a)."""
    size = abs(x)
    outer = size > 1.0
    slope = outer.choose(size.reciprocal(), size)
    angle = slope * (slope * slope).polynomial(_ATAN)
    return outer.choose(0.5 * _PI - angle, angle).with_sign_of(x)


def _erfinv(x: Number) -> Number:
    w = -((1.0 - x) * (1.0 + x)).log()
    tail = (w.sqrt() - 3.0).polynomial(_ERFINV_TAIL)
    return x * (w < 5.0).choose((w - 2.5).polynomial(_ERFINV_CENTER), tail)


def _erfc(x: Number) -> Number:
    return 1.0 - Number(x.b, tosa.erf(x.b, x.value))


def _exp2(x: Number) -> Number:
    # POW is undefined for infinite numbers.
    return (_LN2 * x).exp()


def _sign(x: Number) -> Number:
    return (x > 0.0).choose(1.0, (x < 0.0).choose(-1.0, 0.0))


def _call(name: str) -> Callable[..., Any]:
    """Return a call of an ATen operator for a sample, by the name of its overload."""
    packet, _, variant = name.partition(".")
    return lambda *operands: getattr(getattr(torch.ops.aten, packet), variant or "default")(*operands)


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of one number: its formula, a part of its domain for samples, other names of the operator.

    `int16` is its lowering for quantized values of 16 bits, if that is better than a table.
    """

    formula: Callable[[Number], Number]
    low: float
    high: float
    aliases: tuple[str, ...] = ()
    int16: Callable[[Lowering, Stored], Stored] | None = None

    def register(self, name: str) -> None:
        def lower(lo: Lowering, self: Tensor) -> Tensor:
            return int16(lo, self) if int16 is not None and is_int16(self) else apply(lo, formula, self)

        formula, int16 = self.formula, self.int16
        overloads = [f"{n}.default" for n in (name, *self.aliases)]
        inplace = [o for o in overloads if not o.startswith("special_")]
        add(
            name,
            *dict.fromkeys((*with_inplace(*inplace), *overloads)),
            beside=_call,
            lower=lower,
            pointwise=True,
            computes_int16=int16 is not None,
            computes_in_float32=True,
            samples=lambda: self._list_samples(name),
        )

    def _list_samples(self, name: str) -> list[Sample]:
        # The grid of a quantized input reaches half a step beyond the range.
        margin = 0.02 * (self.high - self.low)
        low, high = self.low + margin, self.high - margin
        return [
            call(_call(name), f32(64, low=low, high=high)),
            call(_call(name), f32(3, 17, 4, 4, low=low, high=high)),
            call(_call(name), f32(1, 2, 3, 2, 2, low=0.5 * (low + high), high=high)),
            call(lambda x: _call(f"{name}_")(x * 1.0), f32(1, 3, low=low, high=high)),
            *(call(_call(alias), f32(3, 5, low=low, high=high)) for alias in self.aliases),
            call(_call(name), f32(3, 300, low=self.low, high=self.high), flavors=("FP",)),
        ]


#: Functions that are infinite at the end of their domain are sampled up to a point inside.
_FUNCTIONS = {
    "expm1": _Function(_expm1, -6.0, 3.0, ("special_expm1",)),
    "log1p": _Function(_log1p, -0.98, 6.0, ("special_log1p",)),
    "log2": _Function(lambda x: x.log() * (1.0 / _LN2), 0.05, 6.0),
    "log10": _Function(lambda x: x.log() * (1.0 / math.log(10.0)), 0.05, 6.0),
    "exp2": _Function(_exp2, -6.0, 4.0, ("special_exp2",)),
    "tan": _Function(_tan, -1.4, 1.4),
    "sinh": _Function(_sinh, -4.0, 4.0),
    "cosh": _Function(_cosh, -4.0, 4.0),
    "asin": _Function(_asin, -1.0, 1.0, ("arcsin",)),
    "acos": _Function(_acos, -1.0, 1.0, ("arccos",)),
    "atan": _Function(_atan, -9.0, 9.0, ("arctan",)),
    "asinh": _Function(_asinh, -9.0, 9.0, ("arcsinh",)),
    "acosh": _Function(_acosh, 1.0, 9.0, ("arccosh",)),
    "atanh": _Function(_atanh, -0.98, 0.98, ("arctanh",)),
    "erfinv": _Function(_erfinv, -0.998, 0.998, ("special_erfinv",)),
    "erfc": _Function(_erfc, -3.0, 3.0, ("special_erfc",)),
    "sign": _Function(_sign, -3.0, 3.0, ("sgn",)),
    "trunc": _Function(Number.trunc, -9.0, 9.0, ("fix",), rounding.round_to_zero),
    "frac": _Function(lambda x: x - x.trunc(), -9.0, 9.0, int16=rounding.take_fraction),
}

for _name, _function in _FUNCTIONS.items():
    _function.register(_name)

#: Bounds of a quotient's operands: their reciprocals are neither zero nor infinite.
_TINY, _HUGE = 2.0**-126, 2.0**126


def _relate(x: Number, y: Number) -> tuple[Number, Number]:
    """Return the larger of two sizes, and the smaller divided by it; 0 / 0 is 0 and inf / inf is 1 here."""
    x, y = abs(x), abs(y)
    swapped = y > x
    large, small = swapped.choose(y, x), swapped.choose(x, y)
    return large, small.clamp(0.0, _HUGE) * large.clamp(_TINY, _HUGE).reciprocal()


def _atan2(y: Number, x: Number) -> Number:
    _, slope = _relate(y, x)
    angle = slope * (slope * slope).polynomial(_ATAN)
    angle = (abs(y) > abs(x)).choose(0.5 * _PI - angle, angle)
    angle = x.is_negative().choose(_PI - angle, angle)
    return y.is_negative().choose(-angle, angle)


def _hypot(x: Number, y: Number) -> Number:
    large, ratio = _relate(x, y)
    infinite = abs(x).equals(math.inf) | abs(y).equals(math.inf)
    return infinite.choose(math.inf, large * (1.0 + ratio * ratio).sqrt())


def _logaddexp(x: Number, y: Number) -> Number:
    """Compute max + log(1 + exp(-distance)); equal infinities have no distance."""
    rest = (1.0 + (-abs(x - y)).exp()).log()
    return x.equals(y).choose(x + _LN2, (x > y).choose(x, y) + rest)


def _logaddexp2(x: Number, y: Number) -> Number:
    rest = (1.0 + (-_LN2 * abs(x - y)).exp()).log() * (1.0 / _LN2)
    return x.equals(y).choose(x + 1.0, (x > y).choose(x, y) + rest)


def _product(log: Callable[[Number], Number]) -> Callable[[Number, Number], Number]:
    """Multiply by a logarithm: zero times an infinite or undefined one is zero, unless y is NaN."""
    return lambda x, y: (x.equals(0.0) & y.equals(y)).choose(0.0, x * log(y))


def _decompose_atan2(aten: Aten[T], self: T, other: T) -> T:
    """Write the angle by the difference of logarithms, because a quotient would have an unlimited range.

    atan(exp(d)) is pi/4 + atan(tanh(d / 2)).
    """
    sizes = [aten("clamp_min.default", aten("abs.default", v), 1e-6) for v in (self, other)]
    distance = aten("sub.Tensor", *(aten("log.default", size) for size in sizes))
    tilt = aten("atan.default", aten("tanh.default", aten("mul.Scalar", distance, 0.5)))
    across = aten("rsub.Scalar", tilt, 0.25 * _PI)
    right = aten("mul.Tensor", aten("sign.default", other), across)
    upper = aten("where.Scalar", aten("lt.Scalar", self, 0.0), -1.0, 1.0)
    return aten("mul.Tensor", upper, aten("rsub.Scalar", right, 0.5 * _PI))


def _decompose_hypot(aten: Aten[T], self: T, other: T) -> T:
    squares = [aten("pow.Tensor_Scalar", v, 2.0) for v in (self, other)]
    return aten("sqrt.default", aten("add.Tensor", *squares))


def _decompose_sum(power: str, log: str) -> Callable[[Aten[T], T, T], T]:
    def decompose(aten: Aten[T], self: T, other: T) -> T:
        distance = aten("abs.default", aten("sub.Tensor", self, other))
        rest = aten(log, aten("add.Scalar", aten(power, aten("neg.default", distance)), 1.0))
        return aten("add.Tensor", aten("maximum.default", self, other), rest)

    return decompose


def _decompose_product(log: str, least: float) -> Callable[[Aten[T], T, T], T]:
    """Multiply by a logarithm of at least some number, because zero has none."""

    def decompose(aten: Aten[T], self: T, other: T) -> T:
        return aten("mul.Tensor", self, aten(log, aten("clamp_min.default", other, least)))

    return decompose


@dataclass(frozen=True, slots=True)
class _Pair:
    """A function of two numbers: its formula, its int8 form, the range of its second operand, its overloads.

    `left` and `right` are the overloads whose first or second operand is a Python number.
    """

    formula: Callable[[Number, Number], Number]
    decompose: Callable[..., Any]
    low: float
    high: float
    overloads: tuple[str, ...]
    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()

    def register(self, name: str) -> None:
        def lower(lo: Lowering, self: Operand, other: Operand) -> Tensor:
            return combine(lo, formula, self, other)

        def decompose(aten: Aten[T], self: T | float, other: T | float) -> T | None:
            """Leave a function of one tensor and a number whole: it is a TABLE."""
            if any(is_number(aten, v) for v in (self, other)):
                return None
            return split(aten, self, other)

        formula, split = self.formula, self.decompose
        add(
            name,
            *(*self.overloads, *self.left, *self.right),
            beside=_call,
            lower=lower,
            decompose=decompose,
            pointwise=True,
            samples=self._list_samples,
        )

    def _list_samples(self) -> list[Sample]:
        low, high = self.low, self.high
        first, *others = map(_call, self.overloads)
        left, right = map(_call, self.left), map(_call, self.right)
        return [
            call(first, f32(64), f32(64, low=low, high=high)),
            call(first, f32(3, 17, 4, 4), f32(1, 17, 1, 1, low=low, high=high)),
            call(first, f32(5, 1), f32(1, 6, low=low, high=high)),
            call(first, f32(2, 3, 2, 3, 4, low=-20.0, high=0.5), f32(4, low=low, high=high)),
            call(lambda x: first(x, torch.tensor(0.75)), f32(2, 5)),
            *(call(lambda x, y, f=f: f(x * 1.0, y), f32(3, 4), f32(3, 4, low=low, high=high)) for f in others),
            *(call(lambda x, f=f: f(1.5, x), f32(2, 5, low=low, high=high)) for f in left),
            *(call(lambda x, f=f: f(x * 1.0, 1.5), f32(2, 5)) for f in right),
        ]


_PAIRS = {
    "atan2": _Pair(
        _atan2, _decompose_atan2, -2.0, 2.0, (*with_inplace("atan2.default"), *with_inplace("arctan2.default"))
    ),
    "hypot": _Pair(_hypot, _decompose_hypot, -2.0, 2.0, with_inplace("hypot.default")),
    "logaddexp": _Pair(_logaddexp, _decompose_sum("exp.default", "log.default"), -5.0, 5.0, ("logaddexp.default",)),
    "logaddexp2": _Pair(
        _logaddexp2, _decompose_sum("exp2.default", "log2.default"), -5.0, 5.0, ("logaddexp2.default",)
    ),
    "xlogy": _Pair(
        _product(Number.log),
        _decompose_product("log.default", 1e-6),
        0.05,
        4.0,
        (*with_inplace("xlogy.Tensor"), "special_xlogy.default"),
        ("xlogy.Scalar_Self", "special_xlogy.self_scalar"),
        (*with_inplace("xlogy.Scalar_Other"), "special_xlogy.other_scalar"),
    ),
    "xlog1py": _Pair(
        _product(_log1p),
        _decompose_product("log1p.default", 1e-6 - 1.0),
        -0.9,
        4.0,
        ("special_xlog1py.default",),
        ("special_xlog1py.self_scalar",),
        ("special_xlog1py.other_scalar",),
    ),
}

for _name, _pair in _PAIRS.items():
    _pair.register(_name)
