"""Operators that move data: views, permutations, joining, cutting, repeating."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import op
from tosaic.lower.samples import call, f32, torch
from tosaic.lower.tensor import Const, Stored, Tensor, of_value, with_value


def movable(lo: Lowering, x: Tensor) -> Tensor:
    """Data can be moved as codes or as plain numbers; a pending function has to be finished first."""
    if x.q is not None and not x.is_accumulator:
        return lo.codes(x)
    return x


def _resolved(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """A shape with its -1 worked out."""
    known = int(np.prod([d for d in shape if d != -1], dtype=np.int64))
    return tuple(size // max(known, 1) if d == -1 else int(d) for d in shape)


@op(
    "view",
    "aten.view.default",
    "aten.view_copy.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten._reshape_alias.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).view(6, 4), f32(2, 3, 4)),
        call(lambda x: (x + 1.0).reshape(1, -1), f32(3, 17, 2, 2)),
        call(lambda x: (x * 2.0).view(2, 2, 2, 2, 3), f32(4, 12)),
        call(lambda x: (x * 2.0).reshape(()), f32(1)),
    ],
)
def view(lo: Lowering, self: Tensor, size: Sequence[int] = (), shape: Sequence[int] | None = None, **_: Any) -> Tensor:
    return lo.reshape(self, _resolved(size if shape is None else shape, self.size))


@op(
    "flatten",
    "aten.flatten.using_ints",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).flatten(1), f32(3, 4, 2, 2)),
        call(lambda x: (x + 1.0).flatten(), f32(2, 3)),
        call(lambda x: (x + 1.0).flatten(-3, -2), f32(1, 3, 2, 5)),
    ],
)
def flatten(lo: Lowering, self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    if self.rank == 0:
        return lo.reshape(self, (1,))
    a, b = start_dim % self.rank, end_dim % self.rank
    return lo.reshape(
        self, (*self.shape[:a], -1 if not self.size else int(np.prod(self.shape[a : b + 1])), *self.shape[b + 1 :])
    )


@op(
    "unflatten",
    "aten.unflatten.int",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).unflatten(1, (2, 3)), f32(2, 6)),
        call(lambda x: (x + 1.0).unflatten(-1, (2, -1)), f32(2, 3, 6)),
    ],
)
def unflatten(lo: Lowering, self: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    d = dim % self.rank
    return lo.reshape(self, (*self.shape[:d], *_resolved(sizes, self.shape[d]), *self.shape[d + 1 :]))


@op(
    "permute",
    "aten.permute.default",
    "aten.permute_copy.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).permute(0, 2, 3, 1), f32(3, 17, 2, 5)),
        call(lambda x: (x + 1.0).permute(2, 0, 1), f32(2, 3, 4)),
        call(lambda x: (x + 1.0).permute(-1, 0, 1, 2, 3), f32(1, 2, 3, 2, 4)),
        call(lambda x: (x + 1.0).permute(1, 0), f32(3, 4)),
    ],
)
def permute(lo: Lowering, self: Tensor, dims: Sequence[int]) -> Tensor:
    return lo.permute(movable(lo, self), dims)


@op(
    "transpose",
    "aten.transpose.int",
    "aten.transpose_copy.int",
    "aten.t.default",
    "aten.t_copy.default",
    "aten.numpy_T.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).transpose(1, -1), f32(2, 3, 4)),
        call(lambda x: (x + 1.0).transpose(0, 1), f32(3, 4)),
        call(lambda x: (x + 1.0).t(), f32(3, 4)),
    ],
)
def transpose(lo: Lowering, self: Tensor, dim0: int = 0, dim1: int = 1) -> Tensor:
    order = list(range(self.rank))
    if self.rank > 1:
        order[dim0], order[dim1] = order[dim1 % self.rank], order[dim0 % self.rank]
    return lo.permute(movable(lo, self), order)


@op(
    "squeeze",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.squeeze_copy.default",
    "aten.squeeze_copy.dim",
    "aten.squeeze_copy.dims",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).squeeze(), f32(1, 3, 1, 4)),
        call(lambda x: (x + 1.0).squeeze(-2), f32(1, 3, 1, 4)),
        call(lambda x: (x + 1.0).squeeze(1), f32(1, 3, 1, 4)),
        call(lambda x: (x + 1.0).squeeze((0, -2)), f32(1, 3, 1, 4)),
    ],
)
def squeeze(lo: Lowering, self: Tensor, dim: Any = None) -> Tensor:
    chosen = range(self.rank) if dim is None else ([dim] if isinstance(dim, int) else dim)
    gone = {d % max(self.rank, 1) for d in chosen}
    return lo.reshape(self, [d for i, d in enumerate(self.shape) if not (i in gone and d == 1)])


@op(
    "unsqueeze",
    "aten.unsqueeze.default",
    "aten.unsqueeze_copy.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).unsqueeze(0), f32(3, 4)),
        call(lambda x: (x + 1.0).unsqueeze(-1), f32(2, 3, 4)),
        call(lambda x: (x + 1.0).unsqueeze(-2), f32(3)),
    ],
)
def unsqueeze(lo: Lowering, self: Tensor, dim: int) -> Tensor:
    d = dim % (self.rank + 1)
    return lo.reshape(self, (*self.shape[:d], 1, *self.shape[d:]))


def tiled(lo: Lowering, x: Tensor, times: tuple[int, ...]) -> Tensor:
    """A tensor repeated along its dimensions."""
    if all(t == 1 for t in times):
        return x
    if isinstance(x, Const):
        return Const(np.tile(x.array, times), x.dtype, x.q)
    x = lo.unfold(x)
    physical = [1] * x.rank
    for axis, t in enumerate(times):
        physical[x.perm[axis]] = t
    shape = tuple(d * t for d, t in zip(x.shape, times, strict=True))
    return replace(with_value(x, tosa.tile(lo.b, x.value, tuple(physical)), x.q), shape=shape)


@op(
    "expand",
    "aten.expand.default",
    "aten.expand_copy.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).expand(3, 4), f32(1, 4)),
        call(lambda x: (x + 1.0).expand(2, -1, 5), f32(3, 1)),
        call(lambda x: (x + 1.0).expand(-1, 17, -1, 4), f32(3, 1, 2, 1)),
    ],
)
def expand(lo: Lowering, self: Tensor, size: Sequence[int], implicit: bool = False) -> Tensor:
    x = movable(lo, self)
    x = lo.reshape(x, (1,) * (len(size) - x.rank) + x.shape)
    return tiled(lo, x, tuple(1 if n == -1 else int(n) // d for n, d in zip(size, x.shape, strict=True)))


@op(
    "repeat",
    "aten.repeat.default",
    "aten.tile.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0).repeat(2, 3), f32(2, 5)),
        call(lambda x: (x + 1.0).repeat(2, 1, 3), f32(4, 3)),
        call(lambda x: (x + 1.0).repeat(1, 2, 1, 2), f32(1, 3, 2, 2)),
        call(lambda x: torch.tile(x + 1.0, (2,)), f32(3, 4)),
    ],
)
def repeat(lo: Lowering, self: Tensor, repeats: Sequence[int] = (), dims: Sequence[int] | None = None) -> Tensor:
    times = tuple(repeats if dims is None else dims)
    x = movable(lo, self)
    rank = max(len(times), x.rank)
    times = (1,) * (rank - len(times)) + times
    return tiled(lo, lo.reshape(x, (1,) * (rank - x.rank) + x.shape), times)


def joined(lo: Lowering, tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors one after the other along a dimension, on one grid if they are quantized."""
    parts = [movable(lo, t) for t in tensors if t.shape != (0,)]
    if any(p.q is not None for p in parts):
        parts = [lo.codes(p) for p in parts]
        q = lo.next_q or next(p.q for p in parts if p.q is not None)
        parts = [on_grid(lo, p, q) for p in parts]
    axis = dim % parts[0].rank
    stored = [p for p in parts if isinstance(p, Stored)]
    lead = next((p for p in stored if not p.is_materialized and not p.has_reshape), None)
    perm = tuple(range(parts[0].rank)) if lead is None else lead.perm
    values = [lo.arrange(p, perm) for p in parts]
    value = values[0] if len(values) == 1 else tosa.concat(lo.b, values, perm[axis])
    shape = tuple(value.shape[p] for p in perm)
    return Stored(shape, value, perm, parts[0].q)


