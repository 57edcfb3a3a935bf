"""Arithmetic that records share: sums, products, reductions and convolutions in float, plain int32 and int8."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.encode import encode
from tosaic.ir.graph import RANGES, Array, DType, Value
from tosaic.ir.qparams import QParams, accumulator, quantize
from tosaic.lower.lowering import NHWC, Lowering, of_image
from tosaic.lower.tensor import Const, Stored, Tensor, find_most, of_value, with_value

Binary = Callable[[Builder, Value, Value], Value]


@dataclass(frozen=True, slots=True)
class Window:
    """Movement of a kernel over an image; by default over every position, without padding.

    pad       top, bottom, left, right
    stride    rows, columns
    dilation  rows, columns
    """

    pad: tuple[int, int, int, int] = (0, 0, 0, 0)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)


#: a kernel at every position of an image, without padding
EVERYWHERE = Window()


def build_binary(lo: Lowering, op: Binary, x: Tensor, y: Tensor) -> Stored:
    """Build a binary op on float or plain integer tensors."""
    if x.q is not None or y.q is not None:
        raise Unsupported("one of its operands is quantized and the other is not", "quantize both operands")
    if x.dtype is not y.dtype:
        raise Unsupported(
            f"it mixes {x.dtype.torch_name} and {y.dtype.torch_name}", "cast the integers to float32 before"
        )
    (a, b), view = lo.align(x, y)
    return with_value(view, op(lo.b, a, b))


def to_int32(b: Builder, value: Value) -> Value:
    """Widen int8 and int16 numbers, for operators that TOSA has in 32 bits only."""
    return tosa.cast(b, value, DType.I32) if value.dtype in (DType.I8, DType.I16) else value


def in_int32(lo: Lowering, build: Binary) -> Binary:
    """Make an operator for integers of any type from one of int32: the result wraps around, as in torch."""

    def built(b: Builder, x: Value, y: Value) -> Value:
        if x.dtype not in (DType.I8, DType.I16):
            return build(b, x, y)
        return wrap(lo, build(b, to_int32(b, x), to_int32(b, y)), x.dtype)

    return built


def wrap(lo: Lowering, value: Value, dtype: DType) -> Value:
    """Convert int32 numbers to a type of 8 or 16 bits: the others are dropped."""
    if not lo.target.wraps_casts:
        # Nothing is left to saturate, and no bit is lost that would round.
        bits = lo.b.number(24 if dtype is DType.I8 else 16, value, DType.I32)
        value = tosa.arithmetic_right_shift(lo.b, tosa.logical_left_shift(lo.b, value, bits), bits)
    return tosa.cast(lo.b, value, dtype)


def add(lo: Lowering, x: Tensor, y: Tensor, *, alpha: float = 1.0, subtract: bool = False) -> Stored:
    """Build x + alpha * y, or x - alpha * y."""
    if alpha < 0:
        alpha, subtract = -alpha, not subtract
    op: Binary = tosa.sub if subtract else tosa.add
    if x.q is None and y.q is None:
        if alpha != 1.0 and isinstance(y, Const):
            y = Const(encode(y.real() * alpha, y.dtype), y.dtype)
        elif alpha != 1.0:
            y = multiply(lo, y, lo.scalar(alpha, y))
        return build_binary(lo, in_int32(lo, op), x, y)
    wide = _find_unit(x, y, alpha)
    if wide is not None:
        (a, b), view = lo.align(x, y)
        terms = [
            lo.rescale(v, DType.I32, [t.qparams.s * f / wide], t.qparams.zp) for v, t, f in ((a, x, 1.0), (b, y, alpha))
        ]
        return replace(with_value(view, op(lo.b, *terms), accumulator((wide,))), reach=_SUM)
    xq, yq = lo.require_quantized(x, "first operand").qparams, lo.require_quantized(y, "second operand").qparams
    sx, sy = xq.s, yq.s * alpha
    # Ethos-U55 fuses the operands' rescales only if both are 1 or if they differ and the larger is 2**19 (2**14).
    head = 0 if sx == sy else (19 if DType.I16 not in (x.dtype, y.dtype) else 14)
    unit = max(sx, sy) / (1 << head)
    (a, b), view = lo.align(x, y)
    wide_a = lo.rescale(a, DType.I32, [sx / unit], xq.zp)
    wide_b = lo.rescale(b, DType.I32, [sy / unit], yq.zp)
    return with_value(view, op(lo.b, wide_a, wide_b), accumulator((unit,)))


#: the largest sum of two operands of 32 bits, in steps
_SUM = 2.0**28


def _find_unit(x: Tensor, y: Tensor, alpha: float) -> float | None:
    """Find the steps for a sum with an operand of 32 bits, which is a sum or a function itself; None for other sums."""
    if x.q is None or y.q is None or not any(isinstance(t, Stored) and t.reach is not None for t in (x, y)):
        return None
    most = [None if isinstance(t, Stored) and (t.lut is not None or t.clamp) else find_most(t) for t in (x, y)]
    if most[0] is None or most[1] is None:
        return None
    return (most[0] + alpha * most[1]) / _SUM or 1.0


def multiply(lo: Lowering, x: Tensor, y: Tensor) -> Stored:
    """Build x * y."""
    if x.q is None and y.q is None:
        return build_binary(lo, in_int32(lo, tosa.mul), x, y)
    xq, yq = lo.require_quantized(x, "first operand").qparams, lo.require_quantized(y, "second operand").qparams
    (a, b), view = lo.align(x, y)
    wide_a = lo.rescale(a, DType.I32, [1.0], xq.zp)
    wide_b = lo.rescale(b, DType.I32, [1.0], yq.zp)
    return with_value(view, tosa.mul(lo.b, wide_a, wide_b), accumulator((xq.s * yq.s,)))


def scaled(t: Stored, factor: float) -> Stored:
    """Multiply an accumulator by a positive constant: only its scale changes."""
    clamp = None if t.clamp is None else (t.clamp[0] * factor, t.clamp[1] * factor)
    return replace(t, q=replace(t.qparams, scale=tuple(s * factor for s in t.qparams.scale)), clamp=clamp)


def bias_codes(bias: Tensor | None, scales: Sequence[float], reach: npt.NDArray[np.int64]) -> Array:
    """Quantize a bias to int32 with the accumulator's qparams, whatever qparams (or float) it has.

    `reach` is the largest sum of products of each channel: the bias of a channel of tiny weights has so many steps that
    the accumulator would overflow, so it is limited.
    """
    if bias is None:
        return np.zeros(reach.size, np.int32)
    if not isinstance(bias, Const):
        raise Unsupported("its bias is not a constant", "use a parameter or buffer as bias")
    _check_bias(bias, reach.size)
    steps = np.rint(bias.real().reshape(-1) / np.asarray(scales, np.float64))
    info = np.iinfo(np.int32)
    return np.clip(steps, info.min + reach, info.max - reach).astype(np.int32)


def _check_bias(bias: Tensor, channels: int) -> None:
    if bias.size not in (1, channels) or bias.size != (bias.shape or (1,))[-1]:
        raise Unsupported(
            f"its bias of shape {list(bias.shape)} does not have one value for each of its {channels} channels",
            "add the bias after the layer",
        )


def _float_bias(lo: Lowering, bias: Tensor | None, channels: int, dtype: DType) -> Value:
    """Return the bias of a float convolution; TOSA also accepts a computed one."""
    if bias is None:
        return lo.constant(np.zeros(channels), dtype)
    _check_bias(bias, channels)
    if isinstance(bias, Const):
        return lo.constant(np.broadcast_to(bias.real().reshape(-1), (channels,)), dtype)
    if bias.q is not None or bias.dtype is not dtype:
        raise Unsupported(
            f"its bias is computed in {bias.dtype.torch_name} and the rest of it is {dtype.torch_name}",
            "use one dtype for both",
        )
    return lo.emit(repeat_bias(lo, lo.reshape(bias, (bias.size,)), channels // bias.size))


def repeat_bias(lo: Lowering, bias: Tensor, times: int) -> Tensor:
    """Repeat the bias for repeated channels."""
    if times == 1:
        return bias
    if isinstance(bias, Stored):
        return of_value(tosa.tile(lo.b, lo.emit(bias), (times,)), bias.q)
    q = bias.q
    if q is not None and q.axis is not None:
        q = replace(q, scale=q.scale * times, zero_point=q.zero_point * times)
    return Const(np.tile(bias.array, times), bias.dtype, q)


def require_quantized_weight(weight: Tensor, x: Tensor) -> tuple[Array, DType, QParams | None]:
    """Return the constant weight as (data, dtype, qparams); float weights have no qparams."""
    if not isinstance(weight, Const):
        raise Unsupported("its weight is not a constant", "use a parameter or buffer as weight")
    if weight.q is None and not weight.is_float:
        raise Unsupported("its weight is an integer tensor without quantization")
    if (x.q is None) != (weight.q is None):
        side = "weight" if weight.q is None else "input"
        raise Unsupported(f"its {side} is float and the rest of it is quantized", "quantize this part of the model")
    if weight.q is not None and any(weight.q.zero_point):
        raise Unsupported("its weight has a zero point", "use a symmetric weight quantization")
    return weight.array, weight.dtype, weight.q


def conv_operands(
    lo: Lowering, x: Tensor, weight: Array, weight_q: QParams | None, bias: Tensor | None
) -> tuple[DType, Value, QParams | None]:
    """Return the weight's dtype, the bias, and the qparams of the accumulator of a convolution (None for a float one).

    The weight has a row for each output channel. It is quantized if the input is.
    """
    if x.q is None or weight_q is None:
        return x.dtype, _float_bias(lo, bias, weight.shape[0], x.dtype), None
    scales = tuple(x.q.s * s for s in weight_q.scale)
    q = accumulator(scales, 3 if len(scales) > 1 else None)
    q = replace(q, dtype=DType.I32 if x.dtype is DType.I8 else DType.I48)
    reach = np.abs(weight.reshape(weight.shape[0], -1).astype(np.int64)).sum(1)
    # The 48 bits of the other accumulator hold any sum plus an int32.
    reach *= max(127 - x.q.zp, x.q.zp + 128) if x.dtype is DType.I8 else 0
    return _weight_type(lo, x, weight_q), lo.constant(bias_codes(bias, scales, reach), q.dtype), q


def _weight_type(lo: Lowering, x: Tensor, q: QParams) -> DType:
    """Choose the type of a weight that is multiplied by an integer input: TOSA has int4 for int8 inputs only."""
    least, most = RANGES[DType.I4]
    # TOSA's int4 weights are symmetric: they exclude -8.
    fits = q.qmin > least and q.qmax <= most
    return DType.I4 if fits and x.dtype is DType.I8 and lo.spec.supports("int4") else DType.I8


def convolve(
    lo: Lowering,
    x: Tensor,
    weight: Array,
    weight_q: QParams | None,
    bias: Tensor | None,
    window: Window = EVERYWHERE,
    *,
    depthwise: bool = False,
) -> Stored:
    """Build CONV2D ([O,KH,KW,I]) or DEPTHWISE_CONV2D ([KH,KW,C,M]) on a logical NCHW tensor.

    Quantized operands give an accumulator. Sums of 16-bit floats are kept in 32 bits, as in torch.
    """
    lines = weight.reshape(-1, weight.shape[2] * weight.shape[3]).T if depthwise else weight
    dtype, bias_value, q = conv_operands(lo, x, lines, weight_q, bias)
    kernel = weight.shape[0:2] if depthwise else weight.shape[1:3]
    image, pad = fit_window(lo, lo.to_layout(x, NHWC), kernel, window)
    build = tosa.depthwise_conv2d if depthwise else tosa.conv2d
    value = build(
        lo.b,
        image,
        lo.constant(weight, dtype),
        bias_value,
        x_zp=x.zp,
        pad=pad,
        stride=window.stride,
        dilation=window.dilation,
        acc_type=DType.F32 if q is None else q.dtype,
    )
    return of_image(value, q)


def convolve_fixed_point(
    lo: Lowering,
    x: Tensor,
    weight: Array,
    divisor: int = 1,
    *,
    stride: tuple[int, int] = (1, 1),
    depthwise: bool = False,
) -> Stored:
    """Convolve quantized values with int8 integers, divide and round once; the result has the input's qparams."""
    q = lo.require_quantized(x).qparams
    unit = QParams((1.0 / divisor,), (0,), DType.I8, -127, 127)
    weight = np.ascontiguousarray(weight)
    out = convolve(lo, x, weight, unit, None, Window(stride=stride), depthwise=depthwise)
    return replace(lo.quantize(out, q), q=q)


