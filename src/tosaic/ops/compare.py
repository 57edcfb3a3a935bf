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
from tosaic.ir.graph import Array, DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower import elementwise, movement
from tosaic.lower.arguments import operand, unary
from tosaic.lower.constraints import describe
from tosaic.lower.forms import binop
from tosaic.lower.formula import Number, Truth, apply
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op
from tosaic.lower.samples import Sample, call, f32, i32, torch, with_booleans
from tosaic.lower.tensor import Const, Stored, Tensor, with_value

Relation: TypeAlias = Callable[[Builder, Value, Value], Value]


def _find_common_scale(scales: Sequence[float], *operands: Tensor) -> float:
    """Return the scale for comparing numbers: as much finer than the coarser one as RESCALE can widen its values."""
    return max(scales) / (1 << (14 if any(t.dtype is DType.I16 for t in operands) else 19))


def _describe_operands(lo: Lowering, a: Arguments) -> str:
    return f"it takes {' and '.join(describe(value) for value in a.values())}"


_NO_BOOLEANS = Constraint(
    "there are no booleans and no bitwise operators, only lookup tables of one quantized tensor",
    _describe_operands,
    "use an Ethos-U85, or compare with a number instead of a tensor",
    lambda target: not target.has_booleans,
)


def _make_comparable(lo: Lowering, a: Any, b: Any) -> tuple[Value, Value, Stored]:
    """Convert two operands to comparable values; also return the view of the result."""
    x, y = elementwise.match_operands(lo, a, b)
    scales = [t.q.s for t in (x, y) if t.q is not None]
    if not scales:
        if x.dtype is not y.dtype:
            raise Unsupported(
                f"it compares {x.dtype.torch_name} with {y.dtype.torch_name}", "cast both operands to one dtype"
            )
        (u, v), view = lo.align(x, y)
        return u, v, view
    unit = scales[0] if len(set(scales)) == 1 and len(scales) == 2 else _find_common_scale(scales, x, y)
    x, y = _quantize_constant(lo, x, unit), _quantize_constant(lo, y, unit)
    (u, v), view = lo.align(x, y)
    wide = [_widen(lo, w, t, unit) for w, t in ((u, x), (v, y))]
    return wide[0], wide[1], view


def _quantize_constant(lo: Lowering, t: Tensor, unit: float) -> Tensor:
    """Quantize a float constant to int32 at a scale; leave quantized values as they are."""
    if t.q is not None or not isinstance(t, Const):
        return lo.codes(t)
    steps = np.clip(np.rint(t.real() / unit), -(2**31) + 1, 2**31 - 1)
    return Const(steps.astype(np.int32), DType.I32)


def _widen(lo: Lowering, value: Value, t: Tensor, unit: float) -> Value:
    return value if t.q is None else lo.rescale(value, DType.I32, [t.q.s / unit], t.q.zp)


def _samples_compare(name: str) -> list[Sample]:
    def run(x: Any, y: Any) -> Any:
        return getattr(torch, name)(x, y)

    return [
        call(run, f32(3, 4), f32(3, 4), targets=with_booleans),
        call(run, f32(1, 17, 3, 3), f32(1, 17, 1, 1, low=-20.0, high=1.0), targets=with_booleans),
        call(run, i32(3, 5, low=-2, high=2), i32(1, 5, low=-2, high=2), targets=with_booleans),
        call(lambda x: run(x, 1), i32(64, low=-2, high=2), targets=with_booleans),
        call(lambda x: torch.where(run(x, 0.5), x, 0.25 * x), f32(3, 4)),
        call(lambda x: torch.where(run(torch.floor(x), -1.0), 1.0, x * x), f32(1, 3, 4, 4)),
    ]


def _compare(name: str, relation: Relation) -> None:
    def lower(lo: Lowering, self: Any, other: Any) -> Tensor:
        x, y, view = _make_comparable(lo, self, other)
        return with_value(view, relation(lo.b, x, y))

    binop(name, inplace=False, constraints=[_NO_BOOLEANS], samples=lambda: _samples_compare(name))(lower)


_compare("eq", tosa.equal)
_compare("ne", lambda b, x, y: tosa.logical_not(b, tosa.equal(b, x, y)))
_compare("gt", tosa.greater)
_compare("ge", tosa.greater_equal)
_compare("lt", lambda b, x, y: tosa.greater(b, y, x))
_compare("le", lambda b, x, y: tosa.greater_equal(b, y, x))


def _store_bool(lo: Lowering, t: Tensor) -> Tensor:
    """Return a stored tensor of booleans for one that is boolean or a pending table."""
    if isinstance(t, Stored) and t.lut is not None and t.lut.dtype == np.bool_:
        ones = tosa.table(lo.b, t.value, t.lut.astype(np.int8))
        return with_value(t, tosa.cast(lo.b, ones, DType.BOOL))
    if t.dtype is not DType.BOOL:
        raise Unsupported("it uses numbers as booleans", "compare the numbers with zero")
    return t


