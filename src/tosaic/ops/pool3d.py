"""Pooling of volumes: maximum and average over three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir.graph import DType
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower import convolution3d, movement, pooling
from tosaic.lower.arguments import Sizes, triple
from tosaic.lower.lowering import Lowering
from tosaic.lower.pool_positions import list_axes, locate_max
from tosaic.lower.pooling import PoolWindow
from tosaic.lower.registry import Arguments, op
from tosaic.lower.samples import F, Sample, call, f32, torch
from tosaic.lower.tensor import Const, Tensor


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of a window over frames, rows and columns."""

    kernel: tuple[int, int, int]
    stride: tuple[int, int, int]
    pad: tuple[int, int, int]
    dilation: tuple[int, int, int] = (1, 1, 1)

    def within(self) -> tuple[Sizes, Sizes, Sizes, Sizes]:
        """Return kernel, stride, padding and dilation within a frame."""
        return self.kernel[1:], self.stride[1:], self.pad[1:], self.dilation[1:]

    def along(self) -> tuple[Sizes, Sizes, Sizes, Sizes]:
        """Return those along the frames, which are the columns of an image."""
        return (1, self.kernel[0]), (1, self.stride[0]), (0, self.pad[0]), (1, self.dilation[0])


def _find_sizes(a: Arguments) -> _Sizes:
    kernel, stride = triple(a["kernel_size"]), a.get("stride")
    steps = kernel if stride is None or stride in ([], ()) else triple(stride)
    return _Sizes(kernel, steps, triple(a.get("padding", 0)), triple(a.get("dilation", 1)))


def _samples_pool3d(name: str) -> list[Sample]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return getattr(F, name)(*args, **kwargs)

    return [
        call(lambda x: function(x, 2), f32(1, 3, 4, 6, 5)),
        call(lambda x: function(x, 3, stride=1, padding=1), f32(3, 17, 3, 4, 4)),
        call(lambda x: function(x, (2, 3, 1), stride=(1, 2, 1)), f32(1, 1, 4, 5, 3)),
        call(lambda x: function(x, 2, stride=2, ceil_mode=True), f32(1, 3, 5, 4, 5)),
        call(lambda x: function(x, 2, stride=(4, 5, 4)), f32(1, 64, 6, 7, 6)),
        call(lambda x: function(x, (3, 4, 5)), f32(1, 3, 3, 4, 5)),
        call(lambda x: function(x, (1, 2, 2)), f32(3, 2, 4, 4)),
        call(lambda x: function(x, 2), f32(1, 3, 4, 4, 4, low=-30.0, high=0.1)),
    ]


@op(
    "max_pool3d",
    quant="share",
    computes_in_float32=True,
    samples=lambda: [
        *_samples_pool3d("max_pool3d"),
        call(lambda x: F.max_pool3d(x, 2, 2, 1, dilation=(2, 3, 1)), f32(1, 3, 5, 6, 4)),
    ],
)
def max_pool3d(lo: Lowering, self: Tensor, **arguments: Any) -> Tensor:
    x, sizes, ceil = (
        self if self.q is None else lo.require_quantized(self),
        _find_sizes(arguments),
        bool(arguments.get("ceil_mode")),
    )
    return pooling.apply_to_volumes(
        lo,
        x,
        lambda image: pooling.pool_max(lo, image, *sizes.within(), ceil),
        lambda image: pooling.pool_max(lo, image, *sizes.along(), ceil),
    )


@op(
    "max_pool3d_with_indices",
    quant="share",
    computes_in_float32=True,
    fits_int32=True,
    samples=lambda: [
        call(lambda x: _with_indices(x, 2), f32(1, 3, 4, 6, 5)),
        call(lambda x: _with_indices(x, 3, 2, 1), f32(3, 17, 3, 4, 5)),
        call(lambda x: _with_indices(x, (1, 2, 3), (1, 3, 1), 0, (1, 2, 1), ceil_mode=True), f32(1, 2, 3, 6, 5)),
        call(lambda x: _with_indices(x, 2, padding=1, dilation=2), f32(64, 4, 4, 4, low=-30.0, high=-1.0)),
        call(lambda x: F.max_pool3d(x, 2, return_indices=True)[0], f32(1, 3, 4, 4, 4)),
    ],
)
def max_pool3d_with_indices(lo: Lowering, self: Tensor, **arguments: Any) -> tuple[Tensor, Tensor | Unsupported]:
    """Lower the form that exir decomposes to, too."""
    within, along = _find_windows(self.shape, arguments)
    axes = [*list_axes((1, self.shape[-3]), along)[1:], *list_axes(self.shape[-2:], within)]
    return max_pool3d(lo, self=self, **arguments), locate_max(lo, self, axes)


