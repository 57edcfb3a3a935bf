"""Look-ups: index, index_select and gather by constants, and by numbers that are known only at run time; embedding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.graph import Array, DType
from tosaic.lower import lookup, movement
from tosaic.lower.arguments import is_sequence
from tosaic.lower.constraints import describe
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Check, Constraint
from tosaic.lower.samples import F, Sample, call, f32, i32, module, nn, torch, with_gather
from tosaic.lower.tensor import Const, Tensor, inverse, of_value


def _wrap_negative(lo: Lowering, t: Tensor, size: int) -> Tensor:
    """Count negative indices from the end: add size times the sign bit."""
    value = lo.emit(t)
    one = (1,) * value.rank
    sign = tosa.logical_right_shift(lo.b, value, lo.constant(np.full(one, 31, np.int32), DType.I32))
    more = tosa.mul(lo.b, sign, lo.constant(np.full(one, size, np.int32), DType.I32))
    return of_value(tosa.add(lo.b, value, more))


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


def _check_count(lo: Lowering, a: Arguments) -> str:
    given = _list_indices(a, "indices")
    computed = sum(not isinstance(t, Const) for t in given)
    return f"there are {len(given)}, of which {computed} are computed" if computed and len(given) > 1 else ""


def _make_constraints(name: str) -> list[Constraint]:
    return [
        Constraint(
            "indices are constants: the NPU cannot index with values computed at run time",
            _check_constant(name),
            "make the indices a constant of the model, or index on the CPU",
            lambda target: not target.has_gather,
        ),
        Constraint(
            "indices are int32 numbers, not a mask, whose result has a data-dependent shape",
            _check_dtype(name),
            "use int32 indices",
        ),
    ]


_ONE_COMPUTED = Constraint("an index that is computed is the only one", _check_count, "use one index")


def _to_int32(name: str) -> Any:
    """Cast int64 indices, which no target supports, to int32 where they are made; runs before calibration."""

    def decompose(aten: Any, **arguments: Any) -> Any:
        given = arguments[name]
        narrow = [_narrow(aten, i) for i in given] if is_sequence(given) else _narrow(aten, given)
        if narrow == given:
            return None
        return aten(str(aten.node.target).removeprefix("aten."), *({**arguments, name: narrow}.values()))

    return decompose


def _narrow(aten: Any, node: Any) -> Any:
    if node is None or node.op == "get_attr" or node.meta["val"].dtype is not torch.int64:
        return node
    return aten("to.dtype", node, torch.int32)


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
            flavours=("FP", "INT"),
            targets=with_gather,
        ),
        call(lambda x, i: (x + 1)[i], i32(5, 3), i32(2, 2, low=0, high=5), targets=with_gather),
    ]


@data_movement(
    "index",
    "index.Tensor",
    "_unsafe_index.Tensor",
    decompose=_to_int32("indices"),
    constraints=[*_make_constraints("indices"), _ONE_COMPUTED],
    looks_up=True,
    samples=_samples_index,
)
def index(lo: Lowering, self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    x = movement.require_movable(lo, self)
    found = {d: i for d, i in enumerate(indices) if i is not None}
    dims = list(found)
    if len(dims) == 1 and not found[dims[0]].is_const:
        return lookup.gather(lo, x, dims[0], _wrap_negative(lo, found[dims[0]], x.shape[dims[0]]))
    arrays = [i.array for i in found.values() if isinstance(i, Const)]
    if dims != list(range(dims[0], dims[-1] + 1)):
        # Torch puts the dimensions of non-adjacent indices first in the result.
        x = lo.permute(x, [*dims, *(d for d in range(x.rank) if d not in found)])
        dims = list(range(len(dims)))
    first, last = dims[0], dims[-1] + 1
    sizes = x.shape[first:last]
    wide = np.broadcast_arrays(*arrays)
    flat = np.ravel_multi_index([a % n for a, n in zip(wide, sizes, strict=True)], sizes)
    line = lo.reshape(x, (*x.shape[:first], prod(sizes), *x.shape[last:]))
    out = lookup.take(lo, line, first, [int(i) for i in flat.reshape(-1)])
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
        call(
            lambda x, i: (x + 1.0).index_select(0, i),
            f32(5, 3),
            i32(4, low=0, high=5),
            flavours=("FP", "INT"),
            targets=with_gather,
        ),
    ],
)
def index_select(lo: Lowering, self: Tensor, dim: int, index: Tensor) -> Tensor:
    x, d = movement.require_movable(lo, self), dim % max(self.rank, 1)
    if isinstance(index, Const):
        return lookup.take(lo, x, d, [int(i) for i in index.array.reshape(-1)])
    return lookup.gather(lo, x, d, lo.reshape(index, (index.size,)))


def _find_shared_indices(array: Array, dim: int) -> list[int] | None:
    """Return the indices along a dimension, if they do not depend on the other dimensions."""
    rows = np.moveaxis(array, dim, -1).reshape(-1, array.shape[dim])
    return [int(i) for i in rows[0]] if bool((rows == rows[0]).all()) else None


def _check_rows(lo: Lowering, a: Arguments) -> str:
    index: Tensor = a["index"]
    if not isinstance(index, Const):
        return "they are computed"
    return "" if _find_shared_indices(index.array, a["dim"]) is not None else "they differ"


def _make_indices(*shape: int) -> Any:
    """Make indices 0 and 1 for samples that differ from row to row."""
    return (torch.arange(prod(shape)) // 2 % 2).reshape(shape)


@data_movement(
    "gather",
    looks_up=True,
    constraints=[
        Constraint(
            "indices are constants that are the same in all other dimensions",
            _check_rows,
            "use index_select with a constant index",
            lambda target: not target.has_gather,
        ),
        Constraint("indices are int32 numbers", _check_dtype("index"), "use int32 indices"),
    ],
    samples=lambda: [
        call(lambda x: (x + 1.0).gather(1, torch.tensor([[1, 0, 1]]).expand(3, 3)), f32(3, 17)),
        call(lambda x: (x + 1.0).gather(-1, _make_indices(1, 3, 5)), f32(1, 3, 4), targets=with_gather),
        call(lambda x: (x + 1.0).gather(0, _make_indices(3, 5), sparse_grad=True), f32(3, 64), targets=with_gather),
    ],
)
def gather(lo: Lowering, self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    x, d = movement.require_movable(lo, self), dim % max(self.rank, 1)
    for other in range(x.rank):
        if other != d:
            x = movement.crop(lo, x, other, 0, index.shape[other])
    rows = None if not isinstance(index, Const) else _find_shared_indices(index.array, d)
    if rows is not None:
        return lookup.take(lo, x, d, rows)
    order = [*(i for i in range(x.rank) if i != d), d]
    lines, wanted = lo.permute(x, order), lo.permute(index, order)
    count = prod(lines.shape[:-1])
    values = lo.emit(lo.reshape(lines, (count, lines.shape[-1], 1)))
    out = of_value(tosa.gather(lo.b, values, lo.emit(lo.reshape(wanted, (count, wanted.shape[-1])))), x.q)
    return lo.permute(lo.reshape(out, wanted.shape), inverse(tuple(order)))


@data_movement(
    "embedding",
    decompose=_to_int32("indices"),
    constraints=_make_constraints("indices"),
    looks_up=True,
    samples=lambda: [
        module(
            lambda: nn.Sequential(nn.Embedding(10, 4), nn.ReLU()),
            i32(3, low=0, high=10),
            flavours=("FP", "INT"),
            targets=with_gather,
        ),
        module(
            lambda: nn.Sequential(nn.Embedding(33, 17, padding_idx=1), nn.Tanh()),
            i32(3, 5, low=0, high=33),
            flavours=("FP", "INT"),
            targets=with_gather,
        ),
        module(
            lambda: nn.Sequential(nn.Embedding(8, 64, scale_grad_by_freq=True, sparse=True), nn.Linear(64, 3)),
            i32(1, 6, low=0, high=8),
            flavours=("FP", "INT"),
            targets=with_gather,
        ),
        call(lambda x: x + F.embedding(torch.tensor([1, 3, 0]), torch.linspace(0.0, 1.0, 12).view(4, 3)), f32(3, 3)),
    ],
)
def embedding(lo: Lowering, weight: Tensor, indices: Tensor, **_: Any) -> Tensor:
    table = movement.require_movable(lo, weight)
    if isinstance(indices, Const):
        rows = lookup.take(lo, table, 0, [int(i) for i in indices.array.reshape(-1)])
        return lo.reshape(rows, (*indices.shape, *table.shape[1:]))
    return lookup.gather(lo, table, 0, indices)
