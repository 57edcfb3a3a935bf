"""Writes into a copy of a tensor: slice_scatter, select_scatter, index_put, index_copy, index_fill, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tosaic.ir.graph import Array, DType
from tosaic.lower import lookup, movement
from tosaic.lower.arguments import integers, is_sequence, make_movable
from tosaic.lower.aten import Aten, NarrowingAten, T
from tosaic.lower.constraints import describe
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Check, Constraint, composite
from tosaic.lower.samples import call, f32, i32, torch, with_gather
from tosaic.lower.tensor import Const, Stored, Tensor, broadcast, inverse


def _list_tensors(value: object) -> list[Tensor]:
    return [t for t in (value if is_sequence(value) else [value]) if isinstance(t, Tensor)]


def _check_constant(name: str) -> Check:
    def check(lo: Lowering, a: Arguments) -> str:
        return "" if all(isinstance(t, Const) for t in _list_tensors(a[name])) else f"`{name}` is computed"

    return check


def _is_mask(t: Tensor) -> bool:
    return isinstance(t, Stored) and (t.dtype is DType.BOOL or t.lut is not None)


def _check_numbers(name: str) -> Check:
    def check(lo: Lowering, a: Arguments) -> str:
        given = _list_tensors(a[name])
        if len(given) == 1 and _is_mask(given[0]) and "values" in a and a["values"].size == 1:
            return ""
        wrong = [t for t in given if not t.is_const and (t.q or t.dtype is not DType.I32)]
        return f"they are {describe(wrong[0])}" if wrong else ""

    return check


def _limit_indices(name: str) -> list[Constraint]:
    return [
        Constraint(
            "indices are constants: the NPU cannot write to positions computed at run time",
            _check_constant(name),
            "use an Ethos-U85, or make the indices a constant of the model",
            lambda target: not target.has_gather,
        ),
        Constraint(
            "indices that are computed are int32 numbers, or a mask for one number",
            _check_numbers(name),
            "use int32 indices, or torch.where",
        ),
    ]


def _put_range(lo: Lowering, x: Tensor, dim: int, indices: Sequence[int], source: Tensor) -> Tensor:
    return lookup.put(lo, movement.require_movable(lo, x), dim, indices, movement.require_movable(lo, source))


@data_movement(
    "slice_scatter",
    samples=lambda: [
        call(lambda x, y: torch.slice_scatter(x + 1.0, y, 1, 1, 3), f32(3, 4), f32(3, 2, low=-20.0, high=1.0)),
        call(lambda x, y: torch.slice_scatter(x + 1.0, y, -1, 0, 6, 2), f32(1, 17, 7), f32(1, 17, 3)),
        call(lambda x, y: torch.slice_scatter(x + 1.0, y, start=-2), f32(64), f32(2)),
        call(lambda x, y: torch.slice_scatter(x + 1.0, y, 2, 0, 100, 2), f32(1, 3, 64, 2), f32(1, 3, 32, 2)),
        call(lambda x, y: torch.slice_scatter(x + 1, y, 0, 1, 2), i32(3, 4), i32(1, 4)),
    ],
)
def slice_scatter(
    lo: Lowering,
    self: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    d = dim % self.rank
    return _put_range(lo, self, d, range(self.shape[d])[start:end:step], src)


@data_movement(
    "select_scatter",
    samples=lambda: [
        call(lambda x, y: torch.select_scatter(x + 1.0, y, 1, 2), f32(3, 4), f32(3)),
        call(lambda x, y: torch.select_scatter(x + 1.0, y, -2, -1), f32(1, 3, 4, 17), f32(1, 3, 17)),
        call(lambda x, y: torch.select_scatter(x + 1.0, y, 0, 0), f32(5), f32()),
    ],
)
def select_scatter(lo: Lowering, self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    d = dim % self.rank
    part = lo.reshape(src, (*self.shape[:d], 1, *self.shape[d + 1 :]))
    return _put_range(lo, self, d, [index % self.shape[d]], part)


def _put_flat(lo: Lowering, x: Tensor, positions: Array, source: Tensor) -> Tensor:
    """Write to constant positions, counted in the order of the dimensions."""
    line = lo.reshape(movement.require_movable(lo, x), (x.size,))
    rows = lo.reshape(movement.require_movable(lo, source), (source.size,))
    return lo.reshape(_put_range(lo, line, 0, [int(i) for i in positions.reshape(-1)], rows), x.shape)


@data_movement(
    "diagonal_scatter",
    samples=lambda: [
        call(lambda x, y: torch.diagonal_scatter(x + 1.0, y), f32(4, 4), f32(4)),
        call(lambda x, y: torch.diagonal_scatter(x + 1.0, y, 1, -1, 0), f32(5, 3, 4), f32(3, 4)),
        call(lambda x, y: torch.diagonal_scatter(x + 1.0, y, offset=-2, dim1=1, dim2=2), f32(1, 17, 3), f32(1, 3)),
    ],
)
def diagonal_scatter(lo: Lowering, self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    positions = np.arange(self.size).reshape(self.shape)
    return _put_flat(lo, self, np.diagonal(positions, offset, dim1, dim2), src)


def _accumulate(
    aten: NarrowingAten[T], self: T, indices: Sequence[T | None], values: T, accumulate: bool = False
) -> T | None:
    """Cast int64 indices to int32; write a sum as a product with ones at the indices, as one may occur twice."""
    mask = indices[0] if len(indices) == 1 else None
    if mask is not None and aten.is_bool(mask) and aten.data(mask) is None:
        return _choose(aten, self, mask, values, accumulate)
    narrow = [i if i is None else aten.as_indices(i) for i in indices]
    if not accumulate:
        return None if narrow == list(indices) else aten.again({"self": self, "indices": narrow, "values": values})
    found = {d: i for d, i in enumerate(narrow) if i is not None}
    dims, given = list(found), list(found.values())
    if any(map(aten.is_bool, given)):
        return None
    order = [*dims, *(d for d in range(len(aten.shape(self))) if d not in dims)]
    shape = [aten.shape(self)[d] for d in order]
    wide = np.broadcast_shapes(*(aten.shape(i) for i in given))
    rest = shape[len(dims) :]
    before = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    rows = aten("expand.default", values, [*rest[:before], *wide, *rest[before:]])
    if before:
        inner = range(before, before + len(wide))
        rows = aten("permute.default", rows, [*inner, *range(before), *range(inner.stop, len(wide) + len(rest))])
    ones = _mark_positions(aten, given, shape[: len(dims)], wide)
    total = aten("mm.default", ones, aten("reshape.default", rows, [prod(wide), prod(rest)]))
    total = aten("reshape.default", total, shape)
    return aten("add.Tensor", self, aten("permute.default", total, list(inverse(tuple(order)))))


def _choose(aten: Aten[T], self: T, mask: T, values: T, accumulate: bool) -> T | None:
    """Write one number where a mask that is computed is true."""
    if prod(aten.shape(values)) != 1:
        return None
    sizes = aten.shape(mask)
    wide = aten("reshape.default", mask, [*sizes, *([1] * (len(aten.shape(self)) - len(sizes)))])
    number = aten("reshape.default", values, [1] * len(aten.shape(self)))
    return aten("where.self", wide, aten("add.Tensor", self, number) if accumulate else number, self)


def _mark_positions(aten: Aten[T], indices: Sequence[T], sizes: Sequence[int], shape: tuple[int, ...]) -> T:
    """Make a matrix with a column for each index, which has a one in the row of its position."""
    known = [array for i in indices if (array := aten.data(i)) is not None]
    if len(known) == len(indices):
        wide = np.broadcast_arrays(*known)
        flat = np.ravel_multi_index([a.astype(np.int64) % n for a, n in zip(wide, sizes, strict=True)], list(sizes))
        return aten.constant((flat.reshape(1, -1) == np.arange(prod(sizes)).reshape(-1, 1)).astype(np.float32))
    marks: T | None = None
    for place, (index, size) in enumerate(zip(indices, sizes, strict=True)):
        line = aten("expand.default", aten.as_numbers(index), list(shape))
        line = aten("reshape.default", line, [*([1] * len(sizes)), prod(shape)])
        numbers = np.arange(size, dtype=np.int32).reshape(*(-1 if i == place else 1 for i in range(len(sizes))), 1)
        same = [aten("eq.Tensor", line, aten.constant(n)) for n in (numbers, numbers - np.int32(size))]
        mark = aten("logical_or.default", *same)
        marks = mark if marks is None else aten("logical_and.default", marks, mark)
    ones = aten("where.Scalar", marks, 1.0, 0.0)
    return aten("reshape.default", ones, [prod(sizes), prod(shape)])


def _expand_masks(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Replace constant masks by the indices at which they are true, one for each of their dimensions."""
    expanded: list[Tensor | None] = []
    for index in indices:
        if isinstance(index, Const) and index.dtype is DType.BOOL:
            expanded += [Const(i.astype(np.int32), DType.I32) for i in np.nonzero(index.array)]
        else:
            expanded.append(index)
    return expanded


