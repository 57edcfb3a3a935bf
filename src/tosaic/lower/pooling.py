"""Maxima, sums and means over windows of an image, of any stride and dilation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower import movement
from tosaic.lower.arguments import Sizes, pair
from tosaic.lower.lowering import NHWC, Lowering, concat_values, of_image
from tosaic.lower.tensor import Tensor, of_value

#: a stride that every Ethos-U supports; a larger one is stride 1 and a subsampling
LONGEST_STRIDE = 3

#: a function of logical NCHW images
OfImage = Callable[[Tensor], Tensor]


class PoolWindow:
    """The window of a 2-D pooling: kernel, stride, padding, and the rows that ceil_mode adds at the end."""

    def __init__(
        self,
        shape: Sequence[int],
        kernel: Sizes,
        stride: Sizes | None,
        padding: Sizes,
        ceil_mode: bool,
        dilation: Sizes = 1,
    ) -> None:
        self.kernel, self.dilation = pair(kernel), pair(dilation)
        self.stride = self.kernel if stride is None or stride in ([], ()) else pair(stride)
        self.pad = pair(padding)
        self.extra = [0, 0]
        for axis, size in enumerate(shape[-2:]):
            reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            span = size + 2 * self.pad[axis] - reach
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


def apply_to_rows(lo: Lowering, x: Tensor, pool: OfImage) -> Tensor:
    """Apply a pooling of images to rows of pixels, [N, C, L] or [C, L], as images of height one."""
    n = x.shape[0] if x.rank == 3 else 1
    out = pool(lo.reshape(x, (n, x.shape[-2], 1, x.shape[-1])))
    return lo.reshape(out, (*x.shape[:-1], out.shape[3]))


def apply_to_images(lo: Lowering, x: Tensor, pool: OfImage) -> Tensor:
    """Apply a pooling of images to a batch of them or to a single one."""
    if x.rank == 4:
        return pool(x)
    out = pool(lo.reshape(x, (1, *x.shape)))
    return lo.reshape(out, out.shape[1:])


def apply_to_volumes(lo: Lowering, x: Tensor, within: OfImage, along: OfImage) -> Tensor:
    """Apply one pooling within the frames of [N, C, D, H, W] or [C, D, H, W], then one along the frames.

    The frames are channels of an image first, and the columns of an image then.
    """
    n, (c, d, h, w) = x.shape[0] if x.rank == 5 else 1, x.shape[-4:]
    frames = lo.permute(lo.reshape(x, (n, c, d, h, w)), (0, 2, 1, 3, 4))
    out = within(lo.reshape(frames, (n, d * c, h, w)))
    h, w = out.shape[2:]
    rows = lo.permute(lo.reshape(out, (n, d, c, h, w)), (0, 2, 3, 4, 1))
    out = along(lo.reshape(rows, (n, c, h * w, d)))
    d = out.shape[3]
    out = lo.permute(lo.reshape(out, (n, c, h, w, d)), (0, 1, 4, 2, 3))
    return lo.reshape(out, (*x.shape[:-4], c, d, h, w))


def subsample(lo: Lowering, x: Tensor, window: PoolWindow) -> Tensor:
    """Reduce a result computed with stride 1 to the requested stride."""
    if not window.is_long:
        return x
    for axis in (0, 1):
        x = movement.subsample(lo, x, 2 + axis, window.stride[axis])
    return x


def pool_max(
    lo: Lowering,
    x: Tensor,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
) -> Tensor:
    """Find the maximum of each window of an image."""
    window = PoolWindow(x.shape, kernel, stride, padding, ceil_mode, dilation)
    if window.dilation != (1, 1):
        for axis in (0, 1):
            x = _pool_dilated(lo, x, window, axis)
        return x
    image, pad = arith.fit_window(lo, lo.to_layout(x, NHWC), window.kernel, window.as_conv())
    value = tosa.max_pool2d(lo.b, image, kernel=window.kernel, stride=window.steps, pad=pad)
    return subsample(lo, of_image(value, x.q), window)


def _pool_dilated(lo: Lowering, x: Tensor, window: PoolWindow, axis: int) -> Tensor:
    """Find the maxima along one axis at every position, then those of the stride.

    With the rows (or columns) that are `dilation` apart in one row each of a wider image, neighbors are pooled.
    """
    kernel, step, stride = window.kernel[axis], window.dilation[axis], window.stride[axis]
    if kernel == stride == 1 and not any(window.padding[2 * axis : 2 * axis + 2]):
        return x
    before, after = window.padding[2 * axis : 2 * axis + 2]
    outputs = x.shape[2 + axis] + before + after - step * (kernel - 1)
    fill = -(x.shape[2 + axis] + before + after) % step
    amounts = [(before, after + fill) if dim == 2 + axis else (0, 0) for dim in range(4)]
    n, h, w, c = (value := lo.to_layout(movement.pad(lo, x, amounts, -math.inf), NHWC)).shape
    apart = (n, h // step, step * w, c) if axis == 0 else (n, h, w // step, step * c)
    value = lo.emit(lo.reshape(of_value(value), apart))
    size = (kernel, 1) if axis == 0 else (1, kernel)
    value = tosa.max_pool2d(lo.b, value, kernel=size, stride=(1, 1), pad=(0, 0, 0, 0))
    whole = (n, value.shape[1] * step, w, c) if axis == 0 else (n, h, value.shape[2] * step, c)
    image = of_image(lo.emit(lo.reshape(of_value(value), whole)), x.q)
    return movement.subsample(lo, movement.crop(lo, image, 2 + axis, 0, outputs), 2 + axis, stride)


def sum_windows(lo: Lowering, x: Tensor, window: PoolWindow, divisor: int) -> Tensor:
    """Sum equal windows and divide by a constant, as a depthwise convolution with ones."""
    if window.kernel == x.shape[2:] and not any(window.padding):
        return arith.sum_over(lo, x, (2, 3), divisor)
    dtype = np.float32 if x.q is None else np.int8
    ones = np.ones((*window.kernel, x.shape[1], 1), dtype)
    unit = None if x.q is None else QParams((1.0,), (0,), DType.I8, -127, 127)
    out = arith.convolve(lo, x, ones, unit, None, window.as_conv(), depthwise=True)
    if x.q is None:
        out = arith.multiply(lo, out, lo.scalar(1.0 / divisor, out))
        return subsample(lo, out, window)
    out = arith.scaled(out, 1.0 / divisor)
    return subsample(lo, quantize_sums(lo, out), window) if window.is_long else out


def average_windows(lo: Lowering, x: Tensor, window: PoolWindow, count_pad: bool) -> Tensor:
    """Lower to AVG_POOL2D, which divides by the pixels it covers; padding that counts is made part of the image."""
    image, padding = lo.to_layout(x, NHWC), window.padding
    if count_pad and any(window.pad):
        (high, wide), (below, right) = window.pad, window.extra
        image = tosa.pad(lo.b, image, (0, 0, high, high, wide, wide, 0, 0), x.zp if x.q is not None else 0.0)
        padding = (0, below, 0, right)
    image, padding = arith.fit_window(lo, image, window.kernel, arith.Window(padding, window.steps))
    acc = DType.I32 if x.q is not None else x.dtype

    def build(value: Value) -> Value:
        return tosa.avg_pool2d(
            lo.b, value, kernel=window.kernel, stride=window.steps, pad=padding, acc_type=acc, x_zp=x.zp, out_zp=x.zp
        )

    n, h, w, c = image.shape
    if n > 1 and not lo.target.averages_batches:
        rows = [build(tosa.slice(lo.b, image, (i, 0, 0, 0), (1, h, w, c))) for i in range(n)]
        value = concat_values(lo.b, rows, 0)
    else:
        value = build(image)
    return subsample(lo, of_image(value, x.q), window)


def quantize_sums(lo: Lowering, x: Tensor) -> Tensor:
    """Quantize an accumulator with the result's qparams; return any other tensor unchanged."""
    if not x.is_accumulator:
        return x
    return movement.requantize(lo, x, lo.out_q("pooling"))


#: start and end of the windows of an adaptive pooling along one axis
Cells = list[tuple[int, int]]


def find_cells(size: int, count: int) -> Cells:
    """Return start and end of torch's adaptive pooling windows."""
    return [((i * size) // count, -((-(i + 1) * size) // count)) for i in range(count)]


def find_progression(windows: Cells) -> tuple[int, int] | None:
    """Return (kernel, stride) if the windows are of one size and evenly spaced."""
    sizes = {b - a for a, b in windows}
    gaps = {b[0] - a[0] for a, b in itertools.pairwise(windows)}
    if len(sizes) != 1 or len(gaps) > 1:
        return None
    return (sizes.pop(), gaps.pop() if gaps else 1)
