"""Several of the largest or smallest numbers, in order: topk, sort, kthvalue, median."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

from tosaic.lower import sorting
from tosaic.lower.aten import Aten, T
from tosaic.lower.constraints import describe
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op
from tosaic.lower.samples import Sample, call, f32, i8, i32, torch, with_booleans
from tosaic.lower.tensor import Tensor

#: Twice as many take a quarter more operators on all of them.
_MOST = 1024
#: a number and its position
Pair: TypeAlias = tuple[T, T]
#: how many numbers a call needs, for the arguments of its schema
Count = Callable[[Arguments], int]


def _count_length(x: Tensor, dim: int) -> int:
    return x.shape[dim] if x.shape else 1


def _limit(count: Count) -> Sequence[Constraint]:
    """Make the constraints of an operator that puts so many numbers in order."""

    def check_many(lo: Lowering, a: Arguments) -> str:
        among = _count_length(a["self"], a["dim"]) if "dim" in a else a["self"].size
        fits = count(a) == 1 or (count(a) <= _MOST and among <= sorting.MOST_PLACES)
        return "" if fits else f"it is {count(a)} of {among}"

    def check_type(lo: Lowering, a: Arguments) -> str:
        return "" if count(a) == 1 or sorting.is_packed(a["self"]) else f"they are {describe(a['self'])}"

    return (
        Constraint(
            f"at most {_MOST} numbers are put in order, out of at most {sorting.MOST_PLACES}",
            check_many,
            "split the dimension, or put the numbers in order on the CPU",
        ),
        Constraint(
            "numbers that are put in order have 8 or 16 bits",
            check_type,
            "use an Ethos-U85, or cast to float32 and quantize that",
            lambda target: not target.has_booleans,
        ),
    )


def _find_one(aten: Aten[T], x: T, dim: int, largest: bool, keepdim: bool) -> Pair[T]:
    """Find the largest or smallest number of a dimension, and its position."""
    place = aten("argmax.default" if largest else "argmin.default", x, dim, keepdim)
    value = aten("amax.default" if largest else "amin.default", x, [dim], keepdim) if aten.shape(x) else x
    return value, place


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
        call(_first(torch.topk, 3), f32(3, 17)),
        call(_both(torch.topk, 2, 1), f32(1, 64, 3)),
        call(_both(torch.topk, 4, -2, largest=False), f32(3, 4, 5)),
        call(_first(torch.topk, 5, 0), f32(100, 2)),
        call(_first(torch.topk, 2), i8(3, 5)),
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
) -> Pair[Tensor] | None:
    return None if k == 1 else sorting.find_ranks(lo, self, range(k), dim, largest)


def _decompose_sort(
    aten: Aten[T], self: T, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Pair[T] | None:
    shape = aten.shape(self)
    return _find_one(aten, self, dim, descending, True) if not shape or shape[dim] == 1 else None


@op(
    "sort",
    "sort.default",
    "sort.stable",
    quant="share",
    decompose=_decompose_sort,
    constraints=_limit(lambda a: _count_length(a["self"], a["dim"])),
    computes_in_float32=True,
    fits_int32=True,
    samples=lambda: [
        call(_both(torch.sort), f32(3, 5)),
        call(_first(torch.sort, 1, True), f32(1, 9, 17)),
        call(_both(torch.sort, stable=True, dim=-2, descending=True), f32(1, 3, 4, 2)),
        call(_first(torch.sort), f32(1, 64)),
        call(_first(torch.sort, 1), f32(3, 1, 17)),
        call(lambda x: torch.sort(x)[0] * 2.0, f32()),
    ],
)
def sort(
    lo: Lowering, self: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Pair[Tensor] | None:
    length = _count_length(self, dim)
    return None if length == 1 else sorting.find_ranks(lo, self, range(length), dim, descending)


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
        call(_both(torch.kthvalue, 3), f32(3, 17)),
        call(_first(torch.kthvalue, 2, 1, True), f32(1, 5, 4)),
        call(_first(torch.kthvalue, 16, 0), f32(17)),
    ],
)
def kthvalue(lo: Lowering, self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair[Tensor] | None:
    count, largest = _count_steps(_count_length(self, dim), k)
    if count == 1:
        return None
    return sorting.find_ranks(lo, self, range(count - 1, count), dim, largest, keepdim)


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
        call(_first(torch.median, -1), f32(3, 9)),
        call(_first(torch.median, 1, True), f32(1, 6, 17)),
        call(_both(torch.median, 0), f32(5, 3, 4)),
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
        call(lambda x: torch.median(x), f32(3, 5)),
        call(lambda x: x - torch.median(x), f32(1, 8)),
    ],
)
def median(lo: Lowering, self: Tensor) -> Tensor | None:
    count = _find_middle(self.size)
    if count == 1:
        return None
    flat = lo.reshape(self, (self.size,))
    return sorting.find_ranks(lo, flat, range(count - 1, count), 0, False, False)[0]
