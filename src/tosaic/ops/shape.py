"""Operators that move data: views, permutations, joining, cutting, repeating."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.lower import movement
from tosaic.lower.arguments import Dims
from tosaic.lower.aten import Aten, T
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import composite, with_copy
from tosaic.lower.samples import call, f32, torch
from tosaic.lower.tensor import Tensor


def _resolve(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Replace the -1 in a shape."""
    known = int(np.prod([d for d in shape if d != -1], dtype=np.int64))
    return tuple(size // max(known, 1) if d == -1 else int(d) for d in shape)


@data_movement(
    "view",
    *with_copy("view.default"),
    "_unsafe_view.default",
    "reshape.default",
    "_reshape_alias.default",
    samples=lambda: [
        call(lambda x: (x + 1.0).view(6, 4), f32(2, 3, 4)),
        call(lambda x: (x + 1.0).reshape(1, -1), f32(3, 17, 2, 2)),
        call(lambda x: (x * 2.0).view(2, 2, 2, 2, 3), f32(4, 12)),
        call(lambda x: (x * 2.0).reshape(()), f32(1)),
    ],
)
def view(
    lo: Lowering, self: Tensor, size: Sequence[int] = (), shape: Sequence[int] | None = None, **_: object
) -> Tensor:
    return lo.reshape(self, _resolve(size if shape is None else shape, self.size))


@data_movement(
    "flatten",
    "flatten.using_ints",
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


@data_movement(
    "unflatten",
    "unflatten.int",
    samples=lambda: [
        call(lambda x: (x + 1.0).unflatten(1, (2, 3)), f32(2, 6)),
        call(lambda x: (x + 1.0).unflatten(-1, (2, -1)), f32(2, 3, 6)),
    ],
)
def unflatten(lo: Lowering, self: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    d = dim % self.rank
    return lo.reshape(self, (*self.shape[:d], *_resolve(sizes, self.shape[d]), *self.shape[d + 1 :]))


@data_movement(
    "permute",
    *with_copy("permute.default"),
    samples=lambda: [
        call(lambda x: (x + 1.0).permute(0, 2, 3, 1), f32(3, 17, 2, 5)),
        call(lambda x: (x + 1.0).permute(2, 0, 1), f32(2, 3, 4)),
        call(lambda x: (x + 1.0).permute(-1, 0, 1, 2, 3), f32(1, 2, 3, 2, 4)),
        call(lambda x: (x + 1.0).permute(1, 0), f32(3, 4)),
    ],
)
def permute(lo: Lowering, self: Tensor, dims: Sequence[int]) -> Tensor:
    return lo.permute(movement.require_movable(lo, self), dims)


@data_movement(
    "transpose",
    *with_copy("transpose.int", "t.default"),
    "numpy_T.default",
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
    return lo.permute(movement.require_movable(lo, self), order)


@data_movement(
    "squeeze",
    *with_copy("squeeze.default", "squeeze.dim", "squeeze.dims"),
    samples=lambda: [
        call(lambda x: (x + 1.0).squeeze(), f32(1, 3, 1, 4)),
        call(lambda x: (x + 1.0).squeeze(-2), f32(1, 3, 1, 4)),
        call(lambda x: (x + 1.0).squeeze(1), f32(1, 3, 1, 4)),
        call(lambda x: (x + 1.0).squeeze((0, -2)), f32(1, 3, 1, 4)),
    ],
)
def squeeze(lo: Lowering, self: Tensor, dim: Dims = None) -> Tensor:
    chosen = range(self.rank) if dim is None else ([dim] if isinstance(dim, int) else dim)
    gone = {d % max(self.rank, 1) for d in chosen}
    return lo.reshape(self, [d for i, d in enumerate(self.shape) if not (i in gone and d == 1)])


@data_movement(
    "unsqueeze",
    *with_copy("unsqueeze.default"),
    samples=lambda: [
        call(lambda x: (x + 1.0).unsqueeze(0), f32(3, 4)),
        call(lambda x: (x + 1.0).unsqueeze(-1), f32(2, 3, 4)),
        call(lambda x: (x + 1.0).unsqueeze(-2), f32(3)),
    ],
)
def unsqueeze(lo: Lowering, self: Tensor, dim: int) -> Tensor:
    d = dim % (self.rank + 1)
    return lo.reshape(self, (*self.shape[:d], 1, *self.shape[d:]))


@data_movement(
    "expand",
    *with_copy("expand.default"),
    samples=lambda: [
        call(lambda x: (x + 1.0).expand(3, 4), f32(1, 4)),
        call(lambda x: (x + 1.0).expand(2, -1, 5), f32(3, 1)),
        call(lambda x: (x + 1.0).expand(-1, 17, -1, 4), f32(3, 1, 2, 1)),
    ],
)
def expand(lo: Lowering, self: Tensor, size: Sequence[int], implicit: bool = False) -> Tensor:
    kept = (1,) * (len(size) - self.rank) + self.shape
    shape = [d if n == -1 else int(n) for n, d in zip(size, kept, strict=True)]
    return movement.expand(lo, movement.require_movable(lo, self), shape)


@composite(
    "expand_as",
    samples=lambda: [
        call(lambda x, y: (x + 1.0).expand_as(y) * y, f32(1, 4), f32(3, 4)),
        call(lambda x, y: (x + 1.0).expand_as(y) + y, f32(17, 1), f32(3, 17, 2)),
    ],
)
def expand_as(aten: Aten[T], self: T, other: T) -> T:
    return aten("expand.default", self, list(aten.shape(other)))


@data_movement(
    "repeat",
    "repeat.default",
    "tile.default",
    samples=lambda: [
        call(lambda x: (x + 1.0).repeat(2, 3), f32(2, 5)),
        call(lambda x: (x + 1.0).repeat(2, 1, 3), f32(4, 3)),
        call(lambda x: (x + 1.0).repeat(1, 2, 1, 2), f32(1, 3, 2, 2)),
        call(lambda x: torch.tile(x + 1.0, (2,)), f32(3, 4)),
    ],
)
def repeat(lo: Lowering, self: Tensor, repeats: Sequence[int] = (), dims: Sequence[int] | None = None) -> Tensor:
    times = tuple(repeats if dims is None else dims)
    x = movement.require_movable(lo, self)
    rank = max(len(times), x.rank)
    times = (1,) * (rank - len(times)) + times
    return movement.tile(lo, lo.reshape(x, (1,) * (rank - x.rank) + x.shape), times)


@data_movement(
    "cat",
    "cat.default",
    "concat.default",
    samples=lambda: [
        call(lambda x, y: torch.cat([x * 2.0, y + 1.0], 1), f32(1, 3, 4, 4), f32(1, 17, 4, 4)),
        call(lambda x, y: torch.cat([x + 1.0, y], -1), f32(3, 4), f32(3, 2)),
        call(lambda x, y: torch.cat([x + 1.0, y, x]), f32(3), f32(2)),
        call(lambda x, y: torch.cat([torch.sigmoid(x), y * 3.0], 2), f32(2, 2, 3, 2), f32(2, 2, 1, 2)),
    ],
)
def cat(lo: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return movement.concatenate(lo, tensors, dim)


@data_movement(
    "stack",
    samples=lambda: [
        call(lambda x, y: torch.stack([x + 1.0, y], 0), f32(3, 4), f32(3, 4)),
        call(lambda x, y: torch.stack([x + 1.0, y * 2.0], -1), f32(2, 3, 4), f32(2, 3, 4)),
        call(lambda x, y: torch.stack([x + 1.0, y * 2.0], 1), f32(5), f32(5)),
    ],
)
def stack(lo: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    d = dim % (tensors[0].rank + 1)
    return movement.concatenate(
        lo, [lo.reshape(movement.require_movable(lo, t), (*t.shape[:d], 1, *t.shape[d:])) for t in tensors], d
    )


@data_movement(
    "slice",
    *with_copy("slice.Tensor", "narrow.default"),
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
    return movement.subsample(
        lo, movement.crop(lo, movement.require_movable(lo, self), d, first, last - first), d, step
    )


@data_movement(
    "select",
    *with_copy("select.int"),
    samples=lambda: [
        call(lambda x: (x + 1.0)[:, 1], f32(3, 5)),
        call(lambda x: (x + 1.0).select(-1, -2), f32(2, 3, 4)),
        call(lambda x: (x + 1.0)[0], f32(4, 2)),
    ],
)
def select(lo: Lowering, self: Tensor, dim: int, index: int) -> Tensor:
    d = dim % self.rank
    part = movement.crop(lo, movement.require_movable(lo, self), d, index % self.shape[d], 1)
    return lo.reshape(part, (*self.shape[:d], *self.shape[d + 1 :]))


def _split(lo: Lowering, x: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
    x, starts = movement.require_movable(lo, x), np.cumsum([0, *sizes])
    return [movement.crop(lo, x, dim, int(a), int(n)) for a, n in zip(starts, sizes, strict=False)]


@data_movement(
    "split",
    *with_copy("split.Tensor", "split_with_sizes.default"),
    "split.sizes",
    samples=lambda: [
        call(lambda x: sum_of((x + 1.0).split(2, 1)), f32(3, 6)),
        call(lambda x: (x + 1.0).split([1, 3], -1)[1], f32(2, 4)),
        call(lambda x: (x + 1.0).split(4)[0], f32(6, 2)),
    ],
)
def split(
    lo: Lowering,
    self: Tensor,
    split_size: int | Sequence[int] = (),
    split_sizes: Sequence[int] | None = None,
    dim: int = 0,
) -> list[Tensor]:
    d = dim % self.rank
    sizes = split_sizes if split_sizes is not None else split_size
    if isinstance(sizes, int):
        total = self.shape[d]
        sizes = [min(sizes, total - a) for a in range(0, total, sizes)]
    return _split(lo, self, sizes, d)


def sum_of(parts: Any) -> Any:
    """Add up all parts, for samples."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@data_movement(
    "chunk",
    samples=lambda: [
        call(lambda x: sum_of((x + 1.0).chunk(3, 1)), f32(2, 6)),
        call(lambda x: (x + 1.0).chunk(4, -1)[-1], f32(2, 7)),
        call(lambda x: (x + 1.0).chunk(2)[1], f32(4, 3)),
    ],
)
def chunk(lo: Lowering, self: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    d = dim % self.rank
    return split(lo, self, -(-self.shape[d] // chunks), dim=d)


@data_movement(
    "unbind",
    *with_copy("unbind.int"),
    samples=lambda: [
        call(lambda x: sum_of((x + 1.0).unbind(1)), f32(2, 3, 4)),
        call(lambda x: (x + 1.0).unbind()[1], f32(3, 4)),
    ],
)
def unbind(lo: Lowering, self: Tensor, dim: int = 0) -> list[Tensor]:
    d = dim % self.rank
    parts = _split(lo, self, [1] * self.shape[d], d)
    return [lo.reshape(p, (*self.shape[:d], *self.shape[d + 1 :])) for p in parts]