def _check_sum(lo: Lowering, a: Arguments) -> str:
    x = a["self"]
    return f"it is {describe(x)}" if a.get("accumulate") and (x.q is not None or not x.is_float) else ""


_SUMS = Constraint(
    "values are added to float data, which is quantized after this operator is decomposed",
    _check_sum,
    "quantize with Tosaic's quantizer, or write without accumulation",
)


@data_movement(
    "index_put",
    "index_put.default",
    "_unsafe_index_put.default",
    decompose=_accumulate,
    looks_up=True,
    constraints=[*_limit_indices("indices"), _SUMS],
    samples=lambda: [
        call(lambda x, y: (x + 1.0).index_put((torch.tensor([0, 2]),), y), f32(3, 4), f32(2, 4)),
        call(lambda x, y: (x + 1.0).index_put((torch.tensor([0, -1]), torch.tensor([1, 3])), y), f32(3, 4), f32(1)),
        call(lambda x, y: _put(x + 1.0, [None, [3, 0, 1]], y), f32(1, 17, 2), f32(3, 2)),
        call(lambda x, y: _put(x + 1.0, [[0, 1], None, [2, 0]], y), f32(2, 3, 64), f32(2, 3)),
        call(lambda x: _put(x + 1.0, [[True, False, True]], torch.tensor(0.5)), f32(3, 4)),
        call(lambda x, y: _put(x + 1.0, [list(range(0, 40, 2))], y), f32(40, 3), f32(20, 3)),
        call(lambda x, y: (x + 1.0).index_put((torch.tensor([0, 2, 0]),), y, accumulate=True), f32(3, 4), f32(3, 4)),
        call(
            lambda x, y: (x + 1.0).index_put((torch.tensor([[0], [2]]), torch.tensor([1, 3])), y),
            f32(3, 4, 2),
            f32(2),
        ),
        call(
            lambda x, y, i: _put(x + 1.0, [None, i], y),
            f32(3, 5, 2),
            f32(3, 1, 2),
            i32(1, low=-5, high=5),
            flavors=("FP", "INT"),
            targets=with_gather,
        ),
        call(lambda x, y, i: _put(x + 1, [i], y), i32(5, 3), i32(1, 3), i32(1, low=0, high=5), targets=with_gather),
    ],
)
def index_put(
    lo: Lowering, self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, **_: object
) -> Tensor | None:
    if accumulate or any(map(_is_mask, _list_tensors(indices))):
        return None
    found = {d: i for d, i in enumerate(_expand_masks(indices)) if i is not None}
    dims = list(found)
    order = list(range(self.rank))
    if dims != list(range(dims[0], dims[-1] + 1)):
        # Torch puts the dimensions of non-adjacent indices first in the values.
        order = [*dims, *(d for d in order if d not in found)]
    x = lo.permute(movement.require_movable(lo, self), order)
    first = order.index(dims[0])
    sizes = x.shape[first : first + len(dims)]
    flat = lookup.flatten_indices(lo, list(found.values()), sizes)
    line = lo.reshape(x, (*x.shape[:first], prod(sizes), *x.shape[first + len(dims) :]))
    wide = (*line.shape[:first], *flat.shape, *line.shape[first + 1 :])
    rows = movement.expand(lo, movement.require_movable(lo, values), wide)
    rows = lo.reshape(rows, (*line.shape[:first], flat.size, *line.shape[first + 1 :]))
    if isinstance(flat, Const):
        out = lookup.put(lo, line, first, [int(i) for i in flat.array.reshape(-1)], rows)
    else:
        out = lookup.scatter(lo, line, first, flat, rows)
    return lo.permute(lo.reshape(out, x.shape), inverse(tuple(order)))


