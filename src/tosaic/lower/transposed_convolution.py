"""Transposed convolutions as TRANSPOSE_CONV2D, or as plain convolutions if these are faster on an NPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import Array, DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower import convolution
from tosaic.lower.arguments import Sizes, pair
from tosaic.lower.lowering import NHWC, Lowering, concat_values, of_image
from tosaic.lower.tensor import Const, Tensor, of_value


@dataclass(frozen=True, slots=True)
class TransposedConvGeometry:
    """The geometry of a 2-D transposed convolution. `span` is the kernel with the holes that dilation makes."""

    size: tuple[int, ...]
    span: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    output_padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def end(self) -> tuple[int, int]:
        """The end of the output, counted like `padding` from the first product."""
        rows, columns = zip(self.size, self.stride, self.span, self.padding, self.output_padding, strict=True)
        return _find_end(*rows), _find_end(*columns)

    @property
    def out_pad(self) -> tuple[int, int, int, int]:
        (top, left), (below, right) = self.padding, self.output_padding
        return (-top, below - top, -left, right - left)


def _find_end(size: int, stride: int, span: int, padding: int, output_padding: int) -> int:
    return (size - 1) * stride + span - padding + output_padding


def _make_geometry(
    x: Tensor, weight: Tensor, stride: Sizes, padding: Sizes, output_padding: Sizes, dilation: Sizes
) -> TransposedConvGeometry:
    (dh, dw), (kh, kw) = pair(dilation), weight.shape[2:]
    span = (dh * (kh - 1) + 1, dw * (kw - 1) + 1)
    return TransposedConvGeometry(x.shape[2:], span, pair(stride), pair(padding), pair(output_padding), (dh, dw))


def _kernel(weight: Tensor, x: Tensor, groups: int) -> tuple[Array, QParams | None]:
    """Return the weight [I, O/groups, KH, KW] as [O, KH, KW, I/groups], with the qparams of its output channels."""
    array, _, q = arith.require_quantized_weight(weight, x)
    inputs, outputs, kh, kw = array.shape
    lanes = array.reshape(groups, inputs // groups, outputs, kh, kw).transpose(0, 2, 3, 4, 1)
    if q is not None and q.axis is not None:
        if q.axis == 1:
            q = replace(convolution.repeat_qparams(q, groups), axis=0)
        elif q.axis != 0 or (groups, 1) != (inputs, outputs):
            raise Unsupported("its weight is quantized along its input channels", "quantize it along dimension 1")
    return np.ascontiguousarray(lanes.reshape(groups * outputs, kh, kw, inputs // groups)), q


def _dilate_kernel(kernel: Array, dilation: tuple[int, int]) -> Array:
    """Insert the zeros of a dilation into the kernel."""
    o, kh, kw, i = kernel.shape
    wide = np.zeros((o, (kh - 1) * dilation[0] + 1, (kw - 1) * dilation[1] + 1, i), kernel.dtype)
    wide[:, :: dilation[0], :: dilation[1]] = kernel
    return wide


def _convolve_transposed_2d(
    lo: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None, up: TransposedConvGeometry, groups: int
) -> Tensor:
    """Convolve a logical NCHW tensor with an IOHW weight, transposed."""
    kernel, q = _kernel(weight, x, groups)
    if x.q is not None:
        x = lo.require_quantized(x)
    # TOSA cannot remove a whole kernel at the edge, and a stride of one needs no scattering.
    if up.stride != (1, 1) and all(p < k for p, k in zip(up.padding, up.span, strict=True)):
        wide = _dilate_kernel(kernel, up.dilation)
        # An Ethos-U multiplies by all the zeros between the pixels of a TRANSPOSE_CONV2D: 3 to 5 times the cycles.
        if lo.target.is_npu and lo.next_q is not None:
            return as_subpixel_convs(lo, x, wide, q, bias, up, groups, lo.next_q)
        if groups == 1 and not lo.target.is_npu and (lo.target.scatters_any_stride or _are_powers_of_two(up.stride)):
            return _transpose_conv2d(lo, x, wide, q, bias, up)
    return _convolve_zero_stuffed(lo, x, kernel, q, bias, up, groups)


def _are_powers_of_two(numbers: Sequence[int]) -> bool:
    return all(n & (n - 1) == 0 for n in numbers)


def _transpose_conv2d(
    lo: Lowering, x: Tensor, kernel: Array, q: QParams | None, bias: Tensor | None, up: TransposedConvGeometry
) -> Tensor:
    """Emit TRANSPOSE_CONV2D itself."""
    dtype, offset, acc = arith.conv_operands(lo, x, kernel, q, bias)
    value = tosa.transpose_conv2d(
        lo.b,
        lo.to_layout(x, NHWC),
        lo.constant(kernel, dtype),
        offset,
        x_zp=x.zp,
        out_pad=up.out_pad,
        stride=up.stride,
        acc_type=DType.F32 if acc is None else acc.dtype,
    )
    return of_image(value, acc)


def as_subpixel_convs(
    lo: Lowering,
    x: Tensor,
    kernel: Array,
    q: QParams | None,
    bias: Tensor | None,
    up: TransposedConvGeometry,
    groups: int,
    out_q: QParams,
) -> Tensor:
    """Compute the pixels of each stride x stride block by plain convolutions; the kernel is [O, KH, KW, I/groups].

    Pixel s*i + r of the output sums w[s*j + r] * x[i - j], so it needs a kernel of span / stride taps only. A row of
    the block has its pixels as channels; rows concatenated along the width, and viewed with these channels as pixels,
    are the image: no pixel is moved.
    """
    (sh, sw), (o, _, _, c) = up.stride, kernel.shape
    taps = [-(-k // s) for k, s in zip(up.span, up.stride, strict=True)]
    full = np.zeros((o, taps[0] * sh, taps[1] * sw, c), kernel.dtype)
    full[:, : kernel.shape[1], : kernel.shape[2]] = kernel
    blocks = full.reshape(o, taps[0], sh, taps[1], sw, c)[:, ::-1, :, ::-1].transpose(2, 4, 0, 1, 3, 5)
    pads: list[int] = []
    for n, s, k, p, end in zip(up.size, up.stride, taps, up.padding, up.end, strict=True):
        first, last = p // s, -(-end // s) - 1
        pads += [k - 1 - first, last - (n - 1)]
    image, pad = _trim_padding(lo, x, pads, taps)
    rows = [_convolve_block_row(lo, image, block, q, bias, pad, groups, out_q) for block in blocks]
    n, h, w, _ = rows[0].shape
    wide = concat_values(lo.b, rows, 2)
    fine = lo.emit(lo.reshape(of_value(wide), (n, h * sh, w * sw, o)))
    start = [p % s for p, s in zip(up.padding, up.stride, strict=True)]
    size = [end - p for p, end in zip(up.padding, up.end, strict=True)]
    if (*start, *size) != (0, 0, *fine.shape[1:3]):
        fine = tosa.slice(lo.b, fine, (0, *start, 0), (n, *size, o))
    return of_image(fine, out_q)


def _convolve_block_row(
    lo: Lowering,
    x: Tensor,
    block: Array,
    q: QParams | None,
    bias: Tensor | None,
    pad: tuple[int, int, int, int],
    groups: int,
    out_q: QParams,
) -> Value:
    """Compute the pixels of one row of a block, as consecutive channels: [N, H, W, columns * O]."""
    columns = block.shape[0]
    if groups > 1:
        kernels = [Const(np.ascontiguousarray(b.transpose(0, 3, 1, 2)), _dtype(x, q), q) for b in block]
        parts = [convolution.convolve_2d(lo, x, k, bias, (1, 1), pad, (1, 1), groups) for k in kernels]
    else:
        kernel = np.ascontiguousarray(block).reshape(-1, *block.shape[2:])
        offset = None if bias is None else arith.repeat_bias(lo, bias, columns)
        parts = [arith.convolve(lo, x, kernel, convolution.repeat_qparams(q, columns), offset, arith.Window(pad))]
    values = [lo.to_layout(lo.quantize(p, out_q) if p.is_accumulator else p, NHWC) for p in parts]
    return concat_values(lo.b, values, 3)


def _dtype(x: Tensor, q: QParams | None) -> DType:
    return x.dtype if q is None else q.dtype


def _trim_padding(
    lo: Lowering, x: Tensor, pads: Sequence[int], span: Sequence[int]
) -> tuple[Tensor, tuple[int, int, int, int]]:
    """Crop the image where padding is negative, and pad it where padding reaches beyond the kernel."""
    image = lo.to_layout(x, NHWC)
    cut, rest = [-min(p, 0) for p in pads], [max(p, 0) for p in pads]
    if any(cut):
        n, h, w, c = image.shape
        size = (n, h - cut[0] - cut[1], w - cut[2] - cut[3], c)
        image = tosa.slice(lo.b, image, (0, cut[0], cut[2], 0), size)
    inside = [max(p - span[i // 2] + 1, 0) for i, p in enumerate(rest)]
    if any(inside):
        image = tosa.pad(lo.b, image, (0, 0, *inside, 0, 0), x.zp)
    left = [p - i for p, i in zip(rest, inside, strict=True)]
    return of_image(image, x.q), (left[0], left[1], left[2], left[3])


def _convolve_zero_stuffed(
    lo: Lowering,
    x: Tensor,
    kernel: Array,
    q: QParams | None,
    bias: Tensor | None,
    up: TransposedConvGeometry,
    groups: int,
) -> Tensor:
    """Convolve with the mirrored kernel an image that has stride - 1 zeros after every pixel."""
    (sh, sw), (n, c, h, w) = up.stride, x.shape
    if up.stride != (1, 1):
        # One PAD for both directions: a pixel's channels are followed in memory by the pixels to its right.
        rows = lo.emit(lo.reshape(of_value(lo.to_layout(x, NHWC)), (n * h, 1, w, c)))
        value = tosa.pad(lo.b, rows, (0, 0, 0, sh - 1, 0, 0, 0, (sw - 1) * c), x.zp)
        value = lo.emit(lo.reshape(of_value(value), (n, h * sh, w * sw, c)))
        x = of_image(value, x.q)
    pads: list[int] = []
    for k, p, e, s in zip(up.span, up.padding, up.output_padding, up.stride, strict=True):
        pads += [k - 1 - p, k - 1 - p + e - (s - 1)]
    x, rest = _trim_padding(lo, x, pads, up.span)
    mirrored = np.ascontiguousarray(kernel[:, ::-1, ::-1].transpose(0, 3, 1, 2))
    return convolution.convolve_2d(lo, x, Const(mirrored, _dtype(x, q), q), bias, (1, 1), rest, up.dilation, groups)


def convolve_transposed(
    lo: Lowering,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    """Convolve over one or two dimensions, transposed, a batch or a single image."""
    full = convolution.add_batch(lo, x, weight.rank)
    if weight.rank == 4:
        up = _make_geometry(full, weight, stride, padding, output_padding, dilation)
        out = _convolve_transposed_2d(lo, full, weight, bias, up, groups)
        shape = out.shape
    else:
        image, kernel = convolution.as_2d(lo, full, weight)
        (s, _), (p, _), (e, _), (d, _) = map(pair, (stride, padding, output_padding, dilation))
        out = _convolve_transposed_2d(
            lo, image, kernel, bias, _make_geometry(image, kernel, (1, s), (0, p), (0, e), (1, d)), groups
        )
        shape = (out.shape[0], out.shape[1], out.shape[3])
    return lo.reshape(out, shape if x.rank == weight.rank else shape[1:])
