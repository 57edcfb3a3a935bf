"""The tensor operators (convolutions, pools, matrix products, transforms, argmax): definitions and builders."""

from __future__ import annotations

from tosaic.core.errors import Invalid
from tosaic.ir.build import Builder
from tosaic.ir.definition import (
    ANY_FLOAT,
    AXIS,
    NAN_MODE,
    Attribute,
    Bound,
    Field,
    Infer,
    Limit,
    OpDef,
    allow,
    bound,
    constant,
    tensor,
)
from tosaic.ir.graph import DType, Op, Type, Value
from tosaic.ir.infer import count_windows, get_axis, need_dtype, need_rank, need_type, need_zero_point

_LOCAL_BOUND = Attribute("local_bound", Field.BOOL)
_ACC_TYPE = Attribute("acc_type", Field.DTYPE)
_STRIDE = Attribute("stride", Field.INTS, 2)
_PAD = Attribute("pad", Field.INTS, 4)
_KERNEL = Attribute("kernel", Field.INTS, 2)
_AXES = {2: ("height", "width"), 3: ("depth", "height", "width")}


def _infer_argmax(op: Op) -> Type:
    x = op.operand("input")
    axis = get_axis(op, x.rank)
    return Type(DType.I32, x.shape[:axis] + x.shape[axis + 1 :])


ARGMAX = OpDef(
    "ARGMAX",
    (tensor("input"),),
    (AXIS, NAN_MODE),
    infer=_infer_argmax,
    legal=allow("in", "i8: INT", "i16: int16", *ANY_FLOAT),
)


def argmax(b: Builder, x: Value, axis: int, *, nan_mode: str = "PROPAGATE") -> Value:
    return b.emit(ARGMAX, (x,), axis=axis, nan_mode=nan_mode)[0]


# Convolutions.

_CONV_OPERANDS = (
    tensor("input"),
    tensor("weight"),
    tensor("bias"),
    constant("input_zp"),
    constant("weight_zp"),
)
_CONV_LEGAL = allow(
    "in weight out acc_type",
    "i8 i8 i32 i32: INT",
    "i8 i4 i32 i32: int4",
    "i16 i8 i48 i48: int16",
    "f8e4m3 f8e4m3 f16 f16: fp8e4m3",
    "f8e5m2 f8e5m2 f16 f16: fp8e5m2",
    "f16 f16 f16 f16, f16 f16 f16 f32, f32 f32 f32 f32: FP",
    "bf16 bf16 bf16 f32: bf16",
)


def _get_kernel(op: Op) -> tuple[int, ...]:
    """Find the spatial size of the weights."""
    weight = op.operand("weight").shape
    return weight[:2] if op.definition is depthwise_conv2d else weight[1:-1]


def _get_dilated_kernel(op: Op) -> tuple[int, ...]:
    return tuple(k * d for k, d in zip(_get_kernel(op), op.get_ints("dilation"), strict=True))


_CONV_BOUNDS = (
    Bound("dilated kernel", _get_dilated_kernel, Limit.KERNEL),
    bound("pad", Limit.KERNEL),
    bound("stride", Limit.STRIDE),
)


def _infer_convolution(op: Op, channels: int) -> Type:
    """Infer the parts that CONV2D, CONV3D and DEPTHWISE_CONV2D share once the output's channels are known."""
    x, kernel = op.operand("input"), _get_kernel(op)
    pad, stride, dilation = op.get_ints("pad"), op.get_ints("stride"), op.get_ints("dilation")
    if min(pad) < 0:
        raise Invalid(f"pad {pad} has a negative number")
    if min(stride) < 1 or min(dilation) < 1:
        raise Invalid(f"stride {stride} and dilation {dilation} must be at least 1")
    spatial = tuple(
        count_windows(
            x.shape[1 + i] - 1 + pad[2 * i] + pad[2 * i + 1] - (size - 1) * dilation[i],
            stride[i],
            _AXES[len(kernel)][i],
        )
        for i, size in enumerate(kernel)
    )
    return _finish_convolution(op, (x.shape[0], *spatial, channels))


