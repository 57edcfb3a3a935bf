"""Where the maxima of a pooling are: over windows of any number of axes, regular or adaptive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType, Value
from tosaic.lower import movement, positions
from tosaic.lower.arguments import integers, make_movable
from tosaic.lower.lowering import Lowering
from tosaic.lower.pooling import Cells, PoolWindow
from tosaic.lower.tensor import Tensor, of_value

_Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Axis:
    """The windows along one axis: window i has the pixels `first[i] + step * n` for n below `kernel`.

    One outside of `least[i]` to `most[i]` stands for the nearest pixel of the window that is inside.
    """

    kernel: int
    step: int
    first: _Numbers
    least: _Numbers
    most: _Numbers

    def list_pixels(self, n: int) -> list[int]:
        """List the n-th pixel of each window."""
        return [int(p) for p in np.clip(self.first + n * self.step, self.least, self.most)]


def list_axes(size: Sequence[int], window: PoolWindow) -> list[Axis]:
    """Return both axes of the windows of an image."""
    axes: list[Axis] = []
    for i, pixels in enumerate(size):
        kernel, step, stride = window.kernel[i], window.dilation[i], window.stride[i]
        before, after = window.padding[2 * i : 2 * i + 2]
        first = np.arange((pixels + before + after - step * (kernel - 1) - 1) // stride + 1) * stride - before
        least = first + -(np.minimum(first, 0) // step) * step
        last = first + step * (kernel - 1)
        most = last - -(-np.maximum(last - (pixels - 1), 0) // step) * step
        axes.append(Axis(kernel, step, first, least, most))
    return axes


def list_cells(cells: Cells) -> Axis:
    """Return an axis of the windows of an adaptive pooling."""
    first, end = np.array(cells).T
    return Axis(int((end - first).max()), 1, first, first, end - 1)


def locate_max(lo: Lowering, x: Tensor, axes: Sequence[Axis]) -> Tensor | Unsupported:
    """Find where in its channel the maximum of each window is, the first of several; return why not if it cannot.

    The axes are the last ones of the tensor, after its channels.
    """
    try:
        return _locate_max(lo, x if x.q is None else lo.require_quantized(x), axes)
    except Unsupported as error:
        return error


def _locate_max(lo: Lowering, x: Tensor, axes: Sequence[Axis]) -> Tensor:
    rank, counts = len(axes), [len(axis.first) for axis in axes]
    lead = x.shape[: x.rank - rank]
    size, batch, channels = x.shape[x.rank - rank :], prod(lead[:-1]), lead[-1]
    image = lo.permute(lo.reshape(x, (batch, channels, *size)), (0, *range(2, rank + 2), 1))
    every, places = prod(axis.kernel for axis in axes), batch * prod(counts) * channels
    wrong = positions.check_size(lo, every)
    if wrong:
        raise Unsupported(f"{positions.LENGTH}; here {wrong}", positions.LENGTH_FIX)
    pixels = [lo.reshape(p, (places, 1)) for p in _list_pixels(lo, image, axes, 1)]
    found = positions.find(lo, movement.concatenate(lo, pixels, 1), 1, False, True)
    numbers = _count_pixels(lo, lo.reshape(make_movable(lo, found), (batch, prod(counts), channels)), axes, size)
    out = lo.reshape(lo.permute(of_value(numbers), (0, 2, 1)), (*lead, *counts))
    return out if "INT" in lo.spec.profiles else of_value(integers(lo, out, out.shape))


def _list_pixels(lo: Lowering, x: Tensor, axes: Sequence[Axis], dim: int) -> list[Tensor]:
    """List the pixels of each window, the last axis first: each has one number for every window."""
    if not axes:
        return [x]
    return list(
        itertools.chain.from_iterable(
            _list_pixels(lo, _take(lo, x, dim, axes[0].list_pixels(n)), axes[1:], dim + 1)
            for n in range(axes[0].kernel)
        )
    )


def _take(lo: Lowering, x: Tensor, dim: int, places: Sequence[int]) -> Tensor:
    """Take elements at constant places of a dimension, in as few parts of one distance as possible."""
    # Vela has no operators on five dimensions.
    merged = lo.reshape(x, (prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])))
    parts: list[Tensor] = []
    start = 0
    while start < len(places):
        end, step = start + 1, max(places[start + 1] - places[start], 1) if start + 1 < len(places) else 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        span = movement.crop(lo, merged, 1, places[start], places[end - 1] - places[start] + 1)
        parts.append(movement.subsample(lo, span, 1, step))
        start = end
    taken = parts[0] if len(parts) == 1 else movement.concatenate(lo, parts, 1)
    return lo.reshape(taken, (*x.shape[:dim], len(places), *x.shape[dim + 1 :]))


def _count_pixels(lo: Lowering, places: Tensor, axes: Sequence[Axis], size: Sequence[int]) -> Value:
    """Return the pixel of a place in each window: a number of [batch, windows, channels]."""
    b, left = lo.b, lo.emit(places)

    def numbers(value: int | _Numbers) -> Value:
        return lo.constant(np.reshape(value, (1, -1, 1)).astype(np.int32), left.dtype)

    total: Value | None = None
    for i in reversed(range(len(axes))):
        axis, place = axes[i], left
        if i:
            left = _divide(lo, place, axis.kernel)
            place = tosa.sub(b, place, tosa.mul(b, left, numbers(axis.kernel)))
        first, least, most = (_spread(axes, i, value) for value in (axis.first, axis.least, axis.most))
        at = tosa.add(b, tosa.mul(b, place, numbers(axis.step)), numbers(first))
        if (first < least).any():
            at = tosa.maximum(b, at, numbers(least))
        if (first + axis.step * (axis.kernel - 1) > most).any():
            at = tosa.minimum(b, at, numbers(most))
        at = tosa.mul(b, at, numbers(prod(size[i + 1 :])))
        total = at if total is None else tosa.add(b, total, at)
    assert total is not None
    return total


def _spread(axes: Sequence[Axis], which: int, values: _Numbers) -> _Numbers:
    """Repeat a number for each window along one axis for the windows along all of them."""
    shape = [len(axis.first) for axis in axes]
    return np.broadcast_to(values.reshape([-1 if i == which else 1 for i in range(len(shape))]), shape).reshape(-1)


def _divide(lo: Lowering, value: Value, divisor: int) -> Value:
    """Divide small natural numbers by a constant, rounded down."""

    def number(value_: float) -> Value:
        return lo.b.number(value_, value, value.dtype)

    if value.dtype.is_float:
        return tosa.floor(lo.b, tosa.mul(lo.b, tosa.add(lo.b, value, number(0.5)), number(1.0 / divisor)))
    # Between two multiples, so that rounding to the nearest rounds down.
    middle = tosa.sub(lo.b, tosa.add(lo.b, value, value), number(divisor - 1))
    return lo.rescale(middle, DType.I32, [0.5 / divisor])
