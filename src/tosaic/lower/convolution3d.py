"""Convolutions of three dimensions: CONV3D, or on an NPU a 2-D convolution for each frame of the result.

The frames of an image that are stored next to its channels are channels of a 2-D image. A frame of the result depends
on some of them, and all their products are summed by one convolution: there is one rounding, and no frame is copied.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import Array, DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower import convolution, movement, transposed_convolution
from tosaic.lower.arguments import Sizes, triple
from tosaic.lower.lowering import NHWC, Lowering, concat_values, of_image
from tosaic.lower.tensor import Const, Stored, Tensor

#: torch's NCDHW view of a value that TOSA keeps as NDHWC
NDHWC = (0, 4, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Tap:
    """A frame of the input and the frame of the kernel that it is multiplied with; without one the product is zero."""

    frame: int
    kernel: int | None


#: the only product of a frame that depends on padding alone
NOTHING = Tap(0, None)


@dataclass(frozen=True, slots=True)
class Window3d:
    """Movement of a kernel over frames, rows and columns; `pad` is before and after each of them."""

    kernel: tuple[int, int, int]
    pad: tuple[int, int, int, int, int, int]
    stride: tuple[int, int, int] = (1, 1, 1)
    dilation: tuple[int, int, int] = (1, 1, 1)

    @property
    def plane(self) -> arith.Window:
        """The movement within a frame."""
        return arith.Window(self.pad[2:], self.stride[1:], self.dilation[1:])

    def count(self, frames: int) -> int:
        """Return the number of frames of the result."""
        reach = self.dilation[0] * (self.kernel[0] - 1) + 1
        return (frames + self.pad[0] + self.pad[1] - reach) // self.stride[0] + 1

    def taps(self, frames: int) -> list[list[Tap]]:
        """Return the products for each frame of the result; those with padding are left out."""
        first = [i * self.stride[0] - self.pad[0] for i in range(self.count(frames))]
        pairs = [[Tap(f + k * self.dilation[0], k) for k in range(self.kernel[0])] for f in first]
        return [[tap for tap in row if 0 <= tap.frame < frames] or [NOTHING] for row in pairs]


def _find_window(weight: Tensor, stride: Sizes, padding: Sizes | str, dilation: Sizes) -> Window3d:
    kernel, steps = triple(weight.shape[2:]), triple(dilation)
    pad = convolution.find_pads(padding, kernel, steps)
    return Window3d(kernel, (pad[0], pad[1], pad[2], pad[3], pad[4], pad[5]), triple(stride), steps)


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
    """Convolve over three dimensions, a batch or a single image."""
    arith.require_quantized_weight(weight, x)
    assert isinstance(weight, Const)
    full = convolution.add_batch(lo, x if x.q is None else lo.require_quantized(x), 5)
    window = _find_window(weight, stride, padding, dilation)
    out = _convolve_batch(lo, full, weight, bias, window, groups)
    return out if x.rank == 5 else lo.reshape(out, out.shape[1:])


def _convolve_batch(
    lo: Lowering, x: Tensor, weight: Const, bias: Tensor | None, window: Window3d, groups: int
) -> Stored:
    if groups == x.shape[1] and groups > 1:
        return convolve_depthwise(lo, x, weight, bias, window)
    if groups > 1:
        return _convolve_groups(lo, x, weight, bias, window, groups)
    if not lo.target.is_npu:
        return _conv3d(lo, x, weight, bias, window)
    if _moves_along_frames(lo, window):
        return _convolve_pixels(lo, x, weight, bias, window)
    if weight.size > x.size and any(window.pad[:2]):
        # Fewer products for the frames at the ends would need weights of their own.
        x = movement.pad(lo, x, [(0, 0), (0, 0), window.pad[:2], (0, 0), (0, 0)], 0.0)
        window = replace(window, pad=(0, 0, *window.pad[2:]))
    plane, image = window.plane, to_frames(lo, x)
    parts: list[Tensor] = []
    for taps in _repeat_taps(window.taps(x.shape[2]), x):
        frames, kernel = _select(lo, image, x, [t.frame for t in taps]), _merge_kernels(weight, taps, 1)
        parts.append(convolution.convolve_2d(lo, frames, kernel, bias, plane.stride, plane.pad, plane.dilation, 1))
    return _join(lo, parts, x)


def _moves_along_frames(lo: Lowering, window: Window3d) -> bool:
    """Tell whether the kernel has one row and column, and moves over the frames in steps that the NPU supports."""
    dense = 1 in (window.kernel[0], window.dilation[0])
    steps = dense or lo.target.longest_stride is None or window.stride[0] <= lo.target.longest_stride
    return window.kernel[1:] == (1, 1) and window.plane == arith.EVERYWHERE and steps


def _conv3d(lo: Lowering, x: Tensor, weight: Const, bias: Tensor | None, window: Window3d) -> Stored:
    """Emit CONV3D."""
    kernel = weight.array.transpose(0, 2, 3, 4, 1)
    dtype, offset, q = arith.conv_operands(lo, x, kernel, weight.q, bias)
    sizes, pad = arith.fit_sizes(x.shape[2:], window.kernel, window.pad, window.stride, window.dilation)
    for axis, size in enumerate(sizes):
        x = movement.crop(lo, x, 2 + axis, 0, size)
    value = tosa.conv3d(
        lo.b,
        lo.to_layout(x, NDHWC),
        lo.constant(kernel, dtype),
        offset,
        x_zp=x.zp,
        pad=(pad[0], pad[1], pad[2], pad[3], pad[4], pad[5]),
        stride=window.stride,
        dilation=window.dilation,
        acc_type=DType.F32 if q is None else q.dtype,
    )
    q = q if q is None or q.axis is None else replace(q, axis=4)
    return Stored(tuple(value.shape[p] for p in NDHWC), value, NDHWC, q)


def to_frames(lo: Lowering, x: Tensor) -> Value:
    """Return one NHWC image whose channels are those of all frames of a batch.

    Vela 5.2 reads the wrong frames of all images but the first from a batch of such images.
    """
    n, c, d, h, w = x.shape
    return lo.to_layout(lo.reshape(lo.permute(x, (0, 2, 1, 3, 4)), (1, n * d * c, h, w)), NHWC)


def from_frames(lo: Lowering, image: Value, batch: int, channels: int, q: QParams | None) -> Stored:
    """Return the NCDHW tensor of an image whose channels are those of all frames of a batch."""
    _, h, w, total = image.shape
    frames = lo.reshape(of_image(image, q), (batch, total // (batch * channels), channels, h, w))
    return lo.permute(frames, (0, 2, 1, 3, 4))


def _select(lo: Lowering, image: Value, x: Tensor, frames: Sequence[int]) -> Stored:
    """Select frames, as the channels of an image."""
    _, h, w, _ = image.shape
    channels = x.shape[1]
    parts: list[Value] = []
    for _, run in itertools.groupby(enumerate(frames), lambda pair: pair[1] - pair[0]):
        found = [frame for _, frame in run]
        size = (1, h, w, len(found) * channels)
        parts.append(image if size == image.shape else tosa.slice(lo.b, image, (0, 0, 0, found[0] * channels), size))
    return of_image(concat_values(lo.b, parts, 3), x.q)


def _repeat_taps(taps: list[list[Tap]], x: Tensor) -> list[list[Tap]]:
    """Repeat the products of one image for each image of a batch."""
    n, d = x.shape[0], x.shape[2]
    return [[replace(tap, frame=i * d + tap.frame) for tap in row] for i in range(n) for row in taps]


def _merge_kernels(weight: Const, taps: Sequence[Tap], axis: int) -> Const:
    """Return the 2-D weight for frames merged into the channels of a 3-D one, which are its dimension `axis`."""
    kernels = [t.kernel for t in taps if t.kernel is not None]
    chosen = np.moveaxis(weight.array[:, :, kernels] if kernels else np.zeros_like(weight.array[:, :, :1]), 2, axis)
    shape = list(chosen.shape)
    shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    return replace(weight, array=np.ascontiguousarray(chosen.reshape(shape)))


def _join(lo: Lowering, parts: Sequence[Tensor], x: Tensor) -> Stored:
    """Join the frames of the result; quantized first, so that int8 and not int32 is concatenated."""
    q = None if x.q is None else lo.out_q("three-dimensional convolution")
    codes = [p if q is None or not p.is_accumulator else lo.quantize(p, q) for p in parts]
    values = [lo.to_layout(p, NHWC) for p in codes]
    return from_frames(lo, concat_values(lo.b, values, 3), x.shape[0], parts[0].shape[1], q)


def _convolve_pixels(lo: Lowering, x: Tensor, weight: Const, bias: Tensor | None, window: Window3d) -> Stored:
    """Convolve over the frames alone, with each pixel's frames as a row of an image."""
    n, c, d, h, w = x.shape
    rows = lo.reshape(lo.permute(x, (0, 1, 3, 4, 2)), (n, c, h * w, d))
    kernel = lo.reshape(weight, (*weight.shape[:2], 1, weight.shape[2]))
    out = convolution.convolve_2d(
        lo, rows, kernel, bias, (1, window.stride[0]), (0, 0, *window.pad[:2]), (1, window.dilation[0]), 1
    )
    q = lo.out_q("three-dimensional convolution")
    codes = replace(lo.quantize(out, q), q=q) if out.is_accumulator else out
    return lo.permute(lo.reshape(codes, (n, out.shape[1], h, w, out.shape[3])), (0, 1, 4, 2, 3))