def fit_window(
    lo: Lowering, image: Value, kernel: Sequence[int], window: Window
) -> tuple[Value, tuple[int, int, int, int]]:
    """Return an NHWC image and its padding so that the windows fit exactly, as TOSA requires.

    The excess is removed from the padding at the end first, then from the image.
    """
    n, *size, c = image.shape
    (height, width), pads = fit_sizes(size, kernel, window.pad, window.stride, window.dilation)
    if (height, width) != tuple(size):
        image = tosa.slice(lo.b, image, (0, 0, 0, 0), (n, height, width, c))
    return image, (pads[0], pads[1], pads[2], pads[3])


def fit_sizes(
    sizes: Sequence[int], kernel: Sequence[int], pads: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return sizes and padding (before and after each dimension) that the windows of a kernel fit exactly."""
    sizes, pads = list(sizes), list(pads)
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        span = sizes[axis] + pads[2 * axis] + pads[2 * axis + 1] - (k - 1) * d - 1
        if span < 0:
            raise Unsupported("its kernel is larger than the padded input")
        surplus = span % s
        cut = min(surplus, pads[2 * axis + 1])
        pads[2 * axis + 1] -= cut
        sizes[axis] -= surplus - cut
    return sizes, pads


def reduce_codes(lo: Lowering, x: Tensor, dims: Sequence[int], op: Callable[[Builder, Value, int], Value]) -> Stored:
    """Reduce stored numbers one axis at a time, and keep the dimensions."""
    x = lo.store(x)
    value = x.value
    for dim in sorted(dims):
        value = op(lo.b, value, x.perm[dim])
    shape = tuple(1 if i in dims else d for i, d in enumerate(x.shape))
    return Stored(shape, value, x.perm, x.q)


#: The longest side of a window of ones.
_KERNEL = 64


def sum_over(lo: Lowering, x: Tensor, dims: Sequence[int], divisor: float) -> Stored:
    """Sum over dimensions (kept as size one) and divide by a constant, with one rounding in int8."""
    if x.q is None:
        out = reduce_codes(lo, x, dims, tosa.reduce_sum)
        return out if divisor == 1.0 else multiply(lo, out, lo.scalar(1.0 / divisor, out))
    x = lo.store(lo.require_quantized(x))
    xq = x.qparams
    axes = sorted(x.perm[d] for d in dims)
    shape = tuple(1 if i in dims else d for i, d in enumerate(x.shape))
    q = accumulator((xq.s / divisor,))
    summed = _sum_by_conv(lo, x, axes) if x.dtype is DType.I8 and lo.target.sums_by_convolution else None
    if summed is not None:
        return replace(summed, shape=shape, q=q)
    value = lo.rescale(x.value, DType.I32, [1.0], xq.zp)
    for axis in axes:
        value = tosa.reduce_sum(lo.b, value, axis)
    return Stored(shape, value, x.perm, q)


def _sum_by_conv(lo: Lowering, x: Stored, axes: list[int]) -> Stored | None:
    """Sum by convolutions with ones (no int32 tensor in between); None if the shape does not allow it."""
    zero_point = x.qparams.zp
    shape, rank = x.value.shape, x.value.rank
    size = math.prod(shape[a] for a in axes)
    if axes == [rank - 1]:
        image = lo.emit(lo.reshape(of_value(x.value), (1, 1, math.prod(shape[:-1]), size)))
        weight = lo.constant(np.ones((1, 1, 1, size), np.int8), DType.I8)
        value = _build_plain(tosa.conv2d, lo, image, weight, 1, zero_point)
    elif axes and math.prod(shape[: axes[-1] + 1]) == size:
        high = _divide(size)
        image = lo.emit(lo.reshape(of_value(x.value), (1, high, size // high, math.prod(shape[axes[-1] + 1 :]))))
        if _sums_twice(lo, size, high) and _is_view(shape, axes, x.perm):
            # Sums of a column fit 16 bits.
            value = _sum_window(lo, image, (high, 1), zero_point)
            value = _sum_window(lo, lo.rescale(value, DType.I16, [1.0]), (1, size // high))
        elif max(high, size // high) <= _KERNEL:
            value = _sum_window(lo, image, (high, size // high), zero_point)
        else:
            return None
    elif rank == 4 and axes and set(axes) <= {1, 2} and size <= _KERNEL:
        value = _sum_window(lo, x.value, (shape[1] if 1 in axes else 1, shape[2] if 2 in axes else 1), zero_point)
    else:
        return None
    kept = tuple(1 if a in axes else d for a, d in enumerate(shape))
    if value.shape != kept and not _is_view(shape, axes, x.perm):
        value = lo.emit(lo.reshape(of_value(value), kept))
    if value.shape != kept:
        return of_value(value)
    return Stored(value.shape, value, x.perm if value.rank == rank else tuple(range(value.rank)))


def _is_view(shape: Sequence[int], axes: Sequence[int], perm: Sequence[int]) -> bool:
    """Tell whether sums over some axes only need a reshape to be in logical layout: 48 bits cannot be moved."""
    order = [p for p in perm if p not in axes and shape[p] != 1]
    return order == sorted(order)


def _sums_twice(lo: Lowering, size: int, high: int) -> bool:
    """Tell whether to sum columns and then rows: a window as large as the image keeps most of the NPU idle."""
    return lo.target.is_npu and high < size >= 16


def _divide(size: int) -> int:
    """Find a divisor near 1.5 times the square root: the height at which sums by columns, then rows, are fast."""
    best = 1.5 * math.sqrt(size)
    return min((d for d in range(1, _KERNEL + 1) if size % d == 0), key=lambda d: abs(d - best))


def _sum_window(lo: Lowering, image: Value, kernel: tuple[int, int], zero_point: int = 0) -> Value:
    """Sum each channel over windows of ones."""
    depth = image.shape[3]
    ones = lo.constant(np.ones((*kernel, depth, 1), np.int8), DType.I8)
    return _build_plain(tosa.depthwise_conv2d, lo, image, ones, depth, zero_point)


def _build_plain(
    build: Callable[..., Value], lo: Lowering, image: Value, weight: Value, channels: int, zero_point: int
) -> Value:
    """Build a convolution of integers at every position, without bias."""
    wide = DType.I32 if image.dtype is DType.I8 else DType.I48
    return build(
        lo.b,
        image,
        weight,
        lo.constant(np.zeros(channels, np.int64), wide),
        x_zp=zero_point,
        pad=EVERYWHERE.pad,
        stride=EVERYWHERE.stride,
        dilation=EVERYWHERE.dilation,
        acc_type=wide,
    )


def real_codes(real: float, q: QParams) -> int:
    """Return the quantized value nearest to one real number."""
    return int(quantize(np.asarray([real], np.float32), q)[0])