def _put(x: Any, indices: list[Any], values: Any) -> Any:
    """Write at indices that may be None for a whole dimension, for samples."""
    return torch.ops.aten.index_put(x, [i if i is None else torch.as_tensor(i) for i in indices], values)


def _put_along(aten: Aten[T], self: T, dim: int, index: T, source: T, accumulate: bool = False) -> T:
    """Write to indices along one dimension; a single number is a tensor of one."""
    line = index if len(aten.shape(index)) == 1 else aten("reshape.default", index, [-1])
    shape = aten.shape(self)
    x, before = (self, dim % len(shape)) if shape else (aten("reshape.default", self, [1]), 0)
    out = aten("index_put.default", x, [*([None] * before), line], source, accumulate)
    return out if shape else aten("reshape.default", out, [])


@composite(
    "index_copy",
    looks_up=True,
    samples=lambda: [
        call(lambda x, y: (x + 1.0).index_copy(1, torch.tensor([0, 2]), y), f32(3, 4), f32(3, 2)),
        call(lambda x, y: (x + 1.0).index_copy(-2, torch.tensor([3, 0]), y), f32(1, 4, 17), f32(1, 2, 17)),
    ],
)
def index_copy(aten: Aten[T], self: T, dim: int, index: T, source: T) -> T:
    return _put_along(aten, self, dim, index, source)


