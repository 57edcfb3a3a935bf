"""Several of the largest or smallest numbers, in order: topk, sort, kthvalue, median."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tosaic.lower import movement
from tosaic.lower.arguments import keep_dims
from tosaic.lower.aten import Aten, T
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op
from tosaic.lower.samples import Sample, call, f32, i32, torch, with_booleans
from tosaic.lower.tensor import Stored, Tensor

#: Each number takes seven operators on the whole tensor.
_MOST = 32
#: a number and its position
Pair: TypeAlias = tuple[T, T]
#: how many numbers a call needs, for the arguments of its schema
Count = Callable[[Arguments], int]


def _count_length(x: Tensor, dim: int) -> int:
    return x.shape[dim] if x.shape else 1


def _limit(count: Count) -> Sequence[Constraint]:
    """Make the constraints of an operator that puts so many numbers in order."""

    def check_many(lo: Lowering, a: Arguments) -> str:
        return "" if count(a) <= _MOST else f"it is {count(a)}"

    def check_several(lo: Lowering, a: Arguments) -> str:
        return "" if count(a) == 1 else f"it is {count(a)}"

    return (
        Constraint(
            f"at most {_MOST} numbers of a dimension are put in order",
            check_many,
            "split the dimension, or put the numbers in order on the CPU",
        ),
        Constraint(
            "at most one number of a dimension is found, the largest or the smallest",
            check_several,
            "use an Ethos-U85, or find the numbers on the CPU",
            lambda target: not target.has_booleans,
        ),
    )


def _select(
    aten: Aten[T], x: T, count: int, dim: int, largest: bool, *, is_float: bool, keepdim: bool
) -> list[Pair[T]]:
    """Find the extremes of a dimension one after another, with their positions; of equal numbers the first comes first.

    A number that was found is replaced by one from the other end for the next search. Without `keepdim`, the last
    position has one dimension less.
    """
    best, other = ("amax", "amin") if largest else ("amin", "amax")
    shape = aten.shape(x)
    found = [_find_one(aten, x, dim, largest, True)]
    if count == 1:
        return found if keepdim else [_find_one(aten, x, dim, largest, False)]
    far = aten(f"{other}.default", x, [dim], True)
    line = [shape[dim] if i == dim % len(shape) else 1 for i in range(len(shape))]
    numbers, taken = aten.constant(np.arange(shape[dim], dtype=np.int32).reshape(line)), None
    while len(found) < count:
        picked = aten("eq.Tensor", aten.as_numbers(found[-1][1]), numbers)
        taken = picked if taken is None else aten("logical_or.default", taken, picked)
        value = aten(f"{best}.default", aten("where.self", taken, far, x), [dim], True)
        left = aten("logical_and.default", aten("eq.Tensor", x, value), aten("logical_not.default", taken))
        marks = aten("where.Scalar", left, 1.0, 0.0) if is_float else aten("to.dtype", left, torch.int8)
        found.append((value, aten("argmax.default", marks, dim, keepdim or len(found) + 1 < count)))
    return found


def _find_one(aten: Aten[T], x: T, dim: int, largest: bool, keepdim: bool) -> Pair[T]:
    """Find the largest or smallest number of a dimension, and its position."""
    place = aten("argmax.default" if largest else "argmin.default", x, dim, keepdim)
    value = aten("amax.default" if largest else "amin.default", x, [dim], keepdim) if aten.shape(x) else x
    return value, place


def _lower(lo: Lowering, x: Tensor, count: int, dim: int, largest: bool, keepdim: bool = True) -> list[Pair[Tensor]]:
    """Find the extremes of quantized values as integers, which have the order of what they represent."""
    from tosaic.lower.steps import LoweringAten

    codes = x if x.q is None else replace(lo.codes(x), q=None)
    found = _select(LoweringAten(lo), codes, count, dim, largest, is_float=codes.is_float, keepdim=keepdim)
    return [(_attach(value, x), place) for value, place in found]


def _attach(value: Tensor, x: Tensor) -> Tensor:
    return replace(value, q=x.q) if isinstance(value, Stored) else value


def _join(lo: Lowering, found: list[Pair[Tensor]], dim: int) -> tuple[Tensor, ...]:
    """Concatenate numbers, and their positions."""
    if len(found) == 1:
        return found[0]
    rank = found[0][0].rank
    return tuple(movement.concatenate(lo, list(parts), dim % rank) for parts in zip(*found, strict=True))


def _both(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Make a sample that returns numbers and positions."""

    def run(x: Any) -> Any:
        values, places = function(x, *args, **kwargs)
        return values, places.to(torch.int32)

    return run


