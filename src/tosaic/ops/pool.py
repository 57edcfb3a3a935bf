"""Pooling: max, average and adaptive average, any stride, with ceil_mode and without."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower import movement
from tosaic.lower.arguments import pair
from tosaic.lower.lowering import NHWC, Lowering, of_image
from tosaic.lower.registry import Arguments, Constraint, op
from tosaic.lower.samples import F, Sample, call, f32, module, nn
from tosaic.lower.tensor import Tensor

#: a stride that every Ethos-U supports; a larger one is stride 1 and a subsampling
LONGEST_STRIDE = 3


class PoolWindow:
    """The window of a 2-D pooling: kernel, stride, padding, and the rows that ceil_mode adds at the end."""

    def __init__(self, shape: Sequence[int], kernel: Any, stride: Any, padding: Any, ceil_mode: bool) -> None:
        self.kernel = pair(kernel)
        self.stride = self.kernel if stride is None or stride in ([], ()) else pair(stride)
        self.pad = pair(padding)
        self.extra = [0, 0]
        for axis, size in enumerate(shape[-2:]):
            span = size + 2 * self.pad[axis] - self.kernel[axis]
            outputs = span // self.stride[axis] + 1
            # ceil_mode adds a window only if it starts inside the image or its left padding.
            starts = outputs * self.stride[axis] < size + self.pad[axis]
            if ceil_mode and span % self.stride[axis] and starts:
                self.extra[axis] = self.stride[axis] - span % self.stride[axis]
                outputs += 1
            # A single window that covers a whole axis needs no stride there.
            if outputs == 1 and not span:
                self.stride = (1, self.stride[1]) if axis == 0 else (self.stride[0], 1)
        self.padding = (self.pad[0], self.pad[0] + self.extra[0], self.pad[1], self.pad[1] + self.extra[1])

    @property
    def is_long(self) -> bool:
        return max(self.stride) > LONGEST_STRIDE

    @property
    def steps(self) -> tuple[int, int]:
        """The stride used on the NPU."""
        return (1, 1) if self.is_long else self.stride

    def as_conv(self) -> arith.Window:
        """Return padding and stride as a convolution takes them."""
        return arith.Window(self.padding, self.steps)


def _check_rank(lo: Lowering, a: Arguments) -> str:
    rank = a["self"].rank
    return "" if rank in (3, 4) else f"the tensor has {rank}"


def _check_dilation(lo: Lowering, a: Arguments) -> str:
    high, wide = pair(a["dilation"])
    return "" if (high, wide) == (1, 1) else f"the dilation is {high}x{wide}"


_IMAGES = Constraint(
    "pooling takes an image of 3 or 4 dimensions", _check_rank, "reshape its input to an image of 3 or 4 dimensions"
)
_MAX = (_IMAGES, Constraint("max pooling has no dilation", _check_dilation, "use dilation=1"))


def _add_batch(lo: Lowering, x: Tensor) -> Tensor:
    return x if x.rank == 4 else lo.reshape(x, (1, *x.shape))


def _subsample(lo: Lowering, x: Tensor, window: PoolWindow) -> Tensor:
    """Reduce a result computed with stride 1 to the requested stride."""
    if not window.is_long:
        return x
    for axis in (0, 1):
        x = movement.subsample(lo, x, 2 + axis, window.stride[axis])
    return x


def _samples_pool(name: str) -> list[Sample]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return getattr(F, name)(*args, **kwargs)

    return [
        call(lambda x: function(x, 2), f32(1, 3, 8, 8)),
        call(lambda x: function(x, 3, stride=1), f32(3, 17, 6, 6)),
        call(lambda x: function(x, (2, 3), stride=(2, 1)), f32(1, 1, 6, 9)),
        call(lambda x: function(x, 3, stride=2, padding=1), f32(1, 64, 8, 8)),
        call(lambda x: function(x, 3, stride=2, ceil_mode=True), f32(1, 3, 8, 8)),
        call(lambda x: function(x, 3, stride=2, padding=1, ceil_mode=True), f32(1, 3, 8, 8)),
        call(lambda x: function(x, 4, stride=4), f32(1, 3, 12, 12)),
        call(lambda x: function(x, 2, stride=5), f32(1, 3, 12, 12)),
        call(lambda x: function(x, (6, 5)), f32(1, 3, 6, 5)),
        call(lambda x: function(x, 2), f32(3, 5, 2, 3)),
        call(lambda x: function(x, 2), f32(3, 8, 8)),
        call(lambda x: function(x, 2), f32(1, 3, 8, 8, low=-30.0, high=0.1)),
    ]


@op(
    "max_pool2d",
    quant="share",
    computes_in_float32=True,
    constraints=_MAX,
    samples=lambda: [
        *_samples_pool("max_pool2d"),
        module(lambda: nn.MaxPool2d(2), f32(1, 3, 8, 8)),
    ],
)
def max_pool2d(
    lo: Lowering,
    self: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    x = self if self.q is None else lo.codes(self)
    full = _add_batch(lo, x)
    window = PoolWindow(full.shape, kernel_size, stride, padding, ceil_mode)
    image, pad = arith.fit_window(lo, lo.to_layout(full, NHWC), window.kernel, window.as_conv())
    value = tosa.max_pool2d(lo.b, image, kernel=window.kernel, stride=window.steps, pad=pad)
    out = _subsample(lo, of_image(value, x.q), window)
    return out if self.rank == 4 else lo.reshape(out, out.shape[1:])


@op("max_pool2d_with_indices", quant="none", computes_in_float32=True, constraints=_MAX)
def max_pool2d_with_indices(lo: Lowering, **arguments: Any) -> tuple[Any, Any]:
    """Lower the form that exir decomposes to. The values are on the NPU; the indices are not."""
    return max_pool2d(lo, **arguments), Unsupported("the positions of the maxima are not available on the NPU")


def _divisor_is_fixed(x_shape: Sequence[int], a: Arguments) -> bool:
    window = PoolWindow(x_shape, a["kernel_size"], a.get("stride"), a.get("padding", 0), bool(a.get("ceil_mode")))
    padded = any(window.pad) and not a.get("count_include_pad", True)
    return bool(a.get("divisor_override")) or not (padded or any(window.extra))


def _quant_avg(a: Arguments) -> str:
    """Choose the qparams: unequal windows are averaged at those of the input; all others are sums with one rounding."""
    return "observe" if _divisor_is_fixed(a["self"].shape, a) else "share"


@op(
    "avg_pool2d",
    quant=_quant_avg,
    computes_in_float32=True,
    constraints=[_IMAGES],
    samples=lambda: [
        *_samples_pool("avg_pool2d"),
        call(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), f32(1, 3, 8, 8)),
        call(lambda x: F.avg_pool2d(x, 2, divisor_override=3), f32(1, 3, 8, 8)),
        call(lambda x: F.avg_pool2d(x.sigmoid(), 2), f32(1, 3, 8, 8)),
    ],
)
def avg_pool2d(
    lo: Lowering,
    self: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    x = self if self.q is None else lo.codes(self)
    full = _add_batch(lo, x)
    window = PoolWindow(full.shape, kernel_size, stride, padding, ceil_mode)
    arguments = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "ceil_mode": ceil_mode,
                 "count_include_pad": count_include_pad, "divisor_override": divisor_override}  # fmt: skip
    if _divisor_is_fixed(full.shape, arguments):
        out = _window_sum(lo, full, window, divisor_override or window.kernel[0] * window.kernel[1])
    else:
        out = _window_mean(lo, full, window, count_include_pad)
    return out if self.rank == 4 else lo.reshape(out, out.shape[1:])


def _window_sum(lo: Lowering, x: Tensor, window: PoolWindow, divisor: int) -> Tensor:
    """Sum equal windows and divide by a constant, as a depthwise convolution with ones."""
    channels = x.shape[1]
    if window.kernel == x.shape[2:] and not any(window.padding):
        return arith.sum_over(lo, x, (2, 3), divisor)
    dtype = np.float32 if x.q is None else np.int8
    ones = np.ones((*window.kernel, channels, 1), dtype)
    unit = None if x.q is None else QParams((1.0,), (0,), DType.I8, -127, 127)
    out = arith.convolve(lo, x, ones, unit, None, window.as_conv(), depthwise=True)
    if x.q is None:
        out = arith.multiply(lo, out, lo.scalar(1.0 / divisor, out))
        return _subsample(lo, out, window)
    out = arith.scaled(out, 1.0 / divisor)
    if not window.is_long:
        return out
    return _subsample(lo, _quantize_sums(lo, out), window)


def _window_mean(lo: Lowering, x: Tensor, window: PoolWindow, count_pad: bool) -> Tensor:
    """Lower to AVG_POOL2D, which divides by the pixels it covers; padding that counts is made part of the image."""
    image, padding = lo.to_layout(x, NHWC), window.padding
    zp = 0 if x.q is None else x.q.zp
    if count_pad and any(window.pad):
        (high, wide), (below, right) = window.pad, window.extra
        image = tosa.pad(lo.b, image, (0, 0, high, high, wide, wide, 0, 0), float(zp) if x.q is None else zp)
        padding = (0, below, 0, right)
    image, padding = arith.fit_window(lo, image, window.kernel, arith.Window(padding, window.steps))
    acc = DType.I32 if x.q is not None else x.dtype

    def build(value: Value) -> Value:
        return tosa.avg_pool2d(
            lo.b, value, kernel=window.kernel, stride=window.steps, pad=padding, acc_type=acc, x_zp=zp, out_zp=zp
        )

    n, h, w, c = image.shape
    if n > 1 and not lo.target.averages_batches:
        rows = [build(tosa.slice(lo.b, image, (i, 0, 0, 0), (1, h, w, c))) for i in range(n)]
        value = tosa.concat(lo.b, rows, 0)
    else:
        value = build(image)
    return _subsample(lo, of_image(value, x.q), window)


def cells(size: int, count: int) -> list[tuple[int, int]]:
    """Return start and end of torch's adaptive pooling windows."""
    return [((i * size) // count, -((-(i + 1) * size) // count)) for i in range(count)]


@op(
    "adaptive_avg_pool2d",
    "adaptive_avg_pool2d.default",
    "_adaptive_avg_pool2d.default",
    computes_in_float32=True,
    constraints=[_IMAGES],
    samples=lambda: [
        call(lambda x: F.adaptive_avg_pool2d(x, 1), f32(1, 17, 7, 7)),
        call(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), f32(3, 3, 8, 9)),
        call(lambda x: F.adaptive_avg_pool2d(x, 3), f32(1, 3, 10, 10)),
        call(lambda x: F.adaptive_avg_pool2d(x, (3, 4)), f32(1, 3, 7, 9)),
        call(lambda x: F.adaptive_avg_pool2d(x, (None, 2)), f32(1, 3, 4, 6)),
        call(lambda x: F.adaptive_avg_pool2d(x, (5, 6)), f32(1, 3, 5, 6)),
        call(lambda x: F.adaptive_avg_pool2d(x, 1), f32(64, 6, 6)),
        call(lambda x: F.adaptive_avg_pool2d(x, 3), f32(1, 4, 1, 1)),
        call(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), f32(1, 3, 1, 4)),
    ],
)
def adaptive_avg_pool2d(lo: Lowering, self: Tensor, output_size: Sequence[int]) -> Tensor:
    x = self if self.q is None else lo.codes(self)
    full = _add_batch(lo, x)
    grid = [cells(size, count) for size, count in zip(full.shape[2:], pair(output_size), strict=True)]
    # Windows that are all the same give one number, which is then repeated.
    times = [len(c) if len(set(c)) == 1 else 1 for c in grid]
    grid = [c[:1] if len(set(c)) == 1 else c for c in grid]
    regular = [_progression(c) for c in grid]
    if all(regular):
        kernel = [r[0] for r in regular if r is not None]
        steps = [r[1] for r in regular if r is not None]
        out = _window_sum(lo, full, PoolWindow(full.shape, kernel, steps, 0, False), kernel[0] * kernel[1])
    else:
        out = _average_cells(lo, full, grid)
    if max(times) > 1:
        out = movement.tile(lo, _quantize_sums(lo, out), (1, 1, times[0], times[1]))
    return out if self.rank == 4 else lo.reshape(out, out.shape[1:])