def _finish_convolution(op: Op, shape: tuple[int, ...]) -> Type:
    """Check bias and zero points of any convolution; its output has the dtype of the bias."""
    x, bias = op.operand("input"), need_rank(op, "bias", 1)
    if bias.shape[0] not in (1, shape[-1]):
        raise Invalid(f"bias has {bias.shape[0]} numbers; the output has {shape[-1]} channels")
    need_zero_point(op, "input_zp", x.dtype)
    need_zero_point(op, "weight_zp", op.operand("weight").dtype)
    acc = op.get("acc_type", DType)
    dtype = acc if acc.is_int or x.dtype in (DType.F8E4M3, DType.F8E5M2) else x.dtype
    need_dtype(bias, dtype, "bias")
    return Type(dtype, shape)


def _need_channels(op: Op, rank: int) -> Value:
    """Return weights [OC,...,IC] that must fit the channels of the input."""
    x, weight = need_rank(op, "input", rank), need_rank(op, "weight", rank)
    if weight.shape[-1] != x.shape[-1]:
        raise Invalid(f"weight {weight.type} wants {weight.shape[-1]} input channels; the input has {x.shape[-1]}")
    return weight


class Conv2d(OpDef):
    """A convolution over height and width; pad is top, bottom, left, right."""

    def __init__(self, name: str, infer: Infer) -> None:
        super().__init__(
            name,
            _CONV_OPERANDS,
            (_PAD, _STRIDE, Attribute("dilation", Field.INTS, 2), _LOCAL_BOUND, _ACC_TYPE),
            infer=infer,
            legal=_CONV_LEGAL,
            bounds=_CONV_BOUNDS,
        )

    def __call__(
        self,
        b: Builder,
        x: Value,
        weight: Value,
        bias: Value,
        *,
        pad: tuple[int, int, int, int],
        stride: tuple[int, int],
        dilation: tuple[int, int],
        acc_type: DType,
        x_zp: int = 0,
        weight_zp: int = 0,
        local_bound: bool = False,
    ) -> Value:
        operands = (x, weight, bias, b.zero_point(x_zp, x.dtype), b.zero_point(weight_zp, weight.dtype))
        window = {"pad": pad, "stride": stride, "dilation": dilation}
        return b.emit(self, operands, **window, local_bound=local_bound, acc_type=acc_type)[0]


def _infer_conv2d(op: Op) -> Type:
    return _infer_convolution(op, _need_channels(op, 4).shape[0])


#: Input [N,H,W,IC], weight [OC,KH,KW,IC], bias [OC] or [1].
conv2d = Conv2d("CONV2D", _infer_conv2d)


def _infer_depthwise_conv2d(op: Op) -> Type:
    x, weight = need_rank(op, "input", 4), need_rank(op, "weight", 4)
    channels, multiplier = weight.shape[2:]
    if channels != x.shape[3]:
        raise Invalid(f"weight {weight.type} wants {channels} channels; the input has {x.shape[3]}")
    return _infer_convolution(op, channels * multiplier)


#: Input [N,H,W,C], weight [KH,KW,C,M], output channels C*M with the multiplier innermost.
depthwise_conv2d = Conv2d("DEPTHWISE_CONV2D", _infer_depthwise_conv2d)


def _infer_conv3d(op: Op) -> Type:
    return _infer_convolution(op, _need_channels(op, 5).shape[0])


#: Input [N,D,H,W,IC], weight [OC,KD,KH,KW,IC]; pad is front, back, top, bottom, left, right.
CONV3D = OpDef(
    "CONV3D",
    _CONV_OPERANDS,
    (
        Attribute("pad", Field.INTS, 6),
        Attribute("stride", Field.INTS, 3),
        Attribute("dilation", Field.INTS, 3),
        _LOCAL_BOUND,
        _ACC_TYPE,
    ),
    infer=_infer_conv3d,
    legal=_CONV_LEGAL,
    bounds=_CONV_BOUNDS,
)


def conv3d(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value,
    *,
    pad: tuple[int, int, int, int, int, int],
    stride: tuple[int, int, int],
    dilation: tuple[int, int, int],
    acc_type: DType,
    x_zp: int = 0,
    weight_zp: int = 0,
    local_bound: bool = False,
) -> Value:
    """Convolve [N,D,H,W,IC] with weight [OC,KD,KH,KW,IC]."""
    operands = (x, weight, bias, b.zero_point(x_zp, x.dtype), b.zero_point(weight_zp, weight.dtype))
    window = {"pad": pad, "stride": stride, "dilation": dilation}
    return b.emit(CONV3D, operands, **window, local_bound=local_bound, acc_type=acc_type)[0]


