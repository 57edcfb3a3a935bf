"""Rules of the tensor operators: convolutions, pools, matrix products, transforms, argmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tosaic.core.errors import Invalid
from tosaic.ir.graph import DType, Type, Value
from tosaic.ir.rule import (
    Attrs,
    Rule,
    count_windows,
    get_axis,
    get_bool,
    get_choice,
    get_dtype,
    get_ints,
    need_dtype,
    need_rank,
    need_type,
    need_zero_point,
)

NAN_MODES = ("PROPAGATE", "IGNORE")
_SPATIAL = {2: ("height", "width"), 3: ("depth", "height", "width")}


def _argmax(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    (x,) = inputs
    axis = get_axis(attrs, x.rank)
    get_choice(attrs, "nan_mode", NAN_MODES)
    return (Type(DType.I32, x.shape[:axis] + x.shape[axis + 1 :]),)


def _convolve(inputs: Sequence[Value], attrs: Attrs, kernel: tuple[int, ...], channels: int) -> tuple[Type, ...]:
    """The part that CONV2D, CONV3D and DEPTHWISE_CONV2D share once kernel size and output channels are known."""
    x = inputs[0]
    dims = len(kernel)
    get_bool(attrs, "local_bound")
    pad = get_ints(attrs, "pad", 2 * dims)
    stride = get_ints(attrs, "stride", dims)
    dilation = get_ints(attrs, "dilation", dims)
    if min(pad) < 0:
        raise Invalid(f"pad {pad} has a negative number")
    if min(stride) < 1 or min(dilation) < 1:
        raise Invalid(f"stride {stride} and dilation {dilation} must be at least 1")
    spatial = tuple(
        count_windows(
            x.shape[1 + i] - 1 + pad[2 * i] + pad[2 * i + 1] - (kernel[i] - 1) * dilation[i],
            stride[i],
            _SPATIAL[dims][i],
        )
        for i in range(dims)
    )
    return (_finish_convolution(inputs, attrs, (x.shape[0], *spatial, channels)),)


def _finish_convolution(inputs: Sequence[Value], attrs: Attrs, shape: tuple[int, ...]) -> Type:
    """Check bias and zero points of any convolution; its output has the dtype of the bias."""
    x, weight, bias, x_zp, weight_zp = inputs
    need_rank(bias, 1, "bias")
    if bias.shape[0] not in (1, shape[-1]):
        raise Invalid(f"bias has {bias.shape[0]} numbers; the output has {shape[-1]} channels")
    need_zero_point(x_zp, x, "input_zp")
    need_zero_point(weight_zp, weight, "weight_zp")
    acc = get_dtype(attrs, "acc_type")
    dtype = acc if acc.is_int or x.dtype in (DType.F8E4M3, DType.F8E5M2) else x.dtype
    need_dtype(bias, dtype, "bias")
    return Type(dtype, shape)


def _conv2d(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, weight = inputs[:2]
    need_rank(x, 4, "input")
    need_rank(weight, 4, "weight")
    channels, kh, kw, depth = weight.shape
    if depth != x.shape[3]:
        raise Invalid(f"weight {weight.type} wants {depth} input channels; the input has {x.shape[3]}")
    return _convolve(inputs, attrs, (kh, kw), channels)


def _conv3d(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, weight = inputs[:2]
    need_rank(x, 5, "input")
    need_rank(weight, 5, "weight")
    if weight.shape[4] != x.shape[4]:
        raise Invalid(f"weight {weight.type} wants {weight.shape[4]} input channels; the input has {x.shape[4]}")
    return _convolve(inputs, attrs, weight.shape[1:4], weight.shape[0])


def _depthwise_conv2d(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, weight = inputs[:2]
    need_rank(x, 4, "input")
    need_rank(weight, 4, "weight")
    kh, kw, channels, multiplier = weight.shape
    if channels != x.shape[3]:
        raise Invalid(f"weight {weight.type} wants {channels} channels; the input has {x.shape[3]}")
    return _convolve(inputs, attrs, (kh, kw), channels * multiplier)


def _transpose_conv2d(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, weight = inputs[:2]
    need_rank(x, 4, "input")
    need_rank(weight, 4, "weight")
    get_bool(attrs, "local_bound")
    channels, kh, kw, depth = weight.shape
    if depth != x.shape[3]:
        raise Invalid(f"weight {weight.type} wants {depth} input channels; the input has {x.shape[3]}")
    top, bottom, left, right = get_ints(attrs, "out_pad", 4)
    stride_y, stride_x = get_ints(attrs, "stride", 2)
    if min(top, bottom) <= -kh or min(left, right) <= -kw:
        raise Invalid(f"out_pad {(top, bottom, left, right)} removes a whole {kh}x{kw} kernel")
    if min(stride_y, stride_x) < 1:
        raise Invalid(f"stride {(stride_y, stride_x)} must be at least 1")
    height = (x.shape[1] - 1) * stride_y + top + bottom + kh
    width = (x.shape[2] - 1) * stride_x + left + right + kw
    if min(height, width) < 1:
        raise Invalid(f"the output would be {height}x{width}")
    return (_finish_convolution(inputs, attrs, (x.shape[0], height, width, channels)),)


def _pool(x: Value, attrs: Attrs) -> Type:
    need_rank(x, 4, "input")
    kernel = get_ints(attrs, "kernel", 2)
    stride = get_ints(attrs, "stride", 2)
    pad = get_ints(attrs, "pad", 4)
    if min(kernel) < 1 or min(stride) < 1:
        raise Invalid(f"kernel {kernel} and stride {stride} must be at least 1")
    if min(pad) < 0:
        raise Invalid(f"pad {pad} has a negative number")
    if max(pad[:2]) >= kernel[0] or max(pad[2:]) >= kernel[1]:
        raise Invalid(f"pad {pad} must be smaller than the kernel {kernel}")
    height, width = (
        count_windows(x.shape[1 + i] + pad[2 * i] + pad[2 * i + 1] - kernel[i], stride[i], _SPATIAL[2][i])
        for i in range(2)
    )
    return Type(x.dtype, (x.shape[0], height, width, x.shape[3]))


def _avg_pool2d(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, input_zp, output_zp = inputs
    get_dtype(attrs, "acc_type")
    need_zero_point(input_zp, x, "input_zp")
    need_zero_point(output_zp, x, "output_zp")
    return (_pool(x, attrs),)


def _max_pool2d(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    (x,) = inputs
    get_choice(attrs, "nan_mode", NAN_MODES)
    return (_pool(x, attrs),)


def _matmul(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    a, b, a_zp, b_zp = inputs
    need_rank(a, 3, "a")
    need_rank(b, 3, "b")
    need_dtype(b, a.dtype, "b")
    if a.shape[0] != b.shape[0]:
        raise Invalid(f"batches differ: {a.type} and {b.type}")
    if a.shape[2] != b.shape[1]:
        raise Invalid(f"inner dimensions differ: {a.type} and {b.type}")
    need_zero_point(a_zp, a, "a_zp")
    need_zero_point(b_zp, b, "b_zp")
    return (Type(get_dtype(attrs, "out_type"), (a.shape[0], a.shape[1], b.shape[2])),)


def _need_powers_of_two(x: Value) -> None:
    need_rank(x, 3, "input_real")
    for size in x.shape[1:]:
        if size < 1 or size & (size - 1):
            raise Invalid(f"height and width must be powers of two, not {x.shape[1]}x{x.shape[2]}")


def _fft2d(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    real, imag = inputs
    get_bool(attrs, "inverse")
    get_bool(attrs, "local_bound")
    _need_powers_of_two(real)
    need_type(imag, real.type, "input_imag")
    return (real.type, real.type)


def _rfft2d(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    (real,) = inputs
    get_bool(attrs, "local_bound")
    _need_powers_of_two(real)
    half = Type(real.dtype, (real.shape[0], real.shape[1], real.shape[2] // 2 + 1))
    return (half, half)


TENSOR_RULES: Mapping[str, Rule] = {
    "ARGMAX": _argmax,
    "AVG_POOL2D": _avg_pool2d,
    "CONV2D": _conv2d,
    "CONV3D": _conv3d,
    "DEPTHWISE_CONV2D": _depthwise_conv2d,
    "FFT2D": _fft2d,
    "MATMUL": _matmul,
    "MAX_POOL2D": _max_pool2d,
    "RFFT2D": _rfft2d,
    "TRANSPOSE_CONV2D": _transpose_conv2d,
}
