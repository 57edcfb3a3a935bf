"""Look-ups: index, index_select and gather by constants, and by numbers that are known only at run time; embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import Array, DType, Value
from tosaic.lower import arithmetic as arith
from tosaic.lower.arguments import integers, is_sequence
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Limit, op
from tosaic.lower.samples import NOT_U55, F, Sample, call, f32, i32, module, nn, torch
from tosaic.lower.tensor import Const, Stored, Tensor, inverse, of_value
from tosaic.ops.shape import cut, joined, movable, tiled

#: from so many pieces on, a look-up is one operator instead of a slice for each piece
MOST_PIECES = 16


def _runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """The indices as (first, count, step) with steps of one or zero."""
    runs: list[tuple[int, int, int]] = []
    for index in indices:
        if runs:
            first, count, step = runs[-1]
            ahead = index - (first + (count - 1) * step)
            if ahead in (0, 1) and (count == 1 or ahead == step):
                runs[-1] = (first, count + 1, ahead)
                continue
        runs.append((index, 1, 1))
    return runs


def _repeats(indices: Sequence[int], size: int) -> int:
    """How often every index comes, one after the other, if all come equally often; else 0."""
    times = len(indices) // size
    whole = times * size == len(indices) and all(i == k // times for k, i in enumerate(indices))
    return times if whole else 0


def taken(lo: Lowering, x: Tensor, dim: int, indices: Sequence[int]) -> Tensor:
    """The elements of a tensor at constant indices along a dimension."""
    size = x.shape[dim]
    if list(indices) == list(range(size)):
        return x
    if isinstance(x, Const):
        return Const(np.ascontiguousarray(np.take(x.array, list(indices), dim)), x.dtype, x.q)
    if _repeats(indices, size):
        return _stretched(lo, x, dim, len(indices) // size)
    runs = _runs(indices)
    if len(runs) > MOST_PIECES:
        if lo.target.is_npu and x.is_code and x.dtype is DType.I8:
            rows = np.zeros((len(indices), size), np.int8)
            rows[np.arange(len(indices)), list(indices)] = 1
            return mixed(lo, x, dim, rows, 1)
        if lo.target.family not in ("u55", "u65"):
            return _gathered(lo, x, dim, Const(np.asarray(indices, np.int32), DType.I32))
    parts: list[Tensor] = []
    for first, count, step in runs:
        piece = cut(lo, x, dim, first, count if step else 1)
        parts.append(piece if step else tiled(lo, piece, tuple(count if i == dim else 1 for i in range(x.rank))))
    return joined(lo, parts, dim)


def _stretched(lo: Lowering, x: Stored, dim: int, times: int) -> Tensor:
    """Every element several times: copies side by side along the next inner dimension, seen with another shape."""
    x = lo.unfold(x)
    axis, shape = x.perm[dim], x.value.shape
    rows = lo.emit(lo.reshape(of_value(x.value), (prod(shape[: axis + 1]), prod(shape[axis + 1 :]))))
    wide = tosa.concat(lo.b, [rows] * times, 1)
    value = lo.emit(lo.reshape(of_value(wide), (*shape[:axis], shape[axis] * times, *shape[axis + 1 :])))
    return replace(x, value=value, shape=(*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :]))


def mixed(lo: Lowering, x: Tensor, dim: int, rows: Array, divisor: int) -> Tensor:
    """Sums of codes along a dimension with int8 weights [new, old], divided and rounded once; the grid stays.

    It is a 1x1 convolution with that dimension as channels.
    """
    x = lo.store(x)
    others = sorted((d for d in range(x.rank) if d != dim), key=lambda d: x.perm[d])
    order = (*others, dim)
    last = lo.permute(x, order)
    image = lo.permute(lo.reshape(last, (1, 1, prod(last.shape[:-1]), last.shape[-1])), (0, 3, 1, 2))
    out = arith.weigh(lo, image, rows.reshape(rows.shape[0], 1, 1, rows.shape[1]), divisor)
    flat = lo.reshape(lo.permute(out, (0, 2, 3, 1)), (*last.shape[:-1], rows.shape[0]))
    return lo.permute(flat, inverse(order))


def _gathered(lo: Lowering, x: Tensor, dim: int, indices: Tensor) -> Tensor:
    """GATHER along a dimension; the indices' own dimensions take its place."""
    before, size, after = prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])
    values = lo.emit(lo.reshape(x, (before, size, after)))
    out = of_value(tosa.gather(lo.b, values, _rows(lo, indices, before)), x.q)
    return lo.reshape(out, (*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :]))


