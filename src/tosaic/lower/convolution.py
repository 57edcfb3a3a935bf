"""Convolutions of one and two dimensions: grouped, in patches, and with columns folded into channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import overload

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.graph import Array, DType
from tosaic.ir.qparams import QParams, Reals
from tosaic.lower import arithmetic as arith
from tosaic.lower.arguments import Sizes, pair, spread
from tosaic.lower.lowering import NHWC, Lowering, concat_values, of_image
from tosaic.lower.tensor import Const, Stored, Tensor, of_value


def find_pads(padding: Sizes | str, kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Return the padding before and after each dimension. Torch puts the odd pixel of `same` at the end."""
    if padding == "valid":
        return [0] * (2 * len(kernel))
    if isinstance(padding, str):
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [side for total in totals for side in (total // 2, total - total // 2)]
    if not isinstance(padding, int) and len(padding) == 2 * len(kernel):
        return list(padding)
    return [side for side in spread(padding, len(kernel)) for _ in range(2)]


def slice_channels(q: QParams | None, start: int, stop: int) -> QParams | None:
    """Return the qparams of some of a weight's output channels."""
    if q is None or q.axis is None:
        return q
    return replace(q, scale=q.scale[start:stop], zero_point=q.zero_point[start:stop])


def slice_bias(lo: Lowering, t: Tensor | None, start: int, stop: int) -> Tensor | None:
    """Return the bias of some of the output channels."""
    if t is None or t.size == 1:
        return t
    if isinstance(t, Stored):
        return of_value(tosa.slice(lo.b, lo.emit(t), (start,), (stop - start,)), t.q)
    return replace(t, array=t.array[start:stop], q=slice_channels(t.q, start, stop))


def _convolve_groups(
    lo: Lowering,
    x: Tensor,
    weight: Array,
    q: QParams | None,
    bias: Tensor | None,
    groups: int,
    window: arith.Window,
) -> Stored:
    """Convolve each group and concatenate the channels; quantized first, so that int8 and not int32 is concatenated."""
    out_q, image = None if x.q is None else lo.out_q(), lo.to_layout(x, NHWC)
    n, h, w, c = image.shape
    size_in, size_out = c // groups, weight.shape[0] // groups
    parts: list[Stored] = []
    for g in range(groups):
        value = tosa.slice(lo.b, image, (0, 0, 0, g * size_in), (n, h, w, size_in))
        part = of_image(value, x.q)
        a, z = g * size_out, (g + 1) * size_out
        out = _convolve_dense(lo, part, weight[a:z], slice_channels(q, a, z), slice_bias(lo, bias, a, z), window)
        parts.append(out if out_q is None else lo.quantize(out, out_q))
    return of_image(concat_values(lo.b, [p.value for p in parts], 3), out_q)


def _convolve_patches(lo: Lowering, x: Tensor, weight: Array, q: QParams | None, bias: Tensor | None) -> Stored:
    """Convolve windows that touch but do not overlap: an NPU does not support such strides, and none are needed.

    A row of windows becomes a separate image, [height of a window, windows, a row of one]. If the weights would
    be read too often that way, the image is split into windows first and each becomes one pixel.
    """
    high, wide, depth = weight.shape[1:]
    n, _, h, w = x.shape
    rows, columns = h // high, w // wide
    image = lo.to_layout(x, NHWC)
    if (h, w) != (rows * high, columns * wide):
        image = tosa.slice(lo.b, image, (0, 0, 0, 0), (n, rows * high, columns * wide, depth))
    strips = lo.reshape(of_value(image, x.q), (n * rows, high, columns, wide * depth))
    again, pace = (n * rows - 1) * weight.size, lo.target.weight_read_speed
    if n == 1 and again < 3 * pace * x.size:
        nchw, flat = lo.permute(strips, (0, 3, 1, 2)), weight.reshape(-1, high, 1, wide * depth)
    else:
        pixels = lo.reshape(lo.permute(strips, (0, 2, 1, 3)), (n, rows, columns, high * wide * depth))
        nchw, flat = lo.permute(pixels, (0, 3, 1, 2)), weight.reshape(-1, 1, 1, high * wide * depth)
    out = arith.convolve(lo, nchw, flat, q, bias)
    shape = (n, weight.shape[0], rows, columns)
    return replace(out, shape=shape, perm=out.perm if out.shape == shape else (1, 3, 0, 2))


def _convolve_dense(
    lo: Lowering, x: Tensor, weight: Array, q: QParams | None, bias: Tensor | None, window: arith.Window
) -> Stored:
    """Convolve all channels, with a stride that the target has."""
    longest, single = lo.target.longest_stride, weight.shape[1:3] == (1, 1)
    # Vela reads single pixels at any distance.
    if longest is not None and max(window.stride) > longest and window.dilation == (1, 1) and not single:
        return _convolve_blocks(lo, x, weight, q, bias, window)
    return arith.convolve(lo, x, weight, q, bias, window)


def _convolve_blocks(
    lo: Lowering, x: Tensor, weight: Array, q: QParams | None, bias: Tensor | None, window: arith.Window
) -> Stored:
    """Convolve without a stride: the pixels of a block of the stride's size become channels of one pixel."""
    (outputs, *kernel, depth), stride = weight.shape, window.stride
    n, _, *size = x.shape
    taps = [-(-k // s) for k, s in zip(kernel, stride, strict=True)]
    pads = [window.pad[:2], window.pad[2:]]
    results = [(d + sum(p) - k) // s + 1 for d, p, k, s in zip(size, pads, kernel, stride, strict=True)]
    (rows, columns), (high, wide) = [r + t - 1 for r, t in zip(results, taps, strict=True)], stride
    after = [b * s - d - p[0] for b, s, d, p in zip((rows, columns), stride, size, pads, strict=True)]
    image = lo.to_layout(x, NHWC)
    if min(after) < 0:
        cut = [d + min(a, 0) for d, a in zip(size, after, strict=True)]
        image = tosa.slice(lo.b, image, (0, 0, 0, 0), (n, *cut, depth))
    image = tosa.pad(
        lo.b,
        image,
        (0, 0, pads[0][0], max(after[0], 0), pads[1][0], max(after[1], 0), 0, 0),
        lo.require_quantized(x).qparams.zp,
    )
    strips = lo.reshape(of_value(image, x.q), (n * rows, high, columns, wide * depth))
    pixels = lo.reshape(lo.permute(strips, (0, 2, 1, 3)), (n, rows, columns, high * wide * depth))
    full = np.zeros((outputs, taps[0] * high, taps[1] * wide, depth), weight.dtype)
    full[:, : kernel[0], : kernel[1]] = weight
    blocks = full.reshape(outputs, taps[0], high, taps[1], wide, depth).transpose(0, 1, 3, 2, 4, 5)
    flat = np.ascontiguousarray(blocks.reshape(outputs, *taps, high * wide * depth))
    return arith.convolve(lo, lo.permute(pixels, (0, 3, 1, 2)), flat, q, bias)


def _width_fold_factor(lo: Lowering, x: Tensor, weight: Array, window: arith.Window) -> int:
    """Return how many neighboring results to compute together for an image of few channels, 0 if nothing is gained.

    An NPU reads channels in groups of eight. Neighboring columns of such an image fill the group at no cost, and the
    kernel visits fewer columns.
    """
    outputs, _, kernel, channels = weight.shape
    width, step, pad = x.shape[3], window.stride[1], window.pad
    if not lo.target.is_npu or x.dtype is not DType.I8 or window.dilation != (1, 1) or outputs < 16:
        return 0
    if (width + pad[2] + pad[3] - kernel) // step + 1 != width // step:
        return 0
    # If weights are stored in groups of sixteen channels, those of neighboring results would outweigh the gain.
    several = () if lo.next_q is None or lo.target.weight_channel_padding > 8 else (2, 4, 8)
    counts = [g for g in (1, *several) if 1 < step * g <= 8 // channels and width % (step * g) == 0]
    visits = {g: len(_kernel_columns(kernel, pad[2], step, g)) for g in counts}
    best = min(visits, key=lambda g: visits[g], default=0)
    return best if best and visits[best] < 0.8 * kernel else 0


def _kernel_columns(kernel: int, left: int, step: int, together: int) -> range:
    """Return the columns of a folded image that a kernel reads for one group, relative to the group's own."""
    wide = step * together
    return range(-left // wide, (step * (together - 1) - left + kernel - 1) // wide + 1)


def _convolve_width_folded(
    lo: Lowering,
    x: Tensor,
    weight: Array,
    q: QParams | None,
    bias: Tensor | None,
    together: int,
    window: arith.Window,
) -> Stored:
    """Convolve an image whose neighboring columns have become channels; each result is a group of channels."""
    outputs, high, kernel, depth = weight.shape
    n, _, h, w = x.shape
    pad, stride = window.pad, window.stride
    wide = stride[1] * together
    columns = _kernel_columns(kernel, pad[2], stride[1], together)
    spread = np.zeros((together, outputs, high, len(columns), wide, depth), weight.dtype)
    for result in range(together):
        for at in range(kernel):
            column, place = divmod(stride[1] * result - pad[2] + at, wide)
            spread[result, :, :, column - columns.start, place] = weight[:, :, at]
    image = lo.reshape(of_value(lo.to_layout(x, NHWC), x.q), (n, h, w // wide, wide * depth))
    out = arith.convolve(
        lo,
        lo.permute(image, NHWC),
        spread.reshape(together * outputs, high, len(columns), wide * depth),
        repeat_qparams(q, together),
        bias and arith.repeat_bias(lo, bias, together),
        arith.Window((pad[0], pad[1], -columns.start, columns.stop - 1), (stride[0], 1)),
    )
    if together == 1:
        return out
    out_q = lo.out_q()
    codes = of_value(lo.to_layout(lo.quantize(out, out_q), NHWC), out_q)
    return lo.permute(lo.reshape(codes, (n, out.shape[2], w // stride[1], outputs)), NHWC)


@overload
def repeat_qparams(q: QParams, times: int) -> QParams: ...
@overload
def repeat_qparams(q: QParams | None, times: int) -> QParams | None: ...
def repeat_qparams(q: QParams | None, times: int) -> QParams | None:
    """Repeat the qparams of channels."""
    return q if q is None or q.axis is None else replace(q, scale=q.scale * times, zero_point=q.zero_point * times)


def convolve_2d(
    lo: Lowering,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: Sizes | str,
    dilation: tuple[int, int],
    groups: int,
) -> Stored:
    """Convolve a logical NCHW tensor with an OIHW weight."""
    array, _, q = arith.require_quantized_weight(weight, x)
    if x.q is not None:
        x = lo.require_quantized(x)
    kernel = (array.shape[2], array.shape[3])
    top, bottom, left, right = find_pads(padding, kernel, dilation)
    window = arith.Window((top, bottom, left, right), stride, dilation)
    channels = x.shape[1]
    if groups == channels and groups > 1:
        multiple = array.shape[0] // channels
        lanes = array.reshape(channels, multiple, *kernel).transpose(2, 3, 0, 1)
        return arith.convolve(lo, x, lanes, q, bias, window, depthwise=True)
    ohwi = np.ascontiguousarray(array.transpose(0, 2, 3, 1))
    if groups > 1:
        return _convolve_groups(lo, x, ohwi, q, bias, groups, window)
    if lo.target.is_npu and window == arith.Window(stride=kernel) and max(stride) > 3:
        return _convolve_patches(lo, x, ohwi, q, bias)
    together = _width_fold_factor(lo, x, ohwi, window)
    if together:
        return _convolve_width_folded(lo, x, ohwi, q, bias, together, window)
    return _convolve_dense(lo, x, ohwi, q, bias, window)


def as_2d(lo: Lowering, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """View the operands of a 1-D convolution as those of a 2-D one of height one."""
    w = lo.reshape(weight, (weight.shape[0], weight.shape[1], 1, weight.shape[2]))
    return lo.reshape(x, (x.shape[0], x.shape[1], 1, x.shape[2])), w


def add_batch(lo: Lowering, x: Tensor, rank: int) -> Tensor:
    """Add a batch dimension to a single image."""
    return x if x.rank == rank else lo.reshape(x, (1, *x.shape))


def convolve(
    lo: Lowering,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    """Convolve over one or two dimensions, a batch or a single image."""
    full = add_batch(lo, x, weight.rank)
    if weight.rank == 4:
        out = convolve_2d(lo, full, weight, bias, pair(stride), padding, pair(dilation), groups)
        shape = out.shape
    else:
        image, kernel = as_2d(lo, full, weight)

        def wide(value: Sizes | str) -> Sizes | str:
            return value if isinstance(value, str) else (0, pair(value)[0])

        (s, _), (d, _) = pair(stride), pair(dilation)
        out = convolve_2d(lo, image, kernel, bias, (1, s), wide(padding), (1, d), groups)
        shape = (out.shape[0], out.shape[1], out.shape[3])
    return lo.reshape(out, shape if x.rank == weight.rank else shape[1:])


def scale_channels(lo: Lowering, x: Tensor, factor: Reals, offset: Reals) -> Stored:
    """Compute x * factor[c] + offset[c] over dimension 1."""
    channels = x.shape[1]
    if x.q is None:
        shape = (1, channels, *(1,) * (x.rank - 2))
        scaled = arith.multiply(lo, x, Const(factor.reshape(shape).astype(np.float32), DType.F32))
        return arith.add(lo, scaled, Const(offset.reshape(shape).astype(np.float32), DType.F32))
    x = lo.require_quantized(x)
    # A 1x1 depthwise convolution with weights of +-127: the factor is in the per-channel scale without loss.
    codes = np.where(factor < 0, -127, 127).astype(np.int8).reshape(1, 1, channels, 1)
    scale = tuple(float(s) for s in np.maximum(np.abs(factor), 1e-12) / 127.0)
    q = QParams(scale, (0,) * channels, DType.I8, -127, 127, 2)
    tail = x.shape[2:]
    image = x if x.rank == 4 else lo.reshape(x, (x.shape[0], channels, math.prod(tail[:-1]), math.prod(tail[-1:])))
    out = arith.convolve(lo, image, codes, q, Const(offset.astype(np.float32), DType.F32), depthwise=True)
    return lo.reshape(out, x.shape)