def _first(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda x: function(x, *args, **kwargs)[0]


def _samples_topk() -> list[Sample]:
    return [
        call(lambda x: torch.topk(x, 1)[0], f32(3, 17)),
        call(_both(torch.topk, 1, 1), f32(1, 64, 3)),
        call(lambda x: torch.topk(x, 1, -2, largest=False, sorted=False)[0] * 2.0, f32(3, 4, 5)),
        call(_first(torch.topk, 3), f32(3, 17), targets=with_booleans),
        call(_both(torch.topk, 2, 1), f32(1, 64, 3), targets=with_booleans),
        call(_both(torch.topk, 4, -2, largest=False), f32(3, 4, 5), targets=with_booleans),
        call(_first(torch.topk, 2), i32(3, 5), targets=with_booleans),
    ]


def _decompose_topk(
    aten: Aten[T], self: T, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Pair[T] | None:
    return _find_one(aten, self, dim, largest, True) if k == 1 else None


@op(
    "topk",
    quant="share",
    decompose=_decompose_topk,
    constraints=_limit(lambda a: a["k"]),
    computes_in_float32=True,
    fits_int32=True,
    samples=_samples_topk,
)
def topk(
    lo: Lowering, self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, ...] | None:
    return None if k == 1 else _join(lo, _lower(lo, self, k, dim, largest), dim)


@op(
    "sort",
    "sort.default",
    "sort.stable",
    quant="share",
    constraints=_limit(lambda a: _count_length(a["self"], a["dim"])),
    computes_in_float32=True,
    fits_int32=True,
    samples=lambda: [
        call(_both(torch.sort), f32(3, 5), targets=with_booleans),
        call(_first(torch.sort, 1, True), f32(1, 9, 17), targets=with_booleans),
        call(_both(torch.sort, stable=True, dim=-2, descending=True), f32(1, 3, 4, 2), targets=with_booleans),
        call(_first(torch.sort, 1), f32(3, 1, 17)),
        call(lambda x: torch.sort(x)[0] * 2.0, f32()),
    ],
)
def sort(
    lo: Lowering, self: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, ...]:
    return _join(lo, _lower(lo, self, _count_length(self, dim), dim, descending), dim)


def _count_steps(size: int, k: int) -> tuple[int, bool]:
    """Return how many numbers are found until the k-th smallest one, and whether from the largest on."""
    behind = size - k + 1
    return min(k, behind), behind < k


def _decompose_kth(aten: Aten[T], self: T, k: int, dim: int = -1, keepdim: bool = False) -> Pair[T] | None:
    shape = aten.shape(self)
    count, largest = _count_steps(shape[dim] if shape else 1, k)
    return _find_one(aten, self, dim, largest, keepdim) if count == 1 else None


@op(
    "kthvalue",
    quant="share",
    decompose=_decompose_kth,
    constraints=_limit(lambda a: _count_steps(_count_length(a["self"], a["dim"]), a["k"])[0]),
    computes_in_float32=True,
    fits_int32=True,
    samples=lambda: [
        call(_both(torch.kthvalue, 1), f32(3, 17)),
        call(_both(torch.kthvalue, 64, 1, True), f32(1, 64, 3)),
        call(_both(torch.kthvalue, 3), f32(3, 17), targets=with_booleans),
        call(_first(torch.kthvalue, 2, 1, True), f32(1, 5, 4), targets=with_booleans),
        call(_first(torch.kthvalue, 16, 0), f32(17), targets=with_booleans),
    ],
)
def kthvalue(lo: Lowering, self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair[Tensor] | None:
    count, largest = _count_steps(_count_length(self, dim), k)
    if count == 1:
        return None
    value, place = _lower(lo, self, count, dim, largest, keepdim)[-1]
    return keep_dims(lo, value, [dim % self.rank], keepdim), place


def _find_middle(size: int) -> int:
    return (size + 1) // 2


def _decompose_median_dim(aten: Aten[T], self: T, dim: int, keepdim: bool = False) -> Pair[T] | None:
    shape = aten.shape(self)
    return _decompose_kth(aten, self, _find_middle(shape[dim] if shape else 1), dim, keepdim)


@op(
    "median_dim",
    "median.dim",
    quant="share",
    decompose=_decompose_median_dim,
    constraints=_limit(lambda a: _find_middle(_count_length(a["self"], a["dim"]))),
    computes_in_float32=True,
    fits_int32=True,
    samples=lambda: [
        call(_both(torch.median, 1), f32(3, 2, 17)),
        call(_first(torch.median, -1), f32(3, 9), targets=with_booleans),
        call(_first(torch.median, 1, True), f32(1, 6, 17), targets=with_booleans),
        call(_both(torch.median, 0), f32(5, 3, 4), targets=with_booleans),
    ],
)
def median_dim(lo: Lowering, self: Tensor, dim: int, keepdim: bool = False) -> Pair[Tensor] | None:
    return kthvalue(lo, self, _find_middle(_count_length(self, dim)), dim, keepdim)


def _decompose_median(aten: Aten[T], self: T) -> T | None:
    return aten("amin.default", self) if prod(aten.shape(self)) <= 2 else None


@op(
    "median",
    quant="share",
    decompose=_decompose_median,
    constraints=_limit(lambda a: _find_middle(a["self"].size)),
    computes_in_float32=True,
    samples=lambda: [
        call(lambda x: torch.median(x), f32(1, 2)),
        call(lambda x: torch.median(x), f32(3, 5), targets=with_booleans),
        call(lambda x: x - torch.median(x), f32(1, 8), targets=with_booleans),
    ],
)
def median(lo: Lowering, self: Tensor) -> Tensor | None:
    count = _find_middle(self.size)
    if count == 1:
        return None
    return lo.reshape(_lower(lo, lo.reshape(self, (self.size,)), count, 0, False)[-1][0], ())