def _rows(lo: Lowering, indices: Tensor, count: int) -> Value:
    """The indices as [count, W], the same in each row."""
    if isinstance(indices, Const):
        return integers(lo, lo.constant(indices.array.reshape(1, -1), DType.I32), (1, indices.size), count)
    return integers(lo, lo.emit(indices), (1, indices.size), count)


def checked(t: Tensor) -> Tensor:
    """A tensor of plain int32 numbers."""
    if t.q is not None or t.dtype is not DType.I32:
        raise Unsupported(f"its indices are {t.dtype.torch_name}", "use int32 indices")
    return t


def _wrapped(lo: Lowering, t: Tensor, size: int) -> Tensor:
    """Indices with the negative ones counted from the end: size times the sign bit is added."""
    value = lo.emit(t)
    one = (1,) * value.rank
    sign = tosa.logical_right_shift(lo.b, value, lo.constant(np.full(one, 31, np.int32), DType.I32))
    more = tosa.mul(lo.b, sign, lo.constant(np.full(one, size, np.int32), DType.I32))
    return of_value(tosa.add(lo.b, value, more))


def _is_constant(name: str) -> Any:
    def holds(lo: Lowering, a: Mapping[str, Any]) -> bool:
        given = a[name] if isinstance(a[name], list) else [a[name]]
        return all(t is None or t.is_const for t in given)

    return holds


def _limit(name: str) -> Limit:
    return Limit(
        "Ethos-U55 and Ethos-U65 have no look-up by indices that are known only at run time",
        _is_constant(name),
        ("u55", "u65"),
        "make the indices a constant of the model, or look up on the CPU",
    )


def _to_int32(name: str) -> Any:
    """Before calibration: indices in int64, which no target has a type for, are cast to int32 where they are made."""

    def expand(aten: Any, **arguments: Any) -> Any:
        given = arguments[name]
        narrow = [_narrow(aten, i) for i in given] if is_sequence(given) else _narrow(aten, given)
        if narrow == given:
            return None
        return aten(str(aten.node.target).removeprefix("aten."), *({**arguments, name: narrow}.values()))

    return expand


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
            lambda x, i: (x + 1.0)[:, i], f32(3, 5, 2), i32(4, low=-5, high=5), flavours=("FP", "INT"), targets=NOT_U55
        ),
        call(lambda x, i: (x + 1)[i], i32(5, 3), i32(2, 2, low=0, high=5), targets=NOT_U55),
    ]


@op(
    "index",
    "aten.index.Tensor",
    "aten._unsafe_index.Tensor",
    expand=_to_int32("indices"),
    quant="share",
    moves=True,
    limits=[_limit("indices")],
    samples=_samples_index,
)
def index(lo: Lowering, self: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    x = movable(lo, self)
    found = {d: i for d, i in enumerate(indices) if i is not None}
    dims = list(found)
    if any(i.dtype is DType.BOOL for i in found.values()):
        raise Unsupported("it selects by a mask, so its shape is not known", "select by numbers")
    if len(dims) == 1 and not found[dims[0]].is_const:
        return _gathered(lo, x, dims[0], _wrapped(lo, checked(found[dims[0]]), x.shape[dims[0]]))
    arrays = [i.array for i in found.values() if isinstance(i, Const)]
    if len(arrays) != len(found):
        raise Unsupported("it has several indices that are computed at run time", "use one index")
    if dims != list(range(dims[0], dims[-1] + 1)):
        # Torch puts the result of indices that are not side by side in front.
        x = lo.permute(x, [*dims, *(d for d in range(x.rank) if d not in found)])
        dims = list(range(len(dims)))
    first, last = dims[0], dims[-1] + 1
    sizes = x.shape[first:last]
    wide = np.broadcast_arrays(*arrays)
    flat = np.ravel_multi_index([a % n for a, n in zip(wide, sizes, strict=True)], sizes)
    line = lo.reshape(x, (*x.shape[:first], prod(sizes), *x.shape[last:]))
    out = taken(lo, line, first, [int(i) for i in flat.reshape(-1)])
    return lo.reshape(out, (*x.shape[:first], *flat.shape, *x.shape[last:]))


@op(
    "index_select",
    "aten.index_select.default",
    expand=_to_int32("index"),
    quant="share",
    moves=True,
    limits=[_limit("index")],
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
            targets=NOT_U55,
        ),
    ],
)
def index_select(lo: Lowering, self: Tensor, dim: int, index: Tensor) -> Tensor:
    x, d = movable(lo, self), dim % max(self.rank, 1)
    if isinstance(index, Const):
        return taken(lo, x, d, [int(i) for i in index.array.reshape(-1)])
    return _gathered(lo, x, d, checked(index))


