"""Data movement on tensors: slices, tiles, concatenation, padding, reversal, and elements at constant positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower.arguments import make_movable
from tosaic.lower.booleans import is_table
from tosaic.lower.constraints import NO_STORED_BOOLEANS
from tosaic.lower.lowering import NHWC, Lowering, concat_values, of_image
from tosaic.lower.tensor import Const, Stored, Tensor, of_value, with_value

#: up to this many channels a convolution reverses them in a fifth of the cycles that REVERSE takes
MOST_REVERSED = 256


def require_movable(lo: Lowering, x: Tensor) -> Tensor:
    """Return the tensor if its data can be moved as stored; raise for one with a pending function."""
    if is_table(x) and not lo.target.has_booleans:
        raise Unsupported(f"{NO_STORED_BOOLEANS.sentence}; here one is moved", NO_STORED_BOOLEANS.fix)
    if x.q is not None and not x.is_accumulator:
        return lo.require_quantized(x)
    return x


def requantize(lo: Lowering, x: Tensor, q: QParams) -> Tensor:
    """Quantize a tensor to `q`, unless it already has these qparams."""
    if x.q is not None and x.q.same_grid(q):
        return replace(x, q=q)
    return replace(lo.quantize(x, q), q=q)


def tile(lo: Lowering, x: Tensor, times: tuple[int, ...]) -> Tensor:
    """Repeat a tensor along its dimensions."""
    if all(t == 1 for t in times):
        return x
    if isinstance(x, Const):
        return Const(np.tile(x.array, times), x.dtype, x.q)
    x = lo.store(x)
    physical = [1] * x.rank
    for axis, t in enumerate(times):
        physical[x.perm[axis]] = t
    shape = tuple(d * t for d, t in zip(x.shape, times, strict=True))
    return replace(with_value(x, tosa.tile(lo.b, x.value, tuple(physical)), x.q), shape=shape)


def expand(lo: Lowering, x: Tensor, shape: Sequence[int]) -> Tensor:
    """Repeat dimensions of size one to a shape, as torch broadcasts."""
    x = lo.reshape(x, (1,) * (len(shape) - x.rank) + x.shape)
    return tile(lo, x, tuple(int(n) // d for n, d in zip(shape, x.shape, strict=True)))


def concatenate(lo: Lowering, tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate tensors along a dimension, with one scale and zero point if they are quantized."""
    parts = [require_movable(lo, t) for t in tensors if t.shape != (0,)]
    if any(p.dtype is DType.I32 and not p.is_const for p in parts) and not lo.spec.support_integer():
        # The profile FP moves no integers.
        return _as_floats(lo, parts, dim)
    if any(p.q is not None for p in parts):
        parts = [lo.require_quantized(p) for p in parts]
        q = next(p.q for p in parts if p.q is not None)
        # Parts of one grid keep it: what follows may compute with them before it clamps.
        if not all(p.q is not None and p.q.same_grid(q) for p in parts):
            q = lo.next_q or q
        parts = [requantize(lo, p, q) for p in parts]
    axis = dim % parts[0].rank
    lead = next((p for p in parts if isinstance(p, Stored) and not p.is_materialized and not p.has_reshape), None)
    perm = tuple(range(parts[0].rank)) if lead is None else lead.perm
    value = concat_values(lo.b, [lo.to_layout(p, perm) for p in parts], perm[axis])
    shape = tuple(value.shape[p] for p in perm)
    return Stored(shape, value, perm, parts[0].q)


