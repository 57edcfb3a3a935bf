"""Comparisons, logic, and the choice between two tensors: where, masked_fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import Array, DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower.arguments import operand, unary
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Limit, op
from tosaic.lower.samples import NOT_U55, Sample, call, f32, i32, torch
from tosaic.lower.tensor import Const, Stored, Tensor, with_value
from tosaic.ops.shape import on_grid

Relation: TypeAlias = Callable[[Builder, Value, Value], Value]


def _finest(scales: Sequence[float], *operands: Tensor) -> float:
    """The grid on which numbers are compared: as much finer than the coarser one as RESCALE can widen its codes."""
    return max(scales) / (1 << (14 if any(t.dtype is DType.I16 for t in operands) else 19))


_NO_BOOLEANS = Limit(
    "Ethos-U55 and Ethos-U65 have no booleans and no bitwise operators, only tables of one quantized tensor",
    lambda lo, a: False,
    ("u55", "u65"),
    "use an Ethos-U85, or compare with a number instead of a tensor",
)


def _comparable(lo: Lowering, a: Any, b: Any) -> tuple[Value, Value, Stored]:
    """Two operands as numbers of one kind, and the view of the result."""
    like = a if isinstance(a, Tensor) and not (a.is_const and isinstance(b, Tensor)) else b
    x, y = operand(lo, a, like), operand(lo, b, like)
    scales = [t.q.s for t in (x, y) if t.q is not None]
    if not scales:
        if x.dtype is not y.dtype:
            raise Unsupported(
                f"it compares {x.dtype.torch_name} with {y.dtype.torch_name}", "cast both operands to one dtype"
            )
        (u, v), view = lo.align(x, y)
        return u, v, view
    unit = scales[0] if len(set(scales)) == 1 and len(scales) == 2 else _finest(scales, x, y)
    x, y = _on_scale(lo, x, unit), _on_scale(lo, y, unit)
    (u, v), view = lo.align(x, y)
    wide = [_widened(lo, w, t, unit) for w, t in ((u, x), (v, y))]
    return wide[0], wide[1], view


def _on_scale(lo: Lowering, t: Tensor, unit: float) -> Tensor:
    """A float constant becomes int32 numbers of a scale; codes stay as they are."""
    if t.q is not None or isinstance(t, Stored):
        return lo.codes(t)
    steps = np.clip(np.rint(t.real() / unit), -(2**31) + 1, 2**31 - 1)
    return Const(steps.astype(np.int32), DType.I32)


def _widened(lo: Lowering, value: Value, t: Tensor, unit: float) -> Value:
    return value if t.q is None else lo.rescale(value, DType.I32, [t.q.s / unit], t.q.zp)


def _samples_compare(name: str) -> list[Sample]:
    def run(x: Any, y: Any) -> Any:
        return getattr(torch, name)(x, y)

    return [
        call(run, f32(3, 4), f32(3, 4), targets=NOT_U55),
        call(run, f32(1, 17, 3, 3), f32(1, 17, 1, 1, low=-20.0, high=1.0), targets=NOT_U55),
        call(run, i32(3, 5, low=-2, high=2), i32(1, 5, low=-2, high=2), targets=NOT_U55),
        call(lambda x: run(x, 1), i32(64, low=-2, high=2), targets=NOT_U55),
        call(lambda x: torch.where(run(x, 0.5), x, 0.25 * x), f32(3, 4)),
        call(lambda x: torch.where(run(torch.floor(x), -1.0), 1.0, x * x), f32(1, 3, 4, 4)),
    ]


def _compare(name: str, relation: Relation) -> None:
    def lower(lo: Lowering, self: Any, other: Any) -> Tensor:
        x, y, view = _comparable(lo, self, other)
        return with_value(view, relation(lo.b, x, y))

    lower.__module__ = __name__
    op(
        name,
        f"aten.{name}.Tensor",
        f"aten.{name}.Scalar",
        pointwise=True,
        limits=[_NO_BOOLEANS],
        samples=lambda: _samples_compare(name),
    )(lower)


_compare("eq", tosa.equal)
_compare("ne", lambda b, x, y: tosa.logical_not(b, tosa.equal(b, x, y)))
_compare("gt", tosa.greater)
_compare("ge", tosa.greater_equal)
_compare("lt", lambda b, x, y: tosa.greater(b, y, x))
_compare("le", lambda b, x, y: tosa.greater_equal(b, y, x))


def _truth(lo: Lowering, t: Tensor) -> Tensor:
    """A stored tensor of booleans, where it was one or a pending table."""
    if isinstance(t, Stored) and t.lut is not None and t.lut.dtype == np.bool_:
        ones = tosa.table(lo.b, t.value, t.lut.astype(np.int8))
        return with_value(t, tosa.cast(lo.b, ones, DType.BOOL))
    if t.dtype is not DType.BOOL:
        raise Unsupported("it takes numbers for booleans", "compare the numbers with zero")
    return t


def _logic(name: str, others: tuple[str, ...], logical: Relation, bitwise: Relation | None) -> None:
    def lower(lo: Lowering, self: Any, other: Any) -> Tensor:
        like = self if isinstance(self, Tensor) else other
        x, y = operand(lo, self, like), operand(lo, other, like)
        if bitwise is not None and x.q is None and x.dtype is DType.I32:
            return arith.plain(lo, bitwise, x, y)
        return arith.plain(lo, logical, _truth(lo, x), _truth(lo, y))

    lower.__module__ = __name__
    function = name.removeprefix("aten.").split(".")[0]

    def samples() -> list[Sample]:
        def run(x: Any, y: Any) -> Any:
            return getattr(torch, function)(x, y)

        shared = [
            call(lambda x, y: run(x > y, x <= 0.5), f32(3, 17), f32(3, 17), targets=NOT_U55),
            call(lambda x: torch.where(run(x > 0.5, x > 1.0), x, -x), f32(1, 3, 4, 4)),
            call(lambda x, y: run(x > 0.0, y > 0.0), f32(1, 64), f32(3, 64), targets=NOT_U55),
        ]
        if bitwise is None:
            return shared
        return [
            *shared,
            call(run, i32(3, 5), i32(3, 5), targets=NOT_U55),
            call(lambda x: run(x, 6), i32(4), targets=NOT_U55),
        ]

    op(function, name, *others, pointwise=True, limits=[_NO_BOOLEANS], samples=samples)(lower)


_logic("aten.logical_and.default", (), tosa.logical_and, None)
_logic("aten.logical_or.default", (), tosa.logical_or, None)
_logic("aten.logical_xor.default", (), tosa.logical_xor, None)
_logic(
    "aten.bitwise_and.Tensor",
    ("aten.bitwise_and.Scalar", "aten.__and__.Tensor", "aten.__and__.Scalar"),
    tosa.logical_and,
    tosa.bitwise_and,
)
_logic(
    "aten.bitwise_or.Tensor",
    ("aten.bitwise_or.Scalar", "aten.__or__.Tensor", "aten.__or__.Scalar"),
    tosa.logical_or,
    tosa.bitwise_or,
)
_logic(
    "aten.bitwise_xor.Tensor",
    ("aten.bitwise_xor.Scalar", "aten.__xor__.Tensor", "aten.__xor__.Scalar"),
    tosa.logical_xor,
    tosa.bitwise_xor,
)


@op(
    "logical_not",
    "aten.logical_not.default",
    "aten.bitwise_not.default",
    pointwise=True,
    limits=[_NO_BOOLEANS],
    samples=lambda: [
        call(lambda x, y: torch.logical_not(x > y), f32(3, 4), f32(3, 4), targets=NOT_U55),
        call(lambda x, y: ~(x > y), f32(1, 17), f32(3, 17), targets=NOT_U55),
        call(lambda x: torch.where(~(x > 0.5), x, -x), f32(1, 64)),
        call(lambda x: ~x, i32(3, 4), targets=NOT_U55),
    ],
)
def logical_not(lo: Lowering, self: Tensor) -> Tensor:
    if self.q is None and self.dtype is DType.I32:
        build: Callable[[Builder, Value], Value] = tosa.bitwise_not
        x = self
    else:
        build, x = tosa.logical_not, _truth(lo, self)
    return unary(lo, build, x)


def _is_known(condition: Tensor) -> bool:
    return isinstance(condition, Const) or condition.lut is not None


def _can_choose(lo: Lowering, a: Mapping[str, Any]) -> bool:
    coded = any(isinstance(a.get(b), Tensor) and a[b].q is not None for b in ("self", "other", "value"))
    return coded and _is_known(a["condition"] if "condition" in a else a["mask"])


_KNOWN_CONDITION = Limit(
    "Ethos-U55 and Ethos-U65 choose between quantized tensors only by a constant, or by a comparison with a number",
    _can_choose,
    ("u55", "u65"),
    "use an Ethos-U85, or write the choice as a sum of products",
)


def _chosen(lo: Lowering, condition: Tensor, yes: Any, no: Any) -> Tensor:
    """`yes` where the condition holds, `no` elsewhere."""
    branches = [b for b in (yes, no) if isinstance(b, Tensor) and not b.is_const]
    if any(b.q is not None for b in branches) or (not branches and lo.next_q is not None and not lo.has_float):
        q = lo.out_q()
        codes = [on_grid(lo, _as_constant(b, condition), q) for b in (yes, no)]
        if lo.target.family in ("u55", "u65"):
            return _by_order(lo, condition, codes[0], codes[1], q)
        return _select(lo, _truth(lo, condition), codes[0], codes[1], q)
    like = branches[0] if branches else _as_constant(yes, condition)
    return _select(lo, _truth(lo, condition), operand(lo, yes, like), operand(lo, no, like), None)


def _as_constant(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else Const(np.full((1,) * like.rank, value, np.float32), DType.F32)


def _select(lo: Lowering, condition: Tensor, yes: Tensor, no: Tensor, q: QParams | None) -> Tensor:
    if yes.dtype is not no.dtype:
        raise Unsupported(f"it mixes {yes.dtype.torch_name} and {no.dtype.torch_name}", "cast both to one dtype")
    (c, a, b), view = lo.align(condition, yes, no)
    return with_value(view, tosa.select(lo.b, c, a, b), q)


def _by_order(lo: Lowering, condition: Tensor, yes: Tensor, no: Tensor, q: QParams) -> Tensor:
    """max(min(yes, top or bottom), min(no, bottom or top)) on codes: what is not chosen sinks to the bottom."""
    parts = [_sunk(lo, condition, branch, keep) for branch, keep in ((yes, True), (no, False))]
    return replace(_ordered(lo, tosa.maximum, parts[0], parts[1]), q=q)


def _sunk(lo: Lowering, condition: Tensor, branch: Tensor, keep: bool) -> Tensor:
    """A branch where the condition is as wanted, the lowest code elsewhere."""
    number = branch.array if isinstance(branch, Const) and branch.size == 1 else None
    top = 127 if number is None else int(number.reshape(-1)[0])

    def find_levels(known: Array) -> Array:
        return np.where(known.astype(np.bool_) == keep, top, -128).astype(np.int8)

    if isinstance(condition, Const):
        level = Const(find_levels(condition.array), DType.I8)
    else:
        assert condition.lut is not None, "_KNOWN_CONDITION refuses a condition that is computed"
        level = with_value(condition, tosa.table(lo.b, condition.value, find_levels(condition.lut)))
    return level if number is not None else _ordered(lo, tosa.minimum, branch, level)


def _ordered(lo: Lowering, build: Callable[..., Value], x: Tensor, y: Tensor) -> Tensor:
    """MAXIMUM or MINIMUM of int8 numbers, which TOSA has in 32 bits only."""
    (u, v), view = lo.align(replace(x, q=None), replace(y, q=None))
    wide = [lo.rescale(w, DType.I32, [1.0]) for w in (u, v)]
    return with_value(view, lo.rescale(build(lo.b, wide[0], wide[1]), DType.I8, [1.0]))


def _checkers(*shape: int) -> Any:
    """Used by samples: a constant mask."""
    return (torch.arange(int(np.prod(shape))) % 3 == 0).reshape(shape)


@op(
    "where",
    "aten.where.self",
    "aten.where.Scalar",
    "aten.where.ScalarSelf",
    "aten.where.ScalarOther",
    pointwise=True,
    limits=[_KNOWN_CONDITION],
    samples=lambda: [
        call(lambda x: torch.where(x > 0, x, 0.1 * x), f32(3, 17)),
        call(lambda x: torch.where(x > 0, 1.0, 0.5) * x, f32(1, 3, 4, 4)),
        call(lambda x, y: torch.where(x > 0.5, y, 0.5), f32(3, 4), f32(3, 4)),
        call(lambda x, y: torch.where(x <= 0.5, -1.0, y), f32(1, 64, 1, 1), f32(3, 64, 2, 2, low=-20.0, high=1.0)),
        call(lambda x, y, z: torch.where(x > 0, y, z), f32(2, 5), f32(2, 5), f32(2, 5)),
        call(lambda x, y: torch.where(_checkers(4, 5), x, y), f32(3, 4, 5), f32(4, 5)),
        call(lambda x: torch.where(_checkers(6), x, 0.0), f32(2, 6)),
        call(lambda x, y: torch.where(x > y, x, y * 2.0), f32(3, 4), f32(3, 4), targets=NOT_U55),
        call(lambda x, y: torch.where(x > y, 1.0, -1.0) * x, f32(3, 4), f32(3, 4), targets=NOT_U55),
        call(lambda x, y: torch.where(x > 3, x, y), i32(3, 4), i32(3, 4), targets=NOT_U55),
    ],
)
def where(lo: Lowering, condition: Tensor, self: Any, other: Any) -> Tensor:
    return _chosen(lo, condition, self, other)


@op(
    "masked_fill",
    "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor",
    pointwise=True,
    limits=[_KNOWN_CONDITION],
    samples=lambda: [
        call(lambda x: x.masked_fill(x > 1.0, 0.25), f32(3, 17)),
        call(lambda x: x.masked_fill(_checkers(4, 4), -1.0), f32(1, 3, 4, 4)),
        call(lambda x: x.masked_fill(_checkers(64), torch.tensor(0.5)), f32(3, 64)),
        call(lambda x, y: x.masked_fill(y < 0.0, -2.0), f32(3, 4), f32(1, 4)),
        call(lambda x, y: x.masked_fill(x < y, 0.0), f32(3, 4), f32(3, 4), targets=NOT_U55),
    ],
)
def masked_fill(lo: Lowering, self: Tensor, mask: Tensor, value: Any) -> Tensor:
    return _chosen(lo, mask, value, self)
