"""Builders of the tensor operators: convolutions, pools, matrix products, transforms, argmax."""

from __future__ import annotations

import numpy as np

from tosaic.ir.build import Builder
from tosaic.ir.graph import Attr, DType, Value


def zero_point(b: Builder, value: int, dtype: DType, *, unsigned: bool = False) -> Value:
    """A zero point operand: one number of the tensor's dtype (an unsigned one by its bit pattern)."""
    if unsigned and dtype in (DType.I8, DType.I16):
        bits = 8 if dtype is DType.I8 else 16
        value = value - (1 << bits) if value >= 1 << (bits - 1) else value
    return b.const(np.array([value], dtype=np.int64), dtype)


def argmax(b: Builder, x: Value, axis: int, *, nan_mode: str = "PROPAGATE") -> Value:
    return b.emit("ARGMAX", (x,), axis=axis, nan_mode=nan_mode)[0]


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
    operands = (x, zero_point(b, x_zp, x.dtype), zero_point(b, out_zp, x.dtype))
    return b.emit("AVG_POOL2D", operands, kernel=kernel, stride=stride, pad=pad, acc_type=acc_type)[0]


def max_pool2d(
    b: Builder,
    x: Value,
    *,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int, int, int],
    nan_mode: str = "PROPAGATE",
) -> Value:
    return b.emit("MAX_POOL2D", (x,), kernel=kernel, stride=stride, pad=pad, nan_mode=nan_mode)[0]


def _convolution(
    b: Builder,
    kind: str,
    tensors: tuple[Value, Value, Value],
    zps: tuple[int, int],
    **attrs: Attr,
) -> Value:
    x, weight, bias = tensors
    operands = (x, weight, bias, zero_point(b, zps[0], x.dtype), zero_point(b, zps[1], weight.dtype))
    return b.emit(kind, operands, **attrs)[0]


def conv2d(
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
    """Input [N,H,W,IC], weight [OC,KH,KW,IC], bias [OC] or [1]; pad is top, bottom, left, right."""
    window = {"pad": pad, "stride": stride, "dilation": dilation}
    tensors, zps = (x, weight, bias), (x_zp, weight_zp)
    return _convolution(b, "CONV2D", tensors, zps, **window, local_bound=local_bound, acc_type=acc_type)


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
    """Input [N,D,H,W,IC], weight [OC,KD,KH,KW,IC]; pad is front, back, top, bottom, left, right."""
    window = {"pad": pad, "stride": stride, "dilation": dilation}
    tensors, zps = (x, weight, bias), (x_zp, weight_zp)
    return _convolution(b, "CONV3D", tensors, zps, **window, local_bound=local_bound, acc_type=acc_type)


def depthwise_conv2d(
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
    """Input [N,H,W,C], weight [KH,KW,C,M], output channels C*M with the multiplier innermost."""
    window = {"pad": pad, "stride": stride, "dilation": dilation}
    tensors, zps = (x, weight, bias), (x_zp, weight_zp)
    return _convolution(b, "DEPTHWISE_CONV2D", tensors, zps, **window, local_bound=local_bound, acc_type=acc_type)


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
    """Weight [OC,KH,KW,IC]; out_pad adds to (or, negative, takes from) the output's borders."""
    window = {"out_pad": out_pad, "stride": stride}
    tensors, zps = (x, weight, bias), (x_zp, weight_zp)
    return _convolution(b, "TRANSPOSE_CONV2D", tensors, zps, **window, local_bound=local_bound, acc_type=acc_type)


#: The dtype of a matrix product, where the caller does not choose (only f16 has a choice: f16 or f32).
_PRODUCTS = {
    DType.I8: DType.I32,
    DType.I16: DType.I48,
    DType.F8E4M3: DType.F16,
    DType.F8E5M2: DType.F16,
    DType.BF16: DType.F32,
}


def matmul(b: Builder, x: Value, y: Value, *, x_zp: int = 0, y_zp: int = 0, out_type: DType | None = None) -> Value:
    """[N,H,C] times [N,C,W]."""
    operands = (x, y, zero_point(b, x_zp, x.dtype), zero_point(b, y_zp, y.dtype))
    return b.emit("MATMUL", operands, out_type=out_type or _PRODUCTS.get(x.dtype, x.dtype))[0]


def fft2d(b: Builder, real: Value, imag: Value, *, inverse: bool, local_bound: bool = False) -> tuple[Value, Value]:
    out_real, out_imag = b.emit("FFT2D", (real, imag), inverse=inverse, local_bound=local_bound)
    return out_real, out_imag


def rfft2d(b: Builder, real: Value, *, local_bound: bool = False) -> tuple[Value, Value]:
    out_real, out_imag = b.emit("RFFT2D", (real,), local_bound=local_bound)
    return out_real, out_imag