def _same_everywhere(array: Array, dim: int) -> list[int] | None:
    """The indices along a dimension, if they do not depend on the other dimensions."""
    rows = np.moveaxis(array, dim, -1).reshape(-1, array.shape[dim])
    return [int(i) for i in rows[0]] if bool((rows == rows[0]).all()) else None


def _picks_whole_rows(lo: Lowering, a: Mapping[str, Any]) -> bool:
    index: Tensor = a["index"]
    return isinstance(index, Const) and _same_everywhere(index.array, a["dim"]) is not None


def _stairs(*shape: int) -> Any:
    """Used by samples: indices 0 and 1 that differ from row to row."""
    return (torch.arange(prod(shape)) // 2 % 2).reshape(shape)


@op(
    "gather",
    "aten.gather.default",
    quant="share",
    moves=True,
    limits=[
        Limit(
            "Ethos-U55 and Ethos-U65 gather only by constant indices that are the same in all other dimensions",
            _picks_whole_rows,
            ("u55", "u65"),
            "use index_select with a constant index",
        )
    ],
    samples=lambda: [
        call(lambda x: (x + 1.0).gather(1, torch.tensor([[1, 0, 1]]).expand(3, 3)), f32(3, 17)),
        call(lambda x: (x + 1.0).gather(-1, _stairs(1, 3, 5)), f32(1, 3, 4), targets=NOT_U55),
        call(lambda x: (x + 1.0).gather(0, _stairs(3, 5), sparse_grad=True), f32(3, 64), targets=NOT_U55),
    ],
)
def gather(lo: Lowering, self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    x, d = movable(lo, self), dim % max(self.rank, 1)
    for other in range(x.rank):
        if other != d:
            x = cut(lo, x, other, 0, index.shape[other])
    rows = _same_everywhere(index.array, d) if isinstance(index, Const) else None
    if rows is not None:
        return taken(lo, x, d, rows)
    order = [*(i for i in range(x.rank) if i != d), d]
    lines, wanted = lo.permute(x, order), lo.permute(checked(index), order)
    count = prod(lines.shape[:-1])
    values = lo.emit(lo.reshape(lines, (count, lines.shape[-1], 1)))
    out = of_value(tosa.gather(lo.b, values, lo.emit(lo.reshape(wanted, (count, wanted.shape[-1])))), x.q)
    return lo.permute(lo.reshape(out, wanted.shape), inverse(tuple(order)))


@op(
    "embedding",
    "aten.embedding.default",
    expand=_to_int32("indices"),
    quant="share",
    moves=True,
    limits=[_limit("indices")],
    samples=lambda: [
        module(
            lambda: nn.Sequential(nn.Embedding(10, 4), nn.ReLU()),
            i32(3, low=0, high=10),
            flavours=("FP", "INT"),
            targets=NOT_U55,
        ),
        module(
            lambda: nn.Sequential(nn.Embedding(33, 17, padding_idx=1), nn.Tanh()),
            i32(3, 5, low=0, high=33),
            flavours=("FP", "INT"),
            targets=NOT_U55,
        ),
        module(
            lambda: nn.Sequential(nn.Embedding(8, 64, scale_grad_by_freq=True, sparse=True), nn.Linear(64, 3)),
            i32(1, 6, low=0, high=8),
            flavours=("FP", "INT"),
            targets=NOT_U55,
        ),
        call(lambda x: x + F.embedding(torch.tensor([1, 3, 0]), torch.linspace(0.0, 1.0, 12).view(4, 3)), f32(3, 3)),
    ],
)
def embedding(lo: Lowering, weight: Tensor, indices: Tensor, **_: Any) -> Tensor:
    table = movable(lo, weight)
    if isinstance(indices, Const):
        rows = taken(lo, table, 0, [int(i) for i in indices.array.reshape(-1)])
        return lo.reshape(rows, (*indices.shape, *table.shape[1:]))
    return _gathered(lo, table, 0, checked(indices))