def on_grid(lo: Lowering, x: Tensor, q: QParams) -> Tensor:
    """The codes of a tensor under `q`."""
    if x.q is not None and x.q.same_grid(q):
        return replace(x, q=q)
    return replace(lo.quantize(x, q), q=q)


@op(
    "cat",
    "aten.cat.default",
    "aten.concat.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x, y: torch.cat([x * 2.0, y + 1.0], 1), f32(1, 3, 4, 4), f32(1, 17, 4, 4)),
        call(lambda x, y: torch.cat([x + 1.0, y], -1), f32(3, 4), f32(3, 2)),
        call(lambda x, y: torch.cat([x + 1.0, y, x]), f32(3), f32(2)),
        call(lambda x, y: torch.cat([torch.sigmoid(x), y * 3.0], 2), f32(2, 2, 3, 2), f32(2, 2, 1, 2)),
    ],
)
def cat(lo: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return joined(lo, tensors, dim)


@op(
    "stack",
    "aten.stack.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x, y: torch.stack([x + 1.0, y], 0), f32(3, 4), f32(3, 4)),
        call(lambda x, y: torch.stack([x + 1.0, y * 2.0], -1), f32(2, 3, 4), f32(2, 3, 4)),
        call(lambda x, y: torch.stack([x + 1.0, y * 2.0], 1), f32(5), f32(5)),
    ],
)
def stack(lo: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    d = dim % (tensors[0].rank + 1)
    return joined(lo, [lo.reshape(movable(lo, t), (*t.shape[:d], 1, *t.shape[d:])) for t in tensors], d)


def cut(lo: Lowering, x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Part of a tensor along one dimension."""
    if length == x.shape[dim]:
        return x
    if isinstance(x, Const):
        return Const(np.take(x.array, range(start, start + length), dim), x.dtype, x.q)
    x = lo.unfold(x)
    begin, size = [0] * x.rank, list(x.value.shape)
    begin[x.perm[dim]], size[x.perm[dim]] = start, length
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return replace(with_value(x, tosa.slice(lo.b, x.value, tuple(begin), tuple(size)), x.q), shape=shape)


def subsampled(lo: Lowering, x: Tensor, dim: int, step: int) -> Tensor:
    """Every step-th element along a dimension: SLICE has no stride, so it is a view of (count, step) cut to one."""
    count = -(-x.shape[dim] // step)
    if step == 1 or count == 1:
        return cut(lo, x, dim, 0, count)
    if x.shape[dim] % step:
        # The last group is cut short: one more element than it needs is enough, whatever it holds.
        x = padded(lo, x, [(0, count * step - x.shape[dim]) if i == dim else (0, 0) for i in range(x.rank)], 0.0)
    x = lo.store(x)
    axis, shape = x.perm[dim], x.value.shape
    grouped = lo.reshape(of_value(x.value, x.q), (*shape[:axis], count, step, *shape[axis + 1 :]))
    thin = lo.reshape(cut(lo, grouped, axis + 1, 0, 1), (*shape[:axis], count, *shape[axis + 1 :]))
    value = lo.emit(thin)
    return replace(with_value(x, value, x.q), shape=(*x.shape[:dim], count, *x.shape[dim + 1 :]))


@op(
    "slice",
    "aten.slice.Tensor",
    "aten.slice_copy.Tensor",
    "aten.narrow.default",
    "aten.narrow_copy.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0)[:, 1:3], f32(3, 5)),
        call(lambda x: (x + 1.0)[..., -2:], f32(1, 3, 4, 4)),
        call(lambda x: (x + 1.0)[:, ::2], f32(2, 6)),
        call(lambda x: (x + 1.0)[:, 1::3], f32(2, 8)),
        call(lambda x: (x + 1.0)[:, :, 1:7:2, ::3], f32(1, 17, 8, 7)),
        call(lambda x: (x + 1.0)[0:100], f32(3, 2)),
        call(lambda x: (x + 1.0).narrow(1, 1, 2), f32(2, 4)),
    ],
)
def slice(
    lo: Lowering,
    self: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
    length: int | None = None,
) -> Tensor:
    d = dim % self.rank
    size = self.shape[d]
    first = min(max((start or 0) + (size if (start or 0) < 0 else 0), 0), size)
    last = size if end is None else min(max(end + (size if end < 0 else 0), 0), size)
    if length is not None:
        last = first + length
    if last <= first:
        raise Unsupported("its result is empty", "remove the empty slice")
    return subsampled(lo, cut(lo, movable(lo, self), d, first, last - first), d, step)


@op(
    "select",
    "aten.select.int",
    "aten.select_copy.int",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: (x + 1.0)[:, 1], f32(3, 5)),
        call(lambda x: (x + 1.0).select(-1, -2), f32(2, 3, 4)),
        call(lambda x: (x + 1.0)[0], f32(4, 2)),
    ],
)
def select(lo: Lowering, self: Tensor, dim: int, index: int) -> Tensor:
    d = dim % self.rank
    part = cut(lo, movable(lo, self), d, index % self.shape[d], 1)
    return lo.reshape(part, (*self.shape[:d], *self.shape[d + 1 :]))


def _pieces(lo: Lowering, x: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
    x, starts = movable(lo, x), np.cumsum([0, *sizes])
    return [cut(lo, x, dim, int(a), int(n)) for a, n in zip(starts, sizes, strict=False)]


@op(
    "split",
    "aten.split.Tensor",
    "aten.split_copy.Tensor",
    "aten.split_with_sizes.default",
    "aten.split_with_sizes_copy.default",
    "aten.split.sizes",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: sum_of((x + 1.0).split(2, 1)), f32(3, 6)),
        call(lambda x: (x + 1.0).split([1, 3], -1)[1], f32(2, 4)),
        call(lambda x: (x + 1.0).split(4)[0], f32(6, 2)),
    ],
)
def split(lo: Lowering, self: Tensor, split_size: Any = None, split_sizes: Any = None, dim: int = 0) -> list[Tensor]:
    d = dim % self.rank
    sizes = split_sizes if split_sizes is not None else split_size
    if isinstance(sizes, int):
        total = self.shape[d]
        sizes = [min(sizes, total - a) for a in range(0, total, sizes)]
    return _pieces(lo, self, sizes, d)


def sum_of(parts: Any) -> Any:
    """Used by samples: all parts added up."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@op(
    "chunk",
    "aten.chunk.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: sum_of((x + 1.0).chunk(3, 1)), f32(2, 6)),
        call(lambda x: (x + 1.0).chunk(4, -1)[-1], f32(2, 7)),
        call(lambda x: (x + 1.0).chunk(2)[1], f32(4, 3)),
    ],
)
def chunk(lo: Lowering, self: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    d = dim % self.rank
    return split(lo, self, -(-self.shape[d] // chunks), dim=d)


@op(
    "unbind",
    "aten.unbind.int",
    "aten.unbind_copy.int",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: sum_of((x + 1.0).unbind(1)), f32(2, 3, 4)),
        call(lambda x: (x + 1.0).unbind()[1], f32(3, 4)),
    ],
)
def unbind(lo: Lowering, self: Tensor, dim: int = 0) -> list[Tensor]:
    d = dim % self.rank
    parts = _pieces(lo, self, [1] * self.shape[d], d)
    return [lo.reshape(p, (*self.shape[:d], *self.shape[d + 1 :])) for p in parts]


def padded(lo: Lowering, x: Tensor, amounts: Sequence[tuple[int, int]], value: float) -> Tensor:
    """Constant padding; negative amounts cut."""
    for dim, (before, after) in enumerate(amounts):
        if before < 0 or after < 0:
            keep = x.shape[dim] + min(before, 0) + min(after, 0)
            x = cut(lo, x, dim, -min(before, 0), keep)
    grow = [(max(b, 0), max(a, 0)) for b, a in amounts]
    if not any(map(any, grow)):
        return x
    x = lo.store(x)
    fill: float | int = value
    if x.q is not None:
        fill = arith.real_codes(value, x.q)
    elif not x.is_float:
        fill = int(value)
    flat = [0] * (2 * x.rank)
    for dim, (before, after) in enumerate(grow):
        flat[2 * x.perm[dim]], flat[2 * x.perm[dim] + 1] = before, after
    padded: Value = tosa.pad(lo.b, x.value, tuple(flat), fill)
    shape = tuple(d + b + a for d, (b, a) in zip(x.shape, grow, strict=True))
    return replace(with_value(x, padded, x.q), shape=shape)
