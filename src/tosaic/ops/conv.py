"""Convolutions: conv1d, conv2d, grouped, depthwise, dilated, strided, with any padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import Array, DType
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower.arguments import pair
from tosaic.lower.lowering import NHWC, Lowering, of_image
from tosaic.lower.registry import NPU_FAMILIES, Limit, op
from tosaic.lower.samples import Sample, f32, module, nn, torch
from tosaic.lower.tensor import Stored, Tensor, of_value


def _pads(
    padding: str | int | Sequence[int], kernel: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, int, int, int]:
    """(top, bottom, left, right). Torch puts the odd pixel of `same` at the end."""
    if padding == "valid":
        return (0, 0, 0, 0)
    if isinstance(padding, str):
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return (totals[0] // 2, totals[0] - totals[0] // 2, totals[1] // 2, totals[1] - totals[1] // 2)
    if not isinstance(padding, int) and len(padding) == 4:
        return (padding[0], padding[1], padding[2], padding[3])
    h, w = pair(padding)
    return (h, h, w, w)


def _channels(q: QParams | None, start: int, stop: int) -> QParams | None:
    """The parameters of some of a weight's output channels."""
    if q is None or q.axis is None:
        return q
    return replace(q, scale=q.scale[start:stop], zero_point=q.zero_point[start:stop])


def _slice_bias(lo: Lowering, t: Tensor | None, start: int, stop: int) -> Tensor | None:
    if t is None or t.size == 1:
        return t
    if isinstance(t, Stored):
        return of_value(tosa.slice(lo.b, lo.emit(t), (start,), (stop - start,)), t.q)
    return replace(t, array=t.array[start:stop], q=_channels(t.q, start, stop))


def _grouped(
    lo: Lowering,
    x: Tensor,
    weight: Array,
    q: QParams | None,
    bias: Tensor | None,
    groups: int,
    window: arith.Window,
) -> Tensor:
    """One convolution per group, joined along the channels; quantized first, so that int8 and not int32 is joined."""
    out_q, image = None if x.q is None else lo.out_q("convolution"), lo.arrange(x, NHWC)
    n, h, w, c = image.shape
    size_in, size_out = c // groups, weight.shape[0] // groups
    parts: list[Stored] = []
    for g in range(groups):
        value = tosa.slice(lo.b, image, (0, 0, 0, g * size_in), (n, h, w, size_in))
        part = of_image(value, x.q)
        a, z = g * size_out, (g + 1) * size_out
        out = arith.convolve(lo, part, weight[a:z], _channels(q, a, z), _slice_bias(lo, bias, a, z), window)
        parts.append(out if out_q is None else lo.quantize(out, out_q))
    return of_image(tosa.concat(lo.b, [p.value for p in parts], 3), out_q)


def _patches(lo: Lowering, x: Tensor, weight: Array, q: QParams | None, bias: Tensor | None) -> Tensor:
    """Windows that touch but do not overlap: an NPU has no such strides, and none are needed.

    A row of windows becomes an image of its own, [height of a window, windows, a row of one]. Where the weights would
    be read too often that way, the image is cut into windows first and each becomes one pixel.
    """
    high, wide, depth = weight.shape[1:]
    n, _, h, w = x.shape
    rows, columns = h // high, w // wide
    image = lo.arrange(x, NHWC)
    if (h, w) != (rows * high, columns * wide):
        image = tosa.slice(lo.b, image, (0, 0, 0, 0), (n, rows * high, columns * wide, depth))
    strips = lo.reshape(of_value(image, x.q), (n * rows, high, columns, wide * depth))
    again, pace = (n * rows - 1) * weight.size, 8 if lo.target.family == "u85" else 1
    if n == 1 and again < 3 * pace * x.size:
        nchw, flat = lo.permute(strips, (0, 3, 1, 2)), weight.reshape(-1, high, 1, wide * depth)
    else:
        pixels = lo.reshape(lo.permute(strips, (0, 2, 1, 3)), (n, rows, columns, high * wide * depth))
        nchw, flat = lo.permute(pixels, (0, 3, 1, 2)), weight.reshape(-1, 1, 1, high * wide * depth)
    out = arith.convolve(lo, nchw, flat, q, bias)
    shape = (n, weight.shape[0], rows, columns)
    return replace(out, shape=shape, perm=out.perm if out.shape == shape else (1, 3, 0, 2))