@composite(
    "index_fill",
    "index_fill.int_Scalar",
    "index_fill.int_Tensor",
    looks_up=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).index_fill(1, torch.tensor([0, 2]), 0.5), f32(3, 4)),
        call(lambda x: (x + 1.0).index_fill(-2, torch.tensor([3, 0]), torch.tensor(-4.5)), f32(1, 4, 17)),
        call(lambda x, y: (x + 1.0).index_fill(0, torch.tensor([1]), y), f32(3, 64), f32()),
    ],
)
def index_fill(aten: Aten[T], self: T, dim: int, index: T, value: T | float) -> T:
    if isinstance(value, (int, float)):
        value = aten.constant(np.array([value], np.float32))
    return _put_along(aten, self, dim, index, value)


@composite(
    "index_add",
    looks_up=True,
    samples=lambda: [
        call(lambda x, y: (x + 1.0).index_add(0, torch.tensor([0, 2, 0]), y), f32(3, 4), f32(3, 4)),
        call(lambda x, y: (x + 1.0).index_add(-1, torch.tensor([3, 0]), y, alpha=0.5), f32(1, 17, 4), f32(1, 17, 2)),
    ],
)
def index_add(aten: Aten[T], self: T, dim: int, index: T, source: T, alpha: float = 1) -> T:
    scaled = source if alpha == 1 else aten("mul.Tensor", source, aten.constant(np.array(alpha, np.float32)))
    return _put_along(aten, self, dim, index, scaled, accumulate=True)


def _keep_int64(
    aten: NarrowingAten[T],
    self: T,
    dim: int,
    index: T,
    src: T | None = None,
    value: T | float | None = None,
    **other: object,
) -> T | None:
    """Write a number as a tensor; cast int64 indices to int32 and back, as the operator itself needs int64."""
    if src is None:
        number = isinstance(value, (int, float))
        source = aten.constant(np.full(aten.shape(index), value, np.float32)) if number else value
        return aten("scatter.src", self, dim, index, source)
    if not aten.is_int64(index):
        return None
    narrow = aten("to.dtype", aten.as_indices(index), torch.int64)
    return aten("scatter.src", self, dim, narrow, src)


def _make_indices(rows: int, columns: int) -> Any:
    """Make indices for samples that differ from row to row, none of them twice in a row."""
    return (torch.arange(columns).view(1, -1) + torch.arange(rows).view(-1, 1)) % columns


@data_movement(
    "scatter",
    "scatter.src",
    "scatter.value",
    decompose=_keep_int64,
    looks_up=True,
    constraints=_limit_indices("index"),
    samples=lambda: [
        call(lambda x, y: (x + 1.0).scatter(1, _make_indices(3, 2), y), f32(3, 4), f32(3, 2)),
        call(lambda x, y: (x + 1.0).scatter(-2, _make_indices(2, 3), y), f32(4, 17), f32(2, 5)),
        call(lambda x: (x + 1.0).scatter(1, _make_indices(3, 2), -4.5), f32(3, 64)),
        call(lambda x: (x + 1.0).scatter(-1, torch.tensor(2), -4.5), f32(5)),
        call(lambda x, y: (x + 1).scatter(0, _make_indices(1, 3), y), i32(3, 3), i32(1, 3)),
        call(
            lambda x, y, i: (x + 1.0).scatter(1, i.long(), y),
            f32(3, 5, 2),
            f32(2, 1, 2),
            i32(2, 1, 1, low=0, high=5),
            flavors=("FP", "INT"),
            targets=with_gather,
        ),
    ],
)
def scatter(
    lo: Lowering, self: Tensor, dim: int, index: Tensor, src: Tensor | None = None, **_: object
) -> Tensor | None:
    if src is None:
        return None
    if not self.rank:
        return lo.reshape(src, ())
    if not index.rank:
        index, src = lo.reshape(index, (1,)), src if src.rank else lo.reshape(src, (1,))
    x, d, source = movement.require_movable(lo, self), dim % self.rank, movement.require_movable(lo, src)
    for other in range(x.rank):
        source = movement.crop(lo, source, other, 0, index.shape[other])
    if isinstance(index, Const):
        return _put_flat(lo, x, lookup.locate(index.array, d, x.shape), source)
    return _scatter_computed(lo, x, d, index, source)