def _convolve_groups(
    lo: Lowering, x: Tensor, weight: Const, bias: Tensor | None, window: Window3d, groups: int
) -> Stored:
    """Convolve each group and concatenate the channels."""
    size_in, size_out = x.shape[1] // groups, weight.shape[0] // groups
    q = None if x.q is None else lo.out_q("three-dimensional convolution")
    parts: list[Tensor] = []
    for g in range(groups):
        a, z = g * size_out, (g + 1) * size_out
        kernel = Const(weight.array[a:z], weight.dtype, convolution.slice_channels(weight.q, a, z))
        group = movement.crop(lo, x, 1, g * size_in, size_in)
        part = _convolve_batch(lo, group, kernel, convolution.slice_bias(lo, bias, a, z), window, 1)
        parts.append(part if q is None or not part.is_accumulator else replace(lo.quantize(part, q), q=q))
    return lo.store(movement.concatenate(lo, parts, 1))


def convolve_depthwise(lo: Lowering, x: Tensor, weight: Const, bias: Tensor | None, window: Window3d) -> Stored:
    """Convolve each channel alone: a sum of 2-D depthwise convolutions, one for each frame of the kernel."""
    out = sum_depthwise(lo, x, weight, bias, window)
    q = None if x.q is None else lo.out_q("three-dimensional convolution")
    return from_frames(lo, out.value if q is None else lo.quantize(out, q).value, x.shape[0], weight.shape[0], q)