def _fold_count(lo: Lowering, x: Tensor, weight: Array, window: arith.Window) -> int:
    """How many neighboring results to compute together for an image of few channels, 0 if nothing is won.

    An NPU reads channels by the eight. Neighboring columns of such an image are free channels, and fewer columns are
    left for the kernel to visit.
    """
    outputs, _, kernel, channels = weight.shape
    width, step, pad = x.shape[3], window.stride[1], window.pad
    if not lo.target.is_npu or x.dtype is not DType.I8 or window.dilation != (1, 1) or outputs < 16:
        return 0
    if (width + pad[2] + pad[3] - kernel) // step + 1 != width // step:
        return 0
    # An Ethos-U85 stores weights by sixteen channels: with results side by side they would outgrow what is won.
    several = () if lo.next_q is None or lo.target.family == "u85" else (2, 4, 8)
    counts = [g for g in (1, *several) if 1 < step * g <= 8 // channels and width % (step * g) == 0]
    visits = {g: len(_visited(kernel, pad[2], step, g)) for g in counts}
    best = min(visits, key=lambda g: visits[g], default=0)
    return best if best and visits[best] < 0.8 * kernel else 0


def _visited(kernel: int, left: int, step: int, together: int) -> range:
    """The columns of a folded image that a kernel visits for one group of results, seen from the group's own."""
    wide = step * together
    return range(-left // wide, (step * (together - 1) - left + kernel - 1) // wide + 1)


def _folded(
    lo: Lowering,
    x: Tensor,
    weight: Array,
    q: QParams | None,
    bias: Tensor | None,
    together: int,
    window: arith.Window,
) -> Tensor:
    """A convolution on an image whose neighboring columns have become channels, each result a group of channels."""
    outputs, high, kernel, depth = weight.shape
    n, _, h, w = x.shape
    pad, stride = window.pad, window.stride
    wide = stride[1] * together
    columns = _visited(kernel, pad[2], stride[1], together)
    spread = np.zeros((together, outputs, high, len(columns), wide, depth), weight.dtype)
    for result in range(together):
        for at in range(kernel):
            column, place = divmod(stride[1] * result - pad[2] + at, wide)
            spread[result, :, :, column - columns.start, place] = weight[:, :, at]
    image = lo.reshape(of_value(lo.arrange(x, NHWC), x.q), (n, h, w // wide, wide * depth))
    out = arith.convolve(
        lo,
        lo.permute(image, NHWC),
        spread.reshape(together * outputs, high, len(columns), wide * depth),
        _repeat(q, together),
        bias and arith.repeat_bias(lo, bias, together),
        arith.Window((pad[0], pad[1], -columns.start, columns.stop - 1), (stride[0], 1)),
    )
    if together == 1:
        return out
    out_q = lo.out_q("convolution")
    codes = of_value(lo.arrange(lo.quantize(out, out_q), NHWC), out_q)
    return lo.permute(lo.reshape(codes, (n, out.shape[2], w // stride[1], outputs)), NHWC)


def _repeat(q: QParams | None, times: int) -> QParams | None:
    """The parameters of channels that are there several times."""
    return q if q is None or q.axis is None else replace(q, scale=q.scale * times, zero_point=q.zero_point * times)


def convolution(
    lo: Lowering,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: Any,
    dilation: tuple[int, int],
    groups: int,
) -> Tensor:
    """A 2-D convolution of a logical NCHW tensor with an OIHW weight."""
    array, _, q = arith.weight_codes(weight, x)
    if x.q is not None:
        x = lo.codes(x)
    kernel = (array.shape[2], array.shape[3])
    window = arith.Window(_pads(padding, kernel, dilation), stride, dilation)
    channels = x.shape[1]
    if groups == channels and groups > 1:
        multiple = array.shape[0] // channels
        lanes = array.reshape(channels, multiple, *kernel).transpose(2, 3, 0, 1)
        return arith.convolve(lo, x, lanes, q, bias, window, depthwise=True)
    ohwi = np.ascontiguousarray(array.transpose(0, 2, 3, 1))
    if groups > 1:
        return _grouped(lo, x, ohwi, q, bias, groups, window)
    if lo.target.is_npu and window == arith.Window(stride=kernel) and max(stride) > 3:
        return _patches(lo, x, ohwi, q, bias)
    together = _fold_count(lo, x, ohwi, window)
    if together:
        return _folded(lo, x, ohwi, q, bias, together, window)
    return arith.convolve(lo, x, ohwi, q, bias, window)


def as_2d(lo: Lowering, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A 1-D convolution is a 2-D one of height one."""
    w = lo.reshape(weight, (weight.shape[0], weight.shape[1], 1, weight.shape[2]))
    return lo.reshape(x, (x.shape[0], x.shape[1], 1, x.shape[2])), w


def batched(lo: Lowering, x: Tensor, rank: int) -> Tensor:
    """With a batch dimension, where a single image was given."""
    return x if x.rank == rank else lo.reshape(x, (1, *x.shape))


def convolve(
    lo: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """A convolution of one or two dimensions, of a batch or of a single image."""
    if weight.rank not in (3, 4):
        raise Unsupported(f"a convolution over {weight.rank - 2} dimensions is not available", "use conv1d or conv2d")
    full = batched(lo, x, weight.rank)
    if weight.rank == 4:
        out = convolution(lo, full, weight, bias, pair(stride), padding, pair(dilation), groups)
        shape = out.shape
    else:
        image, kernel = as_2d(lo, full, weight)

        def wide(value: Any) -> Any:
            return value if isinstance(value, str) else (0, pair(value)[0])

        (s, _), (d, _) = pair(stride), pair(dilation)
        out = convolution(lo, image, kernel, bias, (1, s), wide(padding), (1, d), groups)
        shape = (out.shape[0], out.shape[1], out.shape[3])
    return lo.reshape(out, shape if x.rank == weight.rank else shape[1:])


def _fits_strides(lo: Lowering, a: Mapping[str, Any]) -> bool:
    """Whether every stride above 3, along a dimension with several results, is one that Vela has a form for."""
    x, kernel = a["input"], a["weight"].shape[2:]
    if a.get("transposed") or len(kernel) > 2:
        return True
    stride, dilation = pair(a["stride"]), pair(a["dilation"])
    pad = (0, 0) if isinstance(a["padding"], str) else pair(a["padding"])
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=False)]
    if reach == list(kernel) and not a["groups"] == x.shape[-1 - len(kernel)] > 1:
        return True
    sizes = zip(x.shape[-len(kernel) :], reach, stride, pad, strict=False)
    return all(step <= 3 or size + 2 * p < wide + step for size, wide, step, p in sizes)


LIMITS = (
    Limit(
        "Ethos-U55 and Ethos-U65 take strides above 3 only in convolutions that are neither depthwise nor dilated",
        _fits_strides,
        ("u55", "u65"),
        "use strides of at most 3, or an Ethos-U85",
    ),
    Limit(
        "an Ethos-U takes at most 65536 input channels or features",
        lambda lo, a: bool(a.get("transposed")) or a["weight"].shape[1] <= 1 << 16,
        NPU_FAMILIES,
        "divide them between several layers and add the results",
    ),
)


def _make_faint() -> Any:
    """Two channels of tiny weights, whose biases are more steps than an int32 holds."""
    conv = nn.Conv2d(3, 8, 3)
    with torch.no_grad():
        conv.weight[2:4] *= 1e-5
        conv.bias[2:4] = torch.tensor([-7.0, 7.0])
    return conv


def _samples_conv2d() -> list[Sample]:
    def conv(*args: Any, **kwargs: Any) -> Any:
        return lambda: nn.Conv2d(*args, **kwargs)

    return [
        module(conv(3, 8, 3), f32(1, 3, 9, 9)),
        module(conv(3, 17, 3, padding=1, stride=2), f32(3, 3, 8, 8)),
        module(conv(1, 4, (2, 5), padding=(1, 2)), f32(1, 1, 6, 9)),
        module(conv(17, 64, 1, bias=False), f32(1, 17, 4, 4)),
        module(conv(8, 8, 3, dilation=2, padding=2), f32(1, 8, 9, 9)),
        module(conv(8, 8, 3, dilation=(1, 2)), f32(1, 8, 9, 9)),
        module(conv(8, 12, 3, groups=4, padding=1), f32(1, 8, 6, 6)),
        module(conv(16, 16, 3, groups=16, padding=1, stride=2), f32(1, 16, 8, 8)),
        module(conv(6, 12, 3, groups=6), f32(1, 6, 8, 8)),
        module(conv(3, 8, 3, padding="same"), f32(1, 3, 7, 7)),
        module(conv(3, 8, 4, padding="same"), f32(1, 3, 7, 7)),
        module(conv(3, 8, 3, padding="valid", stride=2), f32(1, 3, 8, 8)),
        module(conv(3, 8, 3, stride=3), f32(1, 3, 10, 10)),
        module(conv(3, 8, 2, stride=(4, 5)), f32(1, 3, 12, 15)),
        module(conv(3, 8, 4, stride=4), f32(1, 3, 19, 16)),
        module(conv(3, 192, (4, 5), stride=(4, 5)), f32(2, 3, 12, 15)),
        module(conv(3, 8, 3), f32(3, 9, 9)),
        module(conv(3, 16, 3, stride=2, padding=1), f32(2, 3, 12, 12)),
        module(conv(3, 17, 5, padding=2), f32(1, 3, 7, 8)),
        module(conv(1, 16, (3, 7), padding=(0, 3), stride=(1, 2), bias=False), f32(1, 1, 5, 16)),
        module(conv(3, 8, 3), f32(1, 3, 9, 9, low=-40.0, high=2.0)),
        module(_make_faint, f32(1, 3, 9, 9)),
    ]


@op("conv2d", "aten.conv2d.default", "aten.conv2d.padding", quant="weight", limits=LIMITS, samples=_samples_conv2d)
def conv2d(
    lo: Lowering,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    return convolve(lo, input, weight, bias, stride, padding, dilation, groups)


@op(
    "conv1d",
    "aten.conv1d.default",
    "aten.conv1d.padding",
    quant="weight",
    limits=LIMITS,
    samples=lambda: [
        module(lambda: nn.Conv1d(3, 8, 3), f32(1, 3, 12)),
        module(lambda: nn.Conv1d(3, 17, 5, stride=2, padding=2), f32(3, 3, 12)),
        module(lambda: nn.Conv1d(8, 8, 3, groups=8, dilation=2), f32(1, 8, 12)),
        module(lambda: nn.Conv1d(8, 8, 3, groups=2, padding="same"), f32(1, 8, 12)),
        module(lambda: nn.Conv1d(3, 8, 3, bias=False), f32(3, 12)),
    ],
)
def conv1d(
    lo: Lowering,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    return convolve(lo, input, weight, bias, stride, padding, dilation, groups)