def _as_floats(lo: Lowering, parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate int32 numbers as float32, which is exact up to 2**24."""
    moved = lo.store(concatenate(lo, [make_movable(lo, p) for p in parts], dim))
    return of_value(tosa.cast(lo.b, lo.emit(moved), DType.I32))


def crop(lo: Lowering, x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Take `length` elements along one dimension."""
    if length == x.shape[dim]:
        return x
    if isinstance(x, Const):
        return Const(np.take(x.array, range(start, start + length), dim), x.dtype, x.q)
    x = lo.store(x)
    begin, size = [0] * x.rank, list(x.value.shape)
    begin[x.perm[dim]], size[x.perm[dim]] = start, length
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return replace(with_value(x, tosa.slice(lo.b, x.value, tuple(begin), tuple(size)), x.q), shape=shape)


def subsample(lo: Lowering, x: Tensor, dim: int, step: int) -> Tensor:
    """Take every step-th element along a dimension: SLICE has no stride, so it crops a view of (count, step)."""
    count = -(-x.shape[dim] // step)
    if step == 1 or count == 1:
        return crop(lo, x, dim, 0, count)
    if isinstance(x, Const):
        return Const(np.take(x.array, range(0, x.shape[dim], step), dim), x.dtype, x.q)
    if x.shape[dim] % step:
        # The last group is truncated: one more element than it needs is enough, whatever its value.
        x = pad(lo, x, [(0, count * step - x.shape[dim]) if i == dim else (0, 0) for i in range(x.rank)], 0.0)
    x = lo.store(x)
    axis, shape = x.perm[dim], x.value.shape
    grouped = lo.reshape(of_value(x.value, x.q), (*shape[:axis], count, step, *shape[axis + 1 :]))
    thin = lo.reshape(crop(lo, grouped, axis + 1, 0, 1), (*shape[:axis], count, *shape[axis + 1 :]))
    value = lo.emit(thin)
    return replace(with_value(x, value, x.q), shape=(*x.shape[:dim], count, *x.shape[dim + 1 :]))


def pad(lo: Lowering, x: Tensor, amounts: Sequence[tuple[int, int]], value: float) -> Tensor:
    """Pad with a constant; negative amounts crop."""
    for dim, (before, after) in enumerate(amounts):
        if before < 0 or after < 0:
            keep = x.shape[dim] + min(before, 0) + min(after, 0)
            x = crop(lo, x, dim, -min(before, 0), keep)
    grow = [(max(b, 0), max(a, 0)) for b, a in amounts]
    if not any(map(any, grow)):
        return x
    x = lo.store(x)
    if isinstance(x, Const):
        x = of_value(lo.emit(x), x.q)
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


def reverse(lo: Lowering, x: Tensor, dim: int) -> Tensor:
    """Reverse a tensor along a dimension."""
    if x.shape[dim] == 1:
        return x
    if isinstance(x, Const):
        return Const(np.ascontiguousarray(np.flip(x.array, dim)), x.dtype, x.q)
    x = lo.store(x)
    axis, shape = x.perm[dim], x.value.shape
    if lo.target.is_npu and x.is_plain_quantized and x.dtype is DType.I8 and prod(shape[axis + 1 :]) == 1:
        places, size = prod(shape[:axis]), shape[axis]
        if size <= min(MOST_REVERSED, 4 * places):
            return with_value(x, _reverse_channels(lo, x, places, size), x.q)
    if lo.target.reverses_any_axis:
        return with_value(x, tosa.reverse(lo.b, x.value, axis), x.q)
    # The NPU reverses the width or height of an image, and not in 32 bits.
    rows = lo.emit(lo.reshape(of_value(x.value), (1, prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))))
    if x.dtype in (DType.I8, DType.I16):
        back = tosa.reverse(lo.b, rows, 2)
    else:
        n, h, w, c = rows.shape
        back = concat_values(lo.b, [tosa.slice(lo.b, rows, (0, 0, i, 0), (n, h, 1, c)) for i in reversed(range(w))], 2)
    return with_value(x, lo.emit(lo.reshape(of_value(back), shape)), x.q)


def _reverse_channels(lo: Lowering, x: Stored, places: int, size: int) -> Value:
    """Reverse the last axis by a convolution with ones and zeros."""
    image = of_image(lo.emit(lo.reshape(of_value(x.value), (1, 1, places, size))), x.q)
    ones = np.eye(size, dtype=np.int8)[::-1].reshape(size, 1, 1, size)
    back = lo.to_layout(arith.convolve_fixed_point(lo, image, ones), NHWC)
    return lo.emit(lo.reshape(of_value(back), x.value.shape))


#: makes the padding on one side: (context, tensor, dimension, count, whether it is the front)
Edge = Callable[[Lowering, Tensor, int, int, bool], Tensor]


def _reflect(lo: Lowering, x: Tensor, dim: int, count: int, front: bool) -> Tensor:
    return reverse(lo, crop(lo, x, dim, 1 if front else x.shape[dim] - 1 - count, count), dim)


def _replicate(lo: Lowering, x: Tensor, dim: int, count: int, front: bool) -> Tensor:
    edge = crop(lo, x, dim, 0 if front else x.shape[dim] - 1, 1)
    return tile(lo, edge, tuple(count if i == dim else 1 for i in range(x.rank)))


def _wrap(lo: Lowering, x: Tensor, dim: int, count: int, front: bool) -> Tensor:
    return crop(lo, x, dim, x.shape[dim] - count if front else 0, count)


#: how padding is made from the tensor itself, by torch's name of the mode
PADDINGS: dict[str, Edge] = {"reflect": _reflect, "replicate": _replicate, "circular": _wrap}


def list_amounts(sizes: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """List (before, after) for each dimension; torch counts them from the last dimension."""
    amounts = [(0, 0)] * rank
    for i in range(len(sizes) // 2):
        amounts[rank - 1 - i] = (int(sizes[2 * i]), int(sizes[2 * i + 1]))
    return amounts


def pad_from_itself(lo: Lowering, x: Tensor, sizes: Sequence[int], mode: str) -> Tensor:
    """Pad with elements of the tensor itself, one dimension after the other."""
    amounts, x = list_amounts(sizes, x.rank), require_movable(lo, x)
    x = pad(lo, x, [(min(a, 0), min(b, 0)) for a, b in amounts], 0.0)
    for dim, (before, after) in enumerate(amounts):
        front = [PADDINGS[mode](lo, x, dim, before, True)] if before > 0 else []
        back = [PADDINGS[mode](lo, x, dim, after, False)] if after > 0 else []
        if front or back:
            x = concatenate(lo, [*front, x, *back], dim)
    return x