def _quantize_sums(lo: Lowering, x: Tensor) -> Tensor:
    """Quantize an accumulator with the result's qparams; return any other tensor unchanged."""
    if not x.is_accumulator:
        return x
    return movement.requantize(lo, x, lo.out_q("pooling"))


def _progression(windows: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return (kernel, stride) if the windows are of one size and evenly spaced."""
    sizes = {b - a for a, b in windows}
    gaps = {b[0] - a[0] for a, b in itertools.pairwise(windows)}
    if len(sizes) != 1 or len(gaps) > 1:
        return None
    return (sizes.pop(), gaps.pop() if gaps else 1)


def _average_cells(lo: Lowering, x: Tensor, grid: list[list[tuple[int, int]]]) -> Tensor:
    """Compute one mean per cell; quantized before they are concatenated, so that unequal cells share a scale."""
    q, image = None if x.q is None else lo.out_q("pooling"), lo.to_layout(x, NHWC)
    n, _, _, c = image.shape
    rows: list[Value] = []
    for top, bottom in grid[0]:
        row: list[Value] = []
        for left, right in grid[1]:
            piece = tosa.slice(lo.b, image, (0, top, left, 0), (n, bottom - top, right - left, c))
            mean = arith.sum_over(lo, of_image(piece, x.q), (2, 3), (bottom - top) * (right - left))
            row.append(lo.to_layout(mean if q is None else lo.quantize(mean, q), NHWC))
        rows.append(tosa.concat(lo.b, row, 2))
    return of_image(tosa.concat(lo.b, rows, 1), q)