def sum_depthwise(lo: Lowering, x: Tensor, weight: Const, bias: Tensor | None, window: Window3d) -> Stored:
    """Return the sums of a depthwise convolution, as an image whose channels are those of all frames."""
    count, multiple = window.count(x.shape[2]), weight.shape[0] // x.shape[1]
    x = movement.pad(lo, x, [(0, 0), (0, 0), window.pad[:2], (0, 0), (0, 0)], 0.0)
    n, channels, d = x.shape[:3]
    image, q = to_frames(lo, x), convolution.repeat_qparams(weight.q, n * count)
    total: Stored | None = None
    for k in range(window.kernel[0]):
        frames = [b * d + i * window.stride[0] + k * window.dilation[0] for b in range(n) for i in range(count)]
        lanes = weight.array[:, 0, k].reshape(channels, multiple, *window.kernel[1:]).transpose(2, 3, 0, 1)
        part = arith.convolve(
            lo,
            _select(lo, image, x, frames),
            np.tile(lanes, (1, 1, n * count, 1)),
            q,
            None if bias is None or k else arith.repeat_bias(lo, bias, n * count),
            window.plane,
            depthwise=True,
        )
        part = _narrow_sums(lo, part, weight)
        total = part if total is None else replace(total, value=tosa.add(lo.b, total.value, part.value))
    assert total is not None
    return total