def _scatter_computed(lo: Lowering, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    for other in range(x.rank):
        count = index.shape[other]
        if other != dim and count < x.shape[other]:
            # Only the first rows are written to.
            changed = _scatter_computed(lo, movement.crop(lo, x, other, 0, count), dim, index, source)
            kept = movement.crop(lo, x, other, count, x.shape[other] - count)
            return movement.concatenate(lo, [changed, kept], other)
    order = [*(i for i in range(x.rank) if i != dim), dim]
    lines, wanted, rows = (lo.permute(t, order) for t in (x, make_movable(lo, index), source))
    count, chosen = prod(wanted.shape[:-1]), wanted.shape[-1]
    out = lookup.scatter_rows(
        lo,
        lo.reshape(lines, (count, lines.shape[-1], 1)),
        integers(lo, wanted, (count, chosen)),
        lo.reshape(rows, (count, chosen, 1)),
    )
    return lo.permute(lo.reshape(out, lines.shape), inverse(tuple(order)))


@composite(
    "scatter_add",
    looks_up=True,
    samples=lambda: [
        call(lambda x, y: (x + 1.0).scatter_add(1, torch.tensor([[0, 2], [1, 1], [0, 1]]), y), f32(3, 4), f32(3, 2)),
        call(lambda x, y: (x + 1.0).scatter_add(0, torch.tensor([[0, 2, 0], [0, 1, 1]]), y), f32(3, 3), f32(2, 3)),
    ],
)
def scatter_add(aten: Aten[T], self: T, dim: int, index: T, src: T) -> T | None:
    sizes, wanted = aten.shape(self), aten.shape(index)
    dim %= len(sizes)
    if any(n != m for i, (n, m) in enumerate(zip(sizes, wanted, strict=True)) if i != dim):
        return None
    order = [*(i for i in range(len(sizes)) if i != dim), dim]
    count, lead = sizes[dim], [sizes[i] for i in order[:-1]]
    for other, size in enumerate(wanted):
        src = aten("slice.Tensor", src, other, 0, size)
    numbers, known = np.arange(count, dtype=np.int32).reshape(1, count, 1), aten.data(index)
    if known is not None:
        rows = known.transpose(order).reshape(prod(lead), 1, wanted[dim])
        ones = aten.constant((rows == numbers).astype(np.float32))
    else:
        line = aten("permute.default", aten.as_numbers(index), order)
        line = aten("reshape.default", line, [prod(lead), 1, wanted[dim]])
        ones = aten("where.Scalar", aten("eq.Tensor", line, aten.constant(numbers)), 1.0, 0.0)
    column = aten("reshape.default", aten("permute.default", src, order), [prod(lead), wanted[dim], 1])
    total = aten("reshape.default", aten("bmm.default", ones, column), [*lead, count])
    return aten("add.Tensor", self, aten("permute.default", total, list(inverse(tuple(order)))))


@data_movement(
    "masked_scatter",
    looks_up=True,
    constraints=[
        Constraint("the mask is a constant of the model", _check_constant("mask"), "make the mask a constant")
    ],
    samples=lambda: [
        call(lambda x, y: (x + 1.0).masked_scatter(torch.eye(4).bool(), y), f32(4, 4), f32(4)),
        call(lambda x, y: (x + 1.0).masked_scatter(torch.tensor([True, False, True]), y), f32(1, 17, 3), f32(3, 17)),
        call(lambda x, y: (x + 1.0).masked_scatter(torch.eye(4).bool(), y), f32(4), f32(4)),
    ],
)
def masked_scatter(lo: Lowering, self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    assert isinstance(mask, Const), "a constraint refuses others"
    shape = broadcast(self.shape, mask.shape)
    positions = np.flatnonzero(np.broadcast_to(mask.array, shape))
    values = lo.reshape(movement.require_movable(lo, source), (source.size,))
    wide = self if self.shape == shape else movement.expand(lo, movement.require_movable(lo, self), shape)
    return _put_flat(lo, wide, positions, movement.crop(lo, values, 0, 0, len(positions)))
