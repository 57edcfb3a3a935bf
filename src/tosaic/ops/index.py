"""Look-ups: index, index_select and gather by constants, and by numbers that are known only at run time; embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tosaic.ir.graph import Array, DType
from tosaic.lower import lookup, movement
from tosaic.lower.arguments import integers, make_movable
from tosaic.lower.aten import Aten, NarrowingAten, T
from tosaic.lower.constraints import describe
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Check, Constraint, composite
from tosaic.lower.samples import F, Sample, call, f32, i32, module, nn, torch, with_booleans, with_gather
from tosaic.lower.tensor import Const, Tensor, inverse


def _list_indices(a: Arguments, name: str) -> list[Tensor]:
    given = a[name] if isinstance(a[name], list) else [a[name]]
    return [t for t in given if t is not None]


def _check_dtype(name: str) -> Check:
    def check(lo: Lowering, a: Arguments) -> str:
        given = _list_indices(a, name)
        wrong = [t for t in given if t.dtype is DType.BOOL or (not t.is_const and (t.q or t.dtype is not DType.I32))]
        return f"they are {describe(wrong[0])}" if wrong else ""

    return check


def _check_constant(name: str) -> Check:
    def check(lo: Lowering, a: Arguments) -> str:
        return "" if all(isinstance(t, Const) for t in _list_indices(a, name)) else f"`{name}` is computed"

    return check


def _make_constraints(name: str) -> list[Constraint]:
    return [
        Constraint(
            "indices are constants: the NPU cannot index with values computed at run time",
            _check_constant(name),
            "use an Ethos-U85, or make the indices a constant of the model",
            lambda target: not target.has_gather,
        ),
        Constraint(
            "indices are int32 numbers, not a mask, whose result has a data-dependent shape",
            _check_dtype(name),
            "use int32 indices",
        ),
    ]


def _to_int32(name: str) -> Callable[..., Any]:
    """Cast int64 indices, which no target supports, to int32 where they are made; runs before calibration."""

    def decompose(aten: NarrowingAten[T], **arguments: Any) -> T | None:
        narrow = aten.as_indices(arguments[name])
        return None if narrow == arguments[name] else aten.again({**arguments, name: narrow})

    return decompose


def _list_to_int32(aten: NarrowingAten[T], self: T, indices: Sequence[T | None]) -> T | None:
    narrow = [i if i is None else aten.as_indices(i) for i in indices]
    return None if narrow == list(indices) else aten.again({"self": self, "indices": narrow})


def _keep_int64(aten: NarrowingAten[T], index: T, **arguments: object) -> T | None:
    """Cast int64 indices to int32 and back: the operator itself needs int64 where it is left to the CPU."""
    if not aten.is_int64(index):
        return None
    narrow = aten.as_indices(index)
    names = {**arguments, "index": aten("to.dtype", narrow, torch.int64)}
    return aten.again({name: names[name] for name in ("self", "dim", "index", *arguments) if name in names})


def _samples_index() -> list[Sample]:
    return [
        call(lambda x: (x + 1.0)[:, [0, 2, 1]], f32(1, 3, 4, 4)),
        call(lambda x: (x + 1.0)[[3, 0, -1, 0]], f32(4, 17)),
        call(lambda x: (x + 1.0)[..., [[0, 1], [3, 2]]], f32(3, 2, 4)),
        call(lambda x: (x + 1.0)[:, [0, 1, 2], [2, 1, 0]], f32(3, 3, 4, 2)),
        call(lambda x: (x + 1.0)[[0, 1], :, [2, 0]], f32(2, 3, 64)),
        call(lambda x: (x + 1.0)[:, list(range(0, 40, 2))], f32(1, 40, 3)),
        call(
            lambda x, i: (x + 1.0)[:, i],
            f32(3, 5, 2),
            i32(4, low=-5, high=5),
            flavors=("FP", "INT"),
            targets=with_gather,
        ),
        call(lambda x, i: (x + 1)[i], i32(5, 3), i32(2, 2, low=0, high=5), targets=with_gather),
        call(
            lambda x, i, j: (x + 1.0)[i, :, j],
            f32(3, 2, 4),
            i32(3, 1, low=-3, high=3),
            i32(5, low=-4, high=4),
            flavors=("FP", "INT"),
            targets=with_gather,
        ),
        call(
            lambda x, i: (x + 1.0)[:, i, torch.tensor([1, 3])],
            f32(1, 17, 4),
            i32(2, low=0, high=17),
            flavors=("FP", "INT"),
            targets=with_gather,
        ),
        call(lambda x, i: (x > 0)[i], i32(5, 3), i32(4, low=0, high=5), targets=with_gather),
    ]


@data_movement(
    "index",
    "index.Tensor",
    "_unsafe_index.Tensor",
    decompose=_list_to_int32,
    constraints=_make_constraints("indices"),
    looks_up=True,
    samples=_samples_index,
)
def index(lo: Lowering, self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    x = movement.require_movable(lo, self)
    found = {d: i for d, i in enumerate(indices) if i is not None}
    dims = list(found)
    if dims != list(range(dims[0], dims[-1] + 1)):
        # Torch puts the dimensions of non-adjacent indices first in the result.
        x = lo.permute(x, [*dims, *(d for d in range(x.rank) if d not in found)])
        dims = list(range(len(dims)))
    first, last = dims[0], dims[-1] + 1
    sizes = x.shape[first:last]
    flat = lookup.flatten_indices(lo, list(found.values()), sizes)
    line = lo.reshape(x, (*x.shape[:first], prod(sizes), *x.shape[last:]))
    if not isinstance(flat, Const):
        return lookup.gather(lo, line, first, flat)
    out = lookup.take(lo, line, first, [int(i) for i in flat.array.reshape(-1)])
    return lo.reshape(out, (*x.shape[:first], *flat.shape, *x.shape[last:]))


@data_movement(
    "index_select",
    decompose=_to_int32("index"),
    constraints=_make_constraints("index"),
    looks_up=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).index_select(1, torch.tensor([2, 0, 0])), f32(3, 3, 4)),
        call(lambda x: (x + 1.0).index_select(-1, torch.tensor([0, 1, 3])), f32(1, 17, 2, 4)),
        call(lambda x: (x + 1.0).index_select(0, torch.tensor([63, 0])), f32(64)),
        call(lambda x: (x + 1.0).index_select(1, torch.arange(40).flip(0)), f32(1, 40, 3)),
        call(lambda x: (x > 0).index_select(1, torch.tensor([2, 0])), i32(3, 4), targets=with_booleans),
        call(lambda x, i: (x > 0).index_select(1, i), i32(3, 4), i32(2, low=0, high=4), targets=with_gather),
        call(
            lambda x, i: (x + 1.0).index_select(0, i),
            f32(5, 3),
            i32(4, low=0, high=5),
            flavors=("FP", "INT"),
            targets=with_gather,
        ),
    ],
)
def index_select(lo: Lowering, self: Tensor, dim: int, index: Tensor) -> Tensor:
    if not self.rank:
        return self
    x, d = movement.require_movable(lo, self), dim % self.rank
    if isinstance(index, Const):
        return lookup.take(lo, x, d, [int(i) for i in index.array.reshape(-1)])
    return lookup.gather(lo, x, d, lo.reshape(index, (index.size,)))


def _find_shared_indices(array: Array, dim: int) -> list[int] | None:
    """Return the indices along a dimension, if they do not depend on the other dimensions."""
    rows = np.moveaxis(array, dim, -1).reshape(-1, array.shape[dim])
    return [int(i) for i in rows[0]] if bool((rows == rows[0]).all()) else None


def _make_indices(*shape: int) -> Any:
    """Make indices 0 and 1 for samples that differ from row to row."""
    return (torch.arange(prod(shape)) // 2 % 2).reshape(shape)


@data_movement(
    "gather",
    looks_up=True,
    decompose=_keep_int64,
    constraints=_make_constraints("index"),
    samples=lambda: [
        call(lambda x: (x + 1.0).gather(1, torch.tensor([[1, 0, 1]]).expand(3, 3)), f32(3, 17)),
        call(lambda x: (x + 1.0).gather(-1, _make_indices(1, 3, 5)), f32(1, 3, 4)),
        call(lambda x: (x + 1.0).gather(0, _make_indices(3, 5), sparse_grad=True), f32(3, 64)),
        call(lambda x: (x + 1.0).gather(1, _make_indices(3, 9)), f32(3, 17)),
        call(lambda x: (x + 1.0).gather(0, torch.tensor(2)), f32(5)),
        call(lambda x: (x + 1).gather(0, _make_indices(2, 3)), i32(4, 3)),
        call(
            lambda x, i: (x + 1.0).gather(1, i.long()),
            f32(3, 5, 2),
            i32(3, 4, 1, low=0, high=5),
            flavors=("FP", "INT"),
            targets=with_gather,
        ),
    ],
)
def gather(lo: Lowering, self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    if not self.rank:
        return lo.reshape(self, index.shape)
    if not index.rank:
        return lo.reshape(gather(lo, self, dim, lo.reshape(index, (1,))), ())
    x, d = movement.require_movable(lo, self), dim % self.rank
    for other in range(x.rank):
        if other != d:
            x = movement.crop(lo, x, other, 0, index.shape[other])
    rows = None if not isinstance(index, Const) else _find_shared_indices(index.array, d)
    if rows is not None:
        return lookup.take(lo, x, d, rows)
    if isinstance(index, Const) and not lo.target.has_gather:
        return lookup.take_flat(lo, x, lookup.locate(index.array, d, x.shape))
    order = [*(i for i in range(x.rank) if i != d), d]
    lines, wanted = lo.permute(x, order), lo.permute(make_movable(lo, index), order)
    count = prod(lines.shape[:-1])
    rows = lo.reshape(lines, (count, lines.shape[-1], 1))
    out = lookup.gather_rows(lo, rows, integers(lo, wanted, (count, wanted.shape[-1])))
    return lo.permute(lo.reshape(out, wanted.shape), inverse(tuple(order)))


def _count_from_start(aten: Aten[T], indices: T, size: int) -> T:
    """Add the size to negative indices."""
    known = aten.data(indices)
    if known is not None:
        return aten.constant(np.remainder(known, size))
    numbers = aten.as_numbers(indices)
    below = aten("lt.Scalar", numbers, 0)
    wrapped = aten("where.self", below, aten("add.Scalar", numbers, size), numbers)
    return aten("to.dtype", aten("to.dtype", wrapped, torch.int32), torch.int64)


@composite(
    "take_along_dim",
    looks_up=True,
    samples=lambda: [
        call(lambda x: torch.take_along_dim(x + 1.0, _make_indices(3, 5), 1), f32(3, 4)),
        call(lambda x: torch.take_along_dim(x + 1.0, torch.tensor([[[1], [-2]]]), -2), f32(3, 4, 2)),
        call(lambda x: torch.take_along_dim(x + 1.0, torch.tensor([7, 0, 7])), f32(2, 4)),
    ],
)
def take_along_dim(aten: Aten[T], self: T, indices: T, dim: int | None = None) -> T:
    if dim is None:
        self, indices, dim = (*(aten("reshape.default", t, [-1]) for t in (self, indices)), 0)
    sizes, wanted = aten.shape(self), aten.shape(indices)
    dim %= len(sizes)
    common = [max(a, b) for a, b in zip(sizes, wanted, strict=True)]
    self = aten("expand.default", self, [*common[:dim], sizes[dim], *common[dim + 1 :]])
    shape = [*common[:dim], wanted[dim], *common[dim + 1 :]]
    indices = indices if list(wanted) == shape else aten("expand.default", indices, shape)
    return aten("gather.default", self, dim, _count_from_start(aten, indices, sizes[dim]))


@composite(
    "take",
    looks_up=True,
    samples=lambda: [
        call(lambda x: torch.take(x + 1.0, torch.tensor([[0, 5], [2, -1]])), f32(3, 17)),
        call(lambda x: torch.take(x + 1.0, torch.tensor([1])), f32(64)),
    ],
)
def take(aten: Aten[T], self: T, index: T) -> T:
    return aten("index.Tensor", aten("reshape.default", self, [-1]), [index])


@data_movement(
    "repeat_interleave",
    "repeat_interleave.self_Tensor",
    looks_up=True,
    constraints=[
        Constraint(
            "the number of repeats is a constant of the model",
            _check_constant("repeats"),
            "make the repeats a constant of the model",
        )
    ],
    samples=lambda: [
        call(lambda x: (x + 1.0).repeat_interleave(torch.tensor([1, 2, 0, 3]), 1, output_size=6), f32(3, 4)),
        call(lambda x: (x + 1.0).repeat_interleave(torch.tensor([2]), -1, output_size=8), f32(1, 17, 4)),
        call(lambda x: (x + 1.0).repeat_interleave(torch.tensor([2, 1, 1, 3]), output_size=7), f32(2, 2)),
    ],
)
def repeat_interleave(
    lo: Lowering, self: Tensor, repeats: Tensor, dim: int | None = None, output_size: int | None = None
) -> Tensor:
    x = movement.require_movable(lo, self)
    if dim is None:
        x, dim = lo.reshape(x, (x.size,)), 0
    d = dim % x.rank
    assert isinstance(repeats, Const), "a constraint refuses others"
    times = np.broadcast_to(repeats.array, (x.shape[d],))
    return lookup.take(lo, x, d, [i for i, count in enumerate(times) for _ in range(int(count))])


@data_movement(
    "embedding",
    decompose=_to_int32("indices"),
    constraints=_make_constraints("indices"),
    looks_up=True,
    samples=lambda: [
        module(
            lambda: nn.Sequential(nn.Embedding(10, 4), nn.ReLU()),
            i32(3, low=0, high=10),
            flavors=("FP", "INT"),
            targets=with_gather,
        ),
        module(
            lambda: nn.Sequential(nn.Embedding(33, 17, padding_idx=1), nn.Tanh()),
            i32(3, 5, low=0, high=33),
            flavors=("FP", "INT"),
            targets=with_gather,
        ),
        module(
            lambda: nn.Sequential(nn.Embedding(8, 64, scale_grad_by_freq=True, sparse=True), nn.Linear(64, 3)),
            i32(1, 6, low=0, high=8),
            flavors=("FP", "INT"),
            targets=with_gather,
        ),
        call(lambda x: x + F.embedding(torch.tensor([1, 3, 0]), torch.linspace(0.0, 1.0, 12).view(4, 3)), f32(3, 3)),
    ],
)
def embedding(lo: Lowering, weight: Tensor, indices: Tensor, **_: object) -> Tensor:
    table = movement.require_movable(lo, weight)
    if isinstance(indices, Const):
        rows = lookup.take(lo, table, 0, [int(i) for i in indices.array.reshape(-1)])
        return lo.reshape(rows, (*indices.shape, *table.shape[1:]))
    return lookup.gather(lo, table, 0, indices)