def _narrow_sums(lo: Lowering, part: Stored, weight: Const) -> Stored:
    """Convert sums of 48 bits, which cannot be added, to 32: the bits that do not fit are lost."""
    if part.dtype is not DType.I48:
        return part
    reach = int(np.abs(weight.array.astype(np.int64)).reshape(weight.shape[0], -1).sum(1).max()) << 15
    # One bit more than the products need is for the bias. Vela drops a rescale by one.
    lost = max(1, reach.bit_length() + 1 - 31)
    q = part.qparams
    narrow = replace(q, scale=tuple(s * 2.0**lost for s in q.scale), dtype=DType.I32)
    return replace(part, value=lo.rescale(part.value, DType.I32, [2.0**-lost]), q=narrow)


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
    """Convolve over three dimensions, transposed, a batch or a single image."""
    arith.require_quantized_weight(weight, x)
    assert isinstance(weight, Const)
    full = convolution.add_batch(lo, x if x.q is None else lo.require_quantized(x), 5)
    weight = _join_groups(weight, groups)
    steps, pads, more, holes = map(triple, (stride, padding, output_padding, dilation))
    image = to_frames(lo, full)
    parts: list[Tensor] = []
    pairs = _transposed_taps(full.shape[2], weight.shape[2], steps[0], pads[0], more[0], holes[0])
    for taps in _repeat_taps(pairs, full):
        frames, kernel = _select(lo, image, full, [t.frame for t in taps]), _merge_kernels(weight, taps, 0)
        parts.append(
            transposed_convolution.convolve_transposed(
                lo, frames, kernel, bias, steps[1:], pads[1:], more[1:], holes[1:], 1
            )
        )
    out = _join(lo, parts, full)
    return out if x.rank == 5 else lo.reshape(out, out.shape[1:])


def _transposed_taps(
    frames: int, kernel: int, stride: int, pad: int, output_padding: int, dilation: int
) -> list[list[Tap]]:
    """Return the products for each frame of the result of a transposed convolution, in the order of the frames."""
    count = (frames - 1) * stride - 2 * pad + dilation * (kernel - 1) + output_padding + 1
    taps: list[list[Tap]] = [[] for _ in range(count)]
    for frame in range(frames):
        for k in range(kernel):
            place = frame * stride - pad + k * dilation
            if 0 <= place < count:
                taps[place].append(Tap(frame, k))
    return [row or [NOTHING] for row in taps]


def _join_groups(weight: Const, groups: int) -> Const:
    """Return a weight [I, O/groups, ...] as [I, O, ...], with zeros between the channels of different groups."""
    if groups == 1:
        return weight
    inputs, outputs, *kernel = weight.shape
    dense: Array = np.zeros((groups, inputs // groups, groups, outputs, *kernel), weight.array.dtype)
    for g in range(groups):
        dense[g, :, g] = weight.array.reshape(groups, inputs // groups, outputs, *kernel)[g]
    q = weight.q
    if q is not None and q.axis is not None:
        if q.axis == 1:
            q = convolution.repeat_qparams(q, groups)
        elif q.axis == 0 and (groups, 1) == (inputs, outputs):
            q = replace(q, axis=1)
        else:
            raise Unsupported("its weight is quantized along its input channels", "quantize it along dimension 1")
    return Const(dense.reshape(inputs, groups * outputs, *kernel), weight.dtype, q)
