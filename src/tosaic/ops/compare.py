"""Comparisons, predicates of floats, logic, and the choice between two tensors: where, masked_fill."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import NUMPY, RANGES, Array, DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower import elementwise, movement
from tosaic.lower.arguments import Operand, first_tensor, operand
from tosaic.lower.aten import Aten, T
from tosaic.lower.booleans import Codes, Mask, combine, invert, is_table, of_sign, store_bool, to_condition
from tosaic.lower.constraints import describe
from tosaic.lower.forms import binop
from tosaic.lower.formula import Number, Truth, apply
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, composite, op
from tosaic.lower.samples import Sample, call, f32, i8, i16, i32, torch, with_booleans
from tosaic.lower.tensor import Const, Stored, Tensor, is_int16, with_value

Relation: TypeAlias = Callable[[Builder, Value, Value], Value]


def _find_common_scale(lo: Lowering, scales: Sequence[float], *operands: Tensor) -> float:
    """Return the scale for comparing numbers: as much finer than the coarser one as RESCALE can widen its values."""
    if all(t.dtype is not DType.I16 for t in operands):
        return max(scales) / (1 << 19)
    # Without booleans, the difference is rescaled too.
    return max(scales) / (1 << (14 if lo.target.has_booleans else 12))


def _make_comparable(lo: Lowering, a: Operand, b: Operand) -> tuple[Value, Value, Stored]:
    """Convert two operands to comparable values; also return the view of the result."""
    x, y = elementwise.match_operands(lo, a, b)
    scales = [t.q.s for t in (x, y) if t.q is not None]
    if not scales:
        x, y = elementwise.promote(lo, x, y)
        (u, v), view = lo.align(x, y)
        return arith.to_int32(lo.b, u), arith.to_int32(lo.b, v), view
    unit = scales[0] if len(set(scales)) == 1 and len(scales) == 2 else _find_common_scale(lo, scales, x, y)
    most = 2**31 - 1 if DType.I16 in (x.dtype, y.dtype) and lo.target.has_booleans else 2**28
    x, y = _quantize_constant(lo, x, unit, most), _quantize_constant(lo, y, unit, most)
    (u, v), view = lo.align(x, y)
    wide = [_widen(lo, w, t, unit) for w, t in ((u, x), (v, y))]
    return wide[0], wide[1], view


def _quantize_constant(lo: Lowering, t: Tensor, unit: float, most: int) -> Tensor:
    """Quantize a float constant to int32 at a scale; leave quantized values as they are."""
    if t.q is not None or not isinstance(t, Const):
        return lo.require_quantized(t)
    # The widened numbers are at most 2**27 where there are no booleans: this keeps order, and differences stay small.
    steps = np.clip(np.rint(t.real() / unit), -most, most)
    return Const(steps.astype(np.int32), DType.I32)


def _widen(lo: Lowering, value: Value, t: Tensor, unit: float) -> Value:
    return value if t.q is None else lo.rescale(value, DType.I32, [t.q.s / unit], t.q.zp)


def _samples_compare(name: str) -> list[Sample]:
    def run(x: Any, y: Any) -> Any:
        return getattr(torch, name)(x, y)

    return [
        call(lambda x, y: torch.where(run(x, y), x, 0.25 * y), f32(3, 4), f32(3, 4)),
        call(run, f32(3, 4), f32(3, 4), targets=with_booleans),
        call(run, f32(1, 17, 3, 3), f32(1, 17, 1, 1, low=-20.0, high=1.0), targets=with_booleans),
        call(run, i32(3, 5, low=-2, high=2), i32(1, 5, low=-2, high=2), targets=with_booleans),
        call(lambda x: run(x, 1), i32(64, low=-2, high=2), targets=with_booleans),
        call(lambda x: run(x, 0.5), f32(3, 5), targets=with_booleans),
        call(run, i8(3, 5, low=-2, high=2), i16(1, 5, low=-2, high=2), targets=with_booleans),
        call(lambda x: torch.where(run(x, 0.5), x, 0.25 * x), f32(3, 4)),
        call(lambda x: torch.where(run(torch.floor(x), -1.0), 1.0, x * x), f32(1, 3, 4, 4)),
    ]


#: what a relation says of the sign of the difference of its operands
_SIGNS: dict[str, Callable[[Codes], Mask]] = {
    "eq": lambda d: d == 0,
    "ne": lambda d: d != 0,
    "gt": lambda d: d > 0,
    "ge": lambda d: d >= 0,
    "lt": lambda d: d < 0,
    "le": lambda d: d <= 0,
}


def _check_difference(lo: Lowering, a: Arguments) -> str:
    """Find operands whose difference may not fit 32 bits."""
    x, y = a["self"], a["other"]
    computed = [t for t in (x, y) if isinstance(t, Stored)]
    small = all(t.dtype in (DType.I8, DType.I16) for t in computed)
    return "" if small or _find_number(x, y) is not None else f"it takes {describe(x)} and {describe(y)}"


def _find_number(x: Operand, y: Operand) -> int | None:
    """Find the integer that plain int32 numbers are compared with."""
    if not (isinstance(x, Stored) and x.q is None and x.dtype is DType.I32):
        return None
    if isinstance(y, Const) and y.size == 1 and not y.is_float:
        return int(y.array.reshape(-1)[0])
    return y if isinstance(y, int) else None


def _compare(name: str, relation: Relation) -> Callable[[Lowering, Operand, Operand], Tensor]:
    def lower(lo: Lowering, self: Operand, other: Operand) -> Tensor:
        number = _find_number(self, other)
        if isinstance(self, Stored) and number is not None and not lo.target.has_booleans:
            return _compare_int32(lo, self, number, _SIGNS[name])
        x, y, view = _make_comparable(lo, self, other)
        if lo.target.has_booleans:
            return with_value(view, relation(lo.b, x, y))
        # Ethos-U55 fuses a RESCALE with the difference, which saturates.
        return of_sign(lo, view, lo.rescale(tosa.sub(lo.b, x, y), DType.I8, [1.0]), _SIGNS[name])

    constraint = Constraint(
        "a comparison takes numbers of 8 or 16 bits, or int32 numbers and a constant",
        _check_difference,
        "use an Ethos-U85, or cast both to float32, which is quantized",
        lambda target: not target.has_booleans,
    )
    binop(name, inplace=False, constraints=[constraint], samples=lambda: _samples_compare(name))(lower)
    return lower


def _compare_int32(lo: Lowering, x: Stored, number: int, holds: Callable[[Codes], Mask]) -> Tensor:
    """Compare with a number: what is left of the difference is one step up or down, which fits 32 bits."""
    value, (least, most) = x.value, RANGES[DType.I32]

    def constant(n: int) -> Value:
        return lo.constant(np.full((1,) * value.rank, min(max(n, least), most)), DType.I32)

    near = tosa.minimum(lo.b, tosa.maximum(lo.b, value, constant(number - 1)), constant(number + 1))
    return of_sign(lo, x, lo.rescale(tosa.sub(lo.b, near, constant(number)), DType.I8, [1.0]), holds)


_compare("eq", tosa.equal)
_compare("ne", lambda b, x, y: tosa.logical_not(b, tosa.equal(b, x, y)))
_compare("gt", tosa.greater)
_compare("ge", tosa.greater_equal)
_is_less = _compare("lt", lambda b, x, y: tosa.greater(b, y, x))
_compare("le", lambda b, x, y: tosa.greater_equal(b, y, x))


@composite(
    "isclose",
    samples=lambda: [
        call(lambda x, y: torch.where(torch.isclose(x, y, 0.5, 0.25), x, y), f32(3, 17), f32(3, 17)),
        call(lambda x, y: torch.where(x.isclose(y, atol=0.5), x, -x), f32(1, 3, 4), f32(3, 4)),
        call(lambda x, y: x.isclose(y, atol=1.0, equal_nan=True), f32(2, 64), f32(64), flavors=()),
    ],
)
def isclose(
    aten: Aten[T], self: T, other: T, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> T | None:
    """Compare the distance of two numbers with a part of the second one; infinite numbers are close only if equal."""
    if equal_nan:
        return None
    distance = aten("abs.default", aten("sub.Tensor", self, other))
    bound = aten("add.Scalar", aten("mul.Scalar", aten("abs.default", other), rtol), atol)
    near = aten("logical_and.default", aten("le.Tensor", distance, bound), aten("isfinite.default", distance))
    return aten("logical_or.default", near, aten("eq.Tensor", self, other))


def _logic(name: str) -> None:
    def lower(lo: Lowering, self: Operand, other: Operand) -> Tensor:
        like = first_tensor(self, other)
        x, y = (to_condition(lo, operand(lo, t, like)) for t in (self, other))
        return combine(lo, name.removeprefix("logical_"), x, y)

    def samples() -> list[Sample]:
        def run(x: Any, y: Any) -> Any:
            return getattr(torch, name)(x, y)

        return [
            call(lambda x, y: torch.where(run(x > y, x <= 0.5), x, y), f32(3, 17), f32(3, 17)),
            call(lambda x, y: run(x > y, x <= 0.5), f32(3, 17), f32(3, 17), targets=with_booleans),
            call(lambda x: torch.where(run(x > 0.5, x > 1.0), x, -x), f32(1, 3, 4, 4)),
            call(lambda x, y: run(x > 0.0, y > 0.0), f32(1, 64), f32(3, 64), targets=with_booleans),
            call(lambda x, y: torch.where(run(x.floor(), y > 0.0), x, y), f32(1, 64), f32(3, 64)),
            call(run, i32(3, 5, low=-2, high=2), i32(1, 5, low=-2, high=2), targets=with_booleans),
            call(run, i8(3, 5, low=-2, high=2), i8(3, 5, low=-2, high=2), targets=with_booleans),
        ]

    op(name, pointwise=True, samples=samples)(lower)


_logic("logical_and")
_logic("logical_or")
_logic("logical_xor")


@op(
    "logical_not",
    pointwise=True,
    samples=lambda: [
        call(lambda x, y: torch.where(torch.logical_not(x > y), x, y), f32(3, 4), f32(3, 4)),
        call(lambda x, y: torch.logical_not(x > y), f32(3, 4), f32(3, 4), targets=with_booleans),
        call(lambda x: torch.where(torch.logical_not(x.floor()), 1.0, x), f32(1, 64)),
        call(lambda x: torch.logical_not(x), i32(3, 4, low=-2, high=2), targets=with_booleans),
        call(lambda x: torch.logical_not(x), i16(3, 4, low=-2, high=2), targets=with_booleans),
    ],
)
def logical_not(lo: Lowering, self: Tensor) -> Tensor:
    return invert(lo, to_condition(lo, self))


def _predicate(name: str, formula: Callable[[Number], Truth]) -> None:
    def lower(lo: Lowering, self: Tensor) -> Tensor:
        # Of quantized values, only their sign is not known: a step before has folded the other conditions.
        return _is_less(lo, self, 0.0) if is_int16(self) else apply(lo, formula, self)

    def run(x: Any) -> Any:
        return getattr(torch, name)(x)

    def samples() -> list[Sample]:
        return [
            call(lambda x: torch.where(run(x), 0.5 * x, x), f32(3, 17)),
            call(lambda x: torch.where(run(x), x, -x), f32(1, 3, 4, 4)),
            call(lambda x: run(torch.log(x)), f32(3, 64), flavors=("FP",)),
            call(lambda x: run(torch.relu(x).reciprocal() - 1.0), f32(2, 3, 2, 2, 3), flavors=("FP",)),
            call(lambda x: run(-torch.relu(x).reciprocal()), f32(5), flavors=("FP",)),
        ]

    op(name, pointwise=True, samples=samples)(lower)


_predicate("isnan", Number.is_nan)
_predicate("isinf", lambda x: abs(x).equals(math.inf))
_predicate("isposinf", lambda x: x.equals(math.inf))
_predicate("isneginf", lambda x: x.equals(-math.inf))
_predicate("isfinite", lambda x: abs(x) < math.inf)
_predicate("signbit", Number.is_negative)


def _is_known(condition: Tensor) -> bool:
    return isinstance(condition, Const) or is_table(condition)


def _check_choice(lo: Lowering, a: Arguments) -> str:
    branches = [a[name] for name in ("self", "other", "value") if name in a]
    if not any(isinstance(b, Tensor) and b.q is not None for b in branches):
        return f"it is between {' and '.join(map(describe, branches))}"
    return "" if _is_known(a["condition"] if "condition" in a else a["mask"]) else "the condition is a boolean tensor"


_KNOWN_CONDITION = Constraint(
    "a select takes quantized tensors and a condition that is constant or computed on the NPU",
    _check_choice,
    "use an Ethos-U85, or select from float32 tensors, which are quantized",
    lambda target: not target.has_select,
)


def _choose(lo: Lowering, condition: Tensor, yes: Operand, no: Operand) -> Tensor:
    """Choose `yes` where the condition holds, `no` elsewhere."""
    branches = [b for b in (yes, no) if isinstance(b, Tensor) and not isinstance(b, Const)]
    if any(b.q is not None for b in branches) or (not branches and lo.next_q is not None and not lo.has_float):
        q = lo.out_q()
        codes = [movement.requantize(lo, _as_constant(b, condition), q) for b in (yes, no)]
        if not lo.target.has_select:
            return _select_by_minmax(lo, condition, codes[0], codes[1], q)
        return _select(lo, store_bool(lo, condition), codes[0], codes[1], q)
    like = branches[0] if branches else _as_constant(no if isinstance(no, float) else yes, condition)
    return _select(lo, store_bool(lo, condition), operand(lo, yes, like), operand(lo, no, like), None)


def _as_constant(value: Operand, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    plain = isinstance(value, int) and not isinstance(value, bool)
    array = np.full((1,) * like.rank, value, np.int32 if plain else np.float32)
    return Const(array, DType.I32 if plain else DType.F32)


def _select(lo: Lowering, condition: Tensor, yes: Tensor, no: Tensor, q: QParams | None) -> Tensor:
    if yes.dtype is not no.dtype:
        raise Unsupported(
            f"it mixes {yes.dtype.torch_name} and {no.dtype.torch_name}", "cast both to float32 or to int32 before"
        )
    (c, a, b), view = lo.align(condition, yes, no)
    return with_value(view, tosa.select(lo.b, c, a, b), q)


def _select_by_minmax(lo: Lowering, condition: Tensor, yes: Tensor, no: Tensor, q: QParams) -> Tensor:
    """Compute max(min(yes, top or bottom), min(no, bottom or top)): what is not chosen is the lowest number."""
    parts = [_mask_to_lowest(lo, condition, branch, keep) for branch, keep in ((yes, True), (no, False))]
    return replace(_take_extreme_code(lo, tosa.maximum, parts[0], parts[1]), q=q)


def _mask_to_lowest(lo: Lowering, condition: Tensor, branch: Tensor, keep: bool) -> Tensor:
    """Take a branch where the condition equals `keep`, the lowest number elsewhere."""
    number = branch.array if isinstance(branch, Const) and branch.size == 1 and branch.dtype is DType.I8 else None
    top = 127 if number is None else int(number.reshape(-1)[0])

    def find_levels(known: Array) -> Array:
        return np.where(known.astype(np.bool_) == keep, top, -128).astype(np.int8)

    if isinstance(condition, Const):
        wide = find_levels(condition.array).astype(np.int64) * (1 if branch.dtype is DType.I8 else _TO_INT16)
        level = Const(np.clip(wide, *RANGES[branch.dtype]).astype(NUMPY[branch.dtype]), branch.dtype)
    else:
        assert condition.lut is not None, "_KNOWN_CONDITION refuses a condition that is computed"
        value = tosa.table(lo.b, condition.value, find_levels(condition.lut))
        level = with_value(
            condition, value if branch.dtype is DType.I8 else lo.rescale(value, DType.I16, [float(_TO_INT16)])
        )
    return level if number is not None else _take_extreme_code(lo, tosa.minimum, branch, level)


#: a factor by which the highest and lowest int8 become those of int16, which saturates
_TO_INT16 = 259


def _take_extreme_code(lo: Lowering, build: Callable[..., Value], x: Tensor, y: Tensor) -> Tensor:
    """Compute MAXIMUM or MINIMUM of numbers of 8 or 16 bits, which TOSA has in 32 bits only."""
    (u, v), view = lo.align(replace(x, q=None), replace(y, q=None))
    wide = [lo.rescale(w, DType.I32, [1.0]) for w in (u, v)]
    return with_value(view, lo.rescale(build(lo.b, wide[0], wide[1]), x.dtype, [1.0]))


def _make_mask(*shape: int) -> Any:
    """Make a constant mask for samples."""
    return (torch.arange(int(np.prod(shape))) % 3 == 0).reshape(shape)


@op(
    "where",
    "where.self",
    "where.Scalar",
    "where.ScalarSelf",
    "where.ScalarOther",
    pointwise=True,
    constraints=[_KNOWN_CONDITION],
    samples=lambda: [
        call(lambda x: torch.where(x > 0, x, 0.1 * x), f32(3, 17)),
        call(lambda x: torch.where(x > 0, 1.0, 0.5) * x, f32(1, 3, 4, 4)),
        call(lambda x, y: torch.where(x > 0.5, y, 0.5), f32(3, 4), f32(3, 4)),
        call(lambda x, y: torch.where(x <= 0.5, -1.0, y), f32(1, 64, 1, 1), f32(3, 64, 2, 2, low=-20.0, high=1.0)),
        call(lambda x, y, z: torch.where(x > 0, y, z), f32(2, 5), f32(2, 5), f32(2, 5)),
        call(lambda x, y: torch.where(_make_mask(4, 5), x, y), f32(3, 4, 5), f32(4, 5)),
        call(lambda x: torch.where(_make_mask(6), x, 0.0), f32(2, 6)),
        call(lambda x, y: torch.where(x > y, x, y * 2.0), f32(3, 4), f32(3, 4)),
        call(lambda x, y: torch.where(x > y, 1.0, -1.0) * x, f32(3, 4), f32(3, 4)),
        call(lambda x, y: torch.where(x > 3, x, y), i32(3, 4), i32(3, 4), targets=with_booleans),
        call(lambda x: torch.where(x > 0.5, 1.0, -2.0), f32(3, 17)),
        call(lambda x: torch.where(x > 3, 1, -2).to(torch.int32), i32(3, 17), targets=with_booleans),
    ],
)
def where(lo: Lowering, condition: Tensor, self: Operand, other: Operand) -> Tensor:
    return _choose(lo, condition, self, other)


@op(
    "masked_fill",
    "masked_fill.Scalar",
    "masked_fill.Tensor",
    pointwise=True,
    constraints=[_KNOWN_CONDITION],
    samples=lambda: [
        call(lambda x: x.masked_fill(x > 1.0, 0.25), f32(3, 17)),
        call(lambda x: x.masked_fill(_make_mask(4, 4), -1.0), f32(1, 3, 4, 4)),
        call(lambda x: x.masked_fill(_make_mask(64), torch.tensor(0.5)), f32(3, 64)),
        call(lambda x, y: x.masked_fill(y < 0.0, -2.0), f32(3, 4), f32(1, 4)),
        call(lambda x, y: x.masked_fill(x < y, 0.0), f32(3, 4), f32(3, 4)),
    ],
)
def masked_fill(lo: Lowering, self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return _choose(lo, mask, value, self)