def _with_indices(*args: Any, **kwargs: Any) -> Any:
    """Return the indices as the targets hold them, for samples."""
    values, indices = F.max_pool3d(*args, **kwargs, return_indices=True)
    return values, indices.to(torch.int32)


def _find_windows(shape: Sequence[int], a: Arguments) -> tuple[PoolWindow, PoolWindow]:
    """Return the windows within the frames and along them."""
    sizes, ceil = _find_sizes(a), bool(a.get("ceil_mode"))
    kernel, stride, pad, dilation = sizes.within()
    within = PoolWindow(shape, kernel, stride, pad, ceil, dilation)
    kernel, stride, pad, dilation = sizes.along()
    return within, PoolWindow((1, shape[-3]), kernel, stride, pad, ceil, dilation)


def _divisor_is_fixed(shape: Sequence[int], a: Arguments) -> bool:
    windows = _find_windows(shape, a)
    padded = any(any(w.pad) for w in windows) and not a.get("count_include_pad", True)
    return bool(a.get("divisor_override")) or not (padded or any(any(w.extra) for w in windows))


def _quant_avg(a: Arguments) -> str:
    """Choose the qparams: unequal windows are averaged at those of the input; all others are sums with one rounding."""
    return "observe" if _divisor_is_fixed(a["self"].shape, a) else "share"


@op(
    "avg_pool3d",
    quant=_quant_avg,
    computes_in_float32=True,
    samples=lambda: [
        *_samples_pool3d("avg_pool3d"),
        call(lambda x: F.avg_pool3d(x, 3, 2, 1, count_include_pad=False), f32(1, 3, 5, 4, 6)),
        call(lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True), f32(3, 3, 4, 5, 4)),
        call(lambda x: F.avg_pool3d(x, 2, divisor_override=3), f32(1, 3, 4, 4, 4)),
    ],
)
def avg_pool3d(lo: Lowering, self: Tensor, **arguments: Any) -> Tensor:
    x = self if self.q is None else lo.require_quantized(self)
    if _divisor_is_fixed(x.shape, arguments):
        full = lo.reshape(x, (1,) * (5 - x.rank) + x.shape)
        sizes = _find_sizes(arguments)
        out = _sum_volumes(lo, full, sizes, arguments.get("divisor_override") or prod(sizes.kernel))
        return lo.reshape(out, out.shape[5 - x.rank :])
    within, along = _find_windows(x.shape, arguments)
    count_pad = bool(arguments.get("count_include_pad", True))
    return pooling.apply_to_volumes(
        lo,
        x,
        lambda image: pooling.average_windows(lo, image, within, count_pad),
        lambda image: pooling.average_windows(lo, image, along, count_pad),
    )


def _sum_volumes(lo: Lowering, x: Tensor, sizes: _Sizes, divisor: int) -> Tensor:
    """Sum equal windows and divide by a constant, as a depthwise convolution with ones."""
    if sizes.kernel == x.shape[2:] and not any(sizes.pad):
        return arith.sum_over(lo, x, (2, 3, 4), divisor)
    unit = None if x.q is None else QParams((1.0,), (0,), DType.I8, -127, 127)
    ones = np.ones((x.shape[1], 1, *sizes.kernel), np.float32 if x.q is None else np.int8)
    long = max(sizes.stride[1:]) > pooling.LONGEST_STRIDE
    (d, h, w), (front, top, left) = sizes.stride, sizes.pad
    window = convolution3d.Window3d(
        sizes.kernel, (front, front, top, top, left, left), (d, 1, 1) if long else (d, h, w)
    )
    sums = convolution3d.sum_depthwise(lo, x, Const(ones, DType.F32 if unit is None else DType.I8, unit), None, window)
    if x.q is None:
        flat: Tensor = arith.multiply(lo, sums, lo.scalar(1.0 / divisor, sums))
    else:
        flat = pooling.quantize_sums(lo, arith.scaled(sums, 1.0 / divisor))
    out: Tensor = convolution3d.from_frames(lo, lo.store(flat).value, x.shape[0], x.shape[1], flat.q)
    for dim, step in ((3, h), (4, w)) if long else ():
        out = movement.subsample(lo, out, dim, step)
    return out