def _infer_transpose_conv2d(op: Op) -> Type:
    channels, kh, kw, _ = _need_channels(op, 4).shape
    x = op.operand("input")
    top, bottom, left, right = op.get_ints("out_pad")
    stride_y, stride_x = op.get_ints("stride")
    if min(top, bottom) <= -kh or min(left, right) <= -kw:
        raise Invalid(f"out_pad {(top, bottom, left, right)} removes a whole {kh}x{kw} kernel")
    if min(stride_y, stride_x) < 1:
        raise Invalid(f"stride {(stride_y, stride_x)} must be at least 1")
    height = (x.shape[1] - 1) * stride_y + top + bottom + kh
    width = (x.shape[2] - 1) * stride_x + left + right + kw
    if min(height, width) < 1:
        raise Invalid(f"the output would be {height}x{width}")
    return _finish_convolution(op, (x.shape[0], height, width, channels))


TRANSPOSE_CONV2D = OpDef(
    "TRANSPOSE_CONV2D",
    _CONV_OPERANDS,
    (Attribute("out_pad", Field.INTS, 4), _STRIDE, _LOCAL_BOUND, _ACC_TYPE),
    infer=_infer_transpose_conv2d,
    legal=_CONV_LEGAL,
    bounds=(
        Bound("dilated kernel", _get_kernel, Limit.KERNEL),
        bound("out_pad", Limit.KERNEL),
        bound("stride", Limit.STRIDE),
    ),
)


def transpose_conv2d(
    b: Builder,
    x: Value,
    weight: Value,
    bias: Value,
    *,
    out_pad: tuple[int, int, int, int],
    stride: tuple[int, int],
    acc_type: DType,
    x_zp: int = 0,
    weight_zp: int = 0,
    local_bound: bool = False,
) -> Value:
    """Convolve with weight [OC,KH,KW,IC]; out_pad extends (or, negative, crops) the edges of the output."""
    operands = (x, weight, bias, b.zero_point(x_zp, x.dtype), b.zero_point(weight_zp, weight.dtype))
    return b.emit(
        TRANSPOSE_CONV2D, operands, out_pad=out_pad, stride=stride, local_bound=local_bound, acc_type=acc_type
    )[0]


# Pools.

_POOL_BOUNDS = (bound("pad", Limit.KERNEL), bound("kernel", Limit.KERNEL), bound("stride", Limit.STRIDE))


def _infer_pool(op: Op) -> Type:
    x = need_rank(op, "input", 4)
    kernel, stride, pad = op.get_ints("kernel"), op.get_ints("stride"), op.get_ints("pad")
    if min(kernel) < 1 or min(stride) < 1:
        raise Invalid(f"kernel {kernel} and stride {stride} must be at least 1")
    if min(pad) < 0:
        raise Invalid(f"pad {pad} has a negative number")
    if max(pad[:2]) >= kernel[0] or max(pad[2:]) >= kernel[1]:
        raise Invalid(f"pad {pad} must be smaller than the kernel {kernel}")
    height, width = (
        count_windows(x.shape[1 + i] + pad[2 * i] + pad[2 * i + 1] - kernel[i], stride[i], _AXES[2][i])
        for i in range(2)
    )
    return Type(x.dtype, (x.shape[0], height, width, x.shape[3]))


def _infer_avg_pool2d(op: Op) -> Type:
    dtype = op.operand("input").dtype
    need_zero_point(op, "input_zp", dtype)
    need_zero_point(op, "output_zp", dtype)
    return _infer_pool(op)


AVG_POOL2D = OpDef(
    "AVG_POOL2D",
    (tensor("input"), constant("input_zp"), constant("output_zp")),
    (_KERNEL, _STRIDE, _PAD, _ACC_TYPE),
    infer=_infer_avg_pool2d,
    legal=allow(
        "in acc_type",
        "i8 i32: INT",
        "i16 i32: int16",
        "f8e4m3 f16: fp8e4m3",
        "f8e5m2 f16: fp8e5m2",
        "f16 f16, f16 f32, f32 f32: FP",
        "bf16 f32: bf16",
    ),
    bounds=_POOL_BOUNDS,
)


def avg_pool2d(
    b: Builder,
    x: Value,
    *,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int, int, int],
    acc_type: DType,
    x_zp: int = 0,
    out_zp: int = 0,
) -> Value:
    operands = (x, b.zero_point(x_zp, x.dtype), b.zero_point(out_zp, x.dtype))
    return b.emit(AVG_POOL2D, operands, kernel=kernel, stride=stride, pad=pad, acc_type=acc_type)[0]