def _logic(name: str, overloads: tuple[str, ...], logical: Relation, bitwise: Relation | None = None) -> None:
    def lower(lo: Lowering, self: Any, other: Any) -> Tensor:
        like = self if isinstance(self, Tensor) else other
        x, y = operand(lo, self, like), operand(lo, other, like)
        if bitwise is not None and x.q is None and x.dtype is DType.I32:
            return arith.build_binary(lo, bitwise, x, y)
        return arith.build_binary(lo, logical, _store_bool(lo, x), _store_bool(lo, y))

    def samples() -> list[Sample]:
        def run(x: Any, y: Any) -> Any:
            return getattr(torch, name)(x, y)

        shared = [
            call(lambda x, y: run(x > y, x <= 0.5), f32(3, 17), f32(3, 17), targets=with_booleans),
            call(lambda x: torch.where(run(x > 0.5, x > 1.0), x, -x), f32(1, 3, 4, 4)),
            call(lambda x, y: run(x > 0.0, y > 0.0), f32(1, 64), f32(3, 64), targets=with_booleans),
        ]
        if bitwise is None:
            return shared
        return [
            *shared,
            call(run, i32(3, 5), i32(3, 5), targets=with_booleans),
            call(lambda x: run(x, 6), i32(4), targets=with_booleans),
        ]

    op(name, *overloads, pointwise=True, constraints=[_NO_BOOLEANS], samples=samples)(lower)


def _list_bitwise(name: str) -> tuple[str, ...]:
    """List the overloads of a bitwise operator: as a function, and as Python's operator."""
    return tuple(f"{form}.{kind}" for form in (f"bitwise_{name}", f"__{name}__") for kind in ("Tensor", "Scalar"))


_logic("logical_and", (), tosa.logical_and)
_logic("logical_or", (), tosa.logical_or)
_logic("logical_xor", (), tosa.logical_xor)
_logic("bitwise_and", _list_bitwise("and"), tosa.logical_and, tosa.bitwise_and)
_logic("bitwise_or", _list_bitwise("or"), tosa.logical_or, tosa.bitwise_or)
_logic("bitwise_xor", _list_bitwise("xor"), tosa.logical_xor, tosa.bitwise_xor)


@op(
    "logical_not",
    "logical_not.default",
    "bitwise_not.default",
    pointwise=True,
    constraints=[_NO_BOOLEANS],
    samples=lambda: [
        call(lambda x, y: torch.logical_not(x > y), f32(3, 4), f32(3, 4), targets=with_booleans),
        call(lambda x, y: ~(x > y), f32(1, 17), f32(3, 17), targets=with_booleans),
        call(lambda x: torch.where(~(x > 0.5), x, -x), f32(1, 64)),
        call(lambda x: ~x, i32(3, 4), targets=with_booleans),
    ],
)
def logical_not(lo: Lowering, self: Tensor) -> Tensor:
    if self.q is None and self.dtype is DType.I32:
        build: Callable[[Builder, Value], Value] = tosa.bitwise_not
        x = self
    else:
        build, x = tosa.logical_not, _store_bool(lo, self)
    return unary(lo, build, x)


def _predicate(name: str, formula: Callable[[Number], Truth]) -> None:
    def lower(lo: Lowering, self: Tensor) -> Tensor:
        return apply(lo, formula, self)

    def run(x: Any) -> Any:
        return getattr(torch, name)(x)

    def samples() -> list[Sample]:
        return [
            call(lambda x: torch.where(run(x), 0.5 * x, x), f32(3, 17)),
            call(lambda x: torch.where(run(x), x, -x), f32(1, 3, 4, 4)),
            call(lambda x: run(torch.log(x)), f32(3, 64), flavours=("FP",)),
            call(lambda x: run(torch.relu(x).reciprocal() - 1.0), f32(2, 3, 2, 2, 3), flavours=("FP",)),
            call(lambda x: run(-torch.relu(x).reciprocal()), f32(5), flavours=("FP",)),
        ]

    op(name, pointwise=True, constraints=[_NO_BOOLEANS], samples=samples)(lower)


_predicate("isnan", Number.is_nan)
_predicate("isinf", lambda x: abs(x).equals(math.inf))
_predicate("isposinf", lambda x: x.equals(math.inf))
_predicate("isneginf", lambda x: x.equals(-math.inf))
_predicate("isfinite", lambda x: abs(x) < math.inf)
_predicate("signbit", Number.is_negative)


def _is_known(condition: Tensor) -> bool:
    return isinstance(condition, Const) or condition.lut is not None


