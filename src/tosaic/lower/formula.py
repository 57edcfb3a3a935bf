"""Formulas on the elements of TOSA tensors, written with Python's operators: `1.0 - x * x`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Value
from tosaic.lower import arithmetic as arith
from tosaic.lower import elementwise
from tosaic.lower.arguments import Operand, unary
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Stored, Tensor

_Binary: TypeAlias = Callable[[Builder, Value, Value], Value]


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A tensor of float32 or int32 in a formula. The other operand of an operator is a tensor or a Python number."""

    b: Builder
    value: Value

    def constant(self, number: float) -> Number:
        """Make a constant that broadcasts over this tensor."""
        return Number(self.b, self.b.number(number, self.value, self.value.dtype))

    def _number(self, other: Number | float) -> Number:
        return other if isinstance(other, Number) else self.constant(other)

    def _build(self, op: _Binary, x: Number | float, y: Number | float) -> Number:
        return Number(self.b, op(self.b, self._number(x).value, self._number(y).value))

    def _compare(self, op: _Binary, x: Number | float, y: Number | float) -> Truth:
        return Truth(self.b, op(self.b, self._number(x).value, self._number(y).value))

    def __add__(self, other: Number | float) -> Number:
        return self._build(tosa.add, self, other)

    def __radd__(self, other: float) -> Number:
        return self._build(tosa.add, other, self)

    def __sub__(self, other: Number | float) -> Number:
        return self._build(tosa.sub, self, other)

    def __rsub__(self, other: float) -> Number:
        return self._build(tosa.sub, other, self)

    def __mul__(self, other: Number | float) -> Number:
        return self._build(lambda b, x, y: tosa.mul(b, x, y), self, other)

    def __rmul__(self, other: float) -> Number:
        return self._build(lambda b, x, y: tosa.mul(b, x, y), other, self)

    def __neg__(self) -> Number:
        return Number(self.b, tosa.negate(self.b, self.value))

    def __abs__(self) -> Number:
        return Number(self.b, tosa.abs(self.b, self.value))

    def __gt__(self, other: Number | float) -> Truth:
        return self._compare(tosa.greater, self, other)

    def __lt__(self, other: Number | float) -> Truth:
        return self._compare(tosa.greater, other, self)

    def __ge__(self, other: Number | float) -> Truth:
        return self._compare(tosa.greater_equal, self, other)

    def equals(self, other: Number | float) -> Truth:
        """Compare; NaN equals nothing, not even itself."""
        return self._compare(tosa.equal, self, other)

    def is_nan(self) -> Truth:
        """Tell where it is not a number."""
        return ~self.equals(self)

    def is_negative(self) -> Truth:
        """Tell where it has a minus sign, also before a zero, whose reciprocal is -inf."""
        return (self < 0.0) | (self.reciprocal() < 0.0)

    def clamp(self, low: float, high: float) -> Number:
        """Limit to low..high; NaN stays."""
        return Number(self.b, tosa.clamp(self.b, self.value, low, high))

    def reciprocal(self) -> Number:
        """Divide one by it."""
        return Number(self.b, tosa.reciprocal(self.b, self.value))

    def rsqrt(self) -> Number:
        """Divide one by its square root."""
        return Number(self.b, tosa.rsqrt(self.b, self.value))

    def sqrt(self) -> Number:
        """Take the square root. POW would be undefined for negative numbers, and x * rsqrt(x) is NaN at 0."""
        return self.rsqrt().reciprocal()

    def exp(self) -> Number:
        """Raise e to it."""
        return Number(self.b, tosa.exp(self.b, self.value))

    def log(self) -> Number:
        """Take the natural logarithm."""
        return Number(self.b, tosa.log(self.b, self.value))

    def floor(self) -> Number:
        """Round down."""
        return Number(self.b, tosa.floor(self.b, self.value))

    def trunc(self) -> Number:
        """Round towards zero."""
        return (self >= 0.0).choose(self.floor(), Number(self.b, tosa.ceil(self.b, self.value)))

    def round(self) -> Number:
        """Round to the nearest integer, and a half to the even one."""
        below = self.floor()
        rest = self - below
        odd = below - 2.0 * (0.5 * below).floor()
        up = (rest > 0.5) | (rest.equals(0.5) & (odd > 0.0))
        return up.choose(below + 1.0, below)

    def with_sign_of(self, other: Number) -> Number:
        """Negate where the other number is negative."""
        return (other < 0.0).choose(-self, self)

    def polynomial(self, coefficients: Sequence[float]) -> Number:
        """Evaluate c[0] + c[1] x + c[2] x**2 + ..."""
        *lower, result = (self.constant(c) for c in coefficients)
        for coefficient in reversed(lower):
            result = result * self + coefficient
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """A tensor of booleans in a formula."""

    b: Builder
    value: Value

    def __and__(self, other: Truth) -> Truth:
        return Truth(self.b, tosa.logical_and(self.b, self.value, other.value))

    def __or__(self, other: Truth) -> Truth:
        return Truth(self.b, tosa.logical_or(self.b, self.value, other.value))

    def __xor__(self, other: Truth) -> Truth:
        return Truth(self.b, tosa.logical_xor(self.b, self.value, other.value))

    def __invert__(self) -> Truth:
        return Truth(self.b, tosa.logical_not(self.b, self.value))

    def choose(self, yes: Number | float, no: Number | float) -> Number:
        """Choose `yes` where it is true, `no` elsewhere; numbers become float32."""
        values = [n.value if isinstance(n, Number) else self.b.number(n, self.value, DType.F32) for n in (yes, no)]
        return Number(self.b, tosa.select(self.b, self.value, values[0], values[1]))


def apply(lo: Lowering, formula: Callable[[Number], Number | Truth], x: Tensor) -> Stored:
    """Build a formula of one float tensor."""
    if x.q is None and not x.is_float:
        raise Unsupported(f"its input is {x.dtype.torch_name}", "cast it to float32")
    return unary(lo, lambda b, v: formula(Number(b, v)).value, x)


def combine(lo: Lowering, formula: Callable[[Number, Number], Number | Truth], a: Operand, b: Operand) -> Stored:
    """Build a formula of two float tensors, which are broadcast to one shape; one may be a Python number."""
    x, y = elementwise.match_operands(lo, a, b)
    if x.q is not None or y.q is not None:
        raise Unsupported(
            "a function of two quantized tensors has no integer form",
            "quantize with Tosaic's quantizer, which decomposes it before calibration",
        )
    if not x.is_float:
        raise Unsupported(f"its operands are {x.dtype.torch_name}", "cast them to float32")
    return arith.build_binary(lo, lambda b, u, v: formula(Number(b, u), Number(b, v)).value, x, y)