MAX_POOL2D = OpDef(
    "MAX_POOL2D",
    (tensor("input"),),
    (_KERNEL, _STRIDE, _PAD, NAN_MODE),
    infer=_infer_pool,
    legal=allow("in", "i8: INT", "i16: int16", *ANY_FLOAT),
    bounds=_POOL_BOUNDS,
)


def max_pool2d(
    b: Builder,
    x: Value,
    *,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int, int, int],
    nan_mode: str = "PROPAGATE",
) -> Value:
    return b.emit(MAX_POOL2D, (x,), kernel=kernel, stride=stride, pad=pad, nan_mode=nan_mode)[0]


# Matrix products and transforms.


def _infer_matmul(op: Op) -> Type:
    x, y = need_rank(op, "a", 3), need_rank(op, "b", 3)
    need_dtype(y, x.dtype, "b")
    if x.shape[0] != y.shape[0]:
        raise Invalid(f"batches differ: {x.type} and {y.type}")
    if x.shape[2] != y.shape[1]:
        raise Invalid(f"inner dimensions differ: {x.type} and {y.type}")
    need_zero_point(op, "a_zp", x.dtype)
    need_zero_point(op, "b_zp", y.dtype)
    return Type(op.get("out_type", DType), (x.shape[0], x.shape[1], y.shape[2]))


MATMUL = OpDef(
    "MATMUL",
    (tensor("a"), tensor("b"), constant("a_zp"), constant("b_zp")),
    (Attribute("out_type", Field.OUT_DTYPE),),
    infer=_infer_matmul,
    legal=allow(
        "in out",
        "i8 i32: INT",
        "i16 i48: int16",
        "f8e4m3 f16: fp8e4m3",
        "f8e5m2 f16: fp8e5m2",
        "f16 f16, f16 f32, f32 f32: FP",
        "bf16 f32: bf16",
    ),
)
#: The dtype of a matrix product, if the caller does not choose (only f16 has a choice: f16 or f32).
_PRODUCTS = {
    DType.I8: DType.I32,
    DType.I16: DType.I48,
    DType.F8E4M3: DType.F16,
    DType.F8E5M2: DType.F16,
    DType.BF16: DType.F32,
}


def matmul(b: Builder, x: Value, y: Value, *, x_zp: int = 0, y_zp: int = 0, out_type: DType | None = None) -> Value:
    """Multiply [N,H,C] by [N,C,W]."""
    operands = (x, y, b.zero_point(x_zp, x.dtype), b.zero_point(y_zp, y.dtype))
    return b.emit(MATMUL, operands, out_type=out_type or _PRODUCTS.get(x.dtype, x.dtype))[0]


_TRANSFORM_LEGAL = allow("in", "f32: fft")
_TRANSFORM_BOUNDS = (Bound("transform size", lambda op: op.operand("input_real").shape[1:], Limit.KERNEL),)


def _need_powers_of_two(op: Op) -> Type:
    x = need_rank(op, "input_real", 3)
    for size in x.shape[1:]:
        if size < 1 or size & (size - 1):
            raise Invalid(f"height and width must be powers of two, not {x.shape[1]}x{x.shape[2]}")
    return x.type


def _infer_fft2d(op: Op) -> tuple[Type, Type]:
    real = _need_powers_of_two(op)
    need_type(op, "input_imag", real)
    return real, real


FFT2D = OpDef(
    "FFT2D",
    (tensor("input_real"), tensor("input_imag")),
    (Attribute("inverse", Field.BOOL), _LOCAL_BOUND),
    infer=_infer_fft2d,
    legal=_TRANSFORM_LEGAL,
    bounds=_TRANSFORM_BOUNDS,
)


def _infer_rfft2d(op: Op) -> tuple[Type, Type]:
    real = _need_powers_of_two(op)
    half = Type(real.dtype, (*real.shape[:2], real.shape[2] // 2 + 1))
    return half, half


RFFT2D = OpDef(
    "RFFT2D",
    (tensor("input_real"),),
    (_LOCAL_BOUND,),
    infer=_infer_rfft2d,
    legal=_TRANSFORM_LEGAL,
    bounds=_TRANSFORM_BOUNDS,
)