def _check_choice(lo: Lowering, a: Arguments) -> str:
    branches = [a[name] for name in ("self", "other", "value") if name in a]
    if not any(isinstance(b, Tensor) and b.q is not None for b in branches):
        return f"it is between {' and '.join(map(describe, branches))}"
    return "" if _is_known(a["condition"] if "condition" in a else a["mask"]) else "the condition is computed"


_KNOWN_CONDITION = Constraint(
    "a select takes quantized tensors and a condition that is constant or a comparison with a number",
    _check_choice,
    "use an Ethos-U85, or write the select as a sum of products",
    lambda target: not target.has_select,
)


def _choose(lo: Lowering, condition: Tensor, yes: Any, no: Any) -> Tensor:
    """Choose `yes` where the condition holds, `no` elsewhere."""
    branches = [b for b in (yes, no) if isinstance(b, Tensor) and not isinstance(b, Const)]
    if any(b.q is not None for b in branches) or (not branches and lo.next_q is not None and not lo.has_float):
        q = lo.out_q()
        codes = [movement.requantize(lo, _as_constant(b, condition), q) for b in (yes, no)]
        if not lo.target.has_select:
            return _select_by_minmax(lo, condition, codes[0], codes[1], q)
        return _select(lo, _store_bool(lo, condition), codes[0], codes[1], q)
    like = branches[0] if branches else _as_constant(yes, condition)
    return _select(lo, _store_bool(lo, condition), operand(lo, yes, like), operand(lo, no, like), None)


def _as_constant(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else Const(np.full((1,) * like.rank, value, np.float32), DType.F32)


def _select(lo: Lowering, condition: Tensor, yes: Tensor, no: Tensor, q: QParams | None) -> Tensor:
    if yes.dtype is not no.dtype:
        raise Unsupported(f"it mixes {yes.dtype.torch_name} and {no.dtype.torch_name}", "cast both to one dtype")
    (c, a, b), view = lo.align(condition, yes, no)
    return with_value(view, tosa.select(lo.b, c, a, b), q)


def _select_by_minmax(lo: Lowering, condition: Tensor, yes: Tensor, no: Tensor, q: QParams) -> Tensor:
    """Compute max(min(yes, top or bottom), min(no, bottom or top)): what is not chosen is the lowest int8."""
    parts = [_mask_to_lowest(lo, condition, branch, keep) for branch, keep in ((yes, True), (no, False))]
    return replace(_take_extreme_int8(lo, tosa.maximum, parts[0], parts[1]), q=q)


def _mask_to_lowest(lo: Lowering, condition: Tensor, branch: Tensor, keep: bool) -> Tensor:
    """Take a branch where the condition equals `keep`, the lowest int8 elsewhere."""
    number = branch.array if isinstance(branch, Const) and branch.size == 1 else None
    top = 127 if number is None else int(number.reshape(-1)[0])

    def find_levels(known: Array) -> Array:
        return np.where(known.astype(np.bool_) == keep, top, -128).astype(np.int8)

    if isinstance(condition, Const):
        level = Const(find_levels(condition.array), DType.I8)
    else:
        assert condition.lut is not None, "_KNOWN_CONDITION refuses a condition that is computed"
        level = with_value(condition, tosa.table(lo.b, condition.value, find_levels(condition.lut)))
    return level if number is not None else _take_extreme_int8(lo, tosa.minimum, branch, level)


def _take_extreme_int8(lo: Lowering, build: Callable[..., Value], x: Tensor, y: Tensor) -> Tensor:
    """Compute MAXIMUM or MINIMUM of int8 numbers, which TOSA has in 32 bits only."""
    (u, v), view = lo.align(replace(x, q=None), replace(y, q=None))
    wide = [lo.rescale(w, DType.I32, [1.0]) for w in (u, v)]
    return with_value(view, lo.rescale(build(lo.b, wide[0], wide[1]), DType.I8, [1.0]))


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
        call(lambda x, y: torch.where(x > y, x, y * 2.0), f32(3, 4), f32(3, 4), targets=with_booleans),
        call(lambda x, y: torch.where(x > y, 1.0, -1.0) * x, f32(3, 4), f32(3, 4), targets=with_booleans),
        call(lambda x, y: torch.where(x > 3, x, y), i32(3, 4), i32(3, 4), targets=with_booleans),
    ],
)
def where(lo: Lowering, condition: Tensor, self: Any, other: Any) -> Tensor:
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
        call(lambda x, y: x.masked_fill(x < y, 0.0), f32(3, 4), f32(3, 4), targets=with_booleans),
    ],
)
def masked_fill(lo: Lowering, self: Tensor, mask: Tensor, value: Any) -> Tensor:
    return _choose(lo, mask, value, self)
