"""Graphs of window operations: convolutions, matrix products, pools."""

from __future__ import annotations

from typing import Any

from support.graphs.cases import I8, I16, I32, I48, U85, Case, case, const, make_rng, quantize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Type


def _conv(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    *,
    pad: tuple[int, int, int, int] = (0, 0, 0, 0),
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    dtype: DType = I8,
    sparse: bool = False,
    small: bool = False,
    depthwise: bool = False,
) -> Case:
    b = Builder()
    x = b.input(Type(dtype, shape))
    values = make_rng().integers(-127, 128, weight)
    if small:
        values = make_rng().choice([-3, 0, 5], weight)
    if sparse:
        values[..., ::4] = 0
        values[..., 2::4] = 0
    w = b.const(values, I8)
    outputs = weight[2] * weight[3] if depthwise else weight[0]
    acc_type = I32 if dtype is I8 else I48
    bias = const(b, (outputs,), acc_type, -5000, 5000)
    function = ops.depthwise_conv2d if depthwise else ops.conv2d
    zero = 3 if dtype is I8 else 0
    acc = function(b, x, w, bias, pad=pad, stride=stride, dilation=dilation, acc_type=acc_type, x_zp=zero)
    more = {"out_zp": -5} if dtype is I8 else {}
    return Case(b.finish([quantize(b, acc, dtype, **more)]))


@case()
def conv_1x1() -> Case:
    return _conv((1, 5, 7, 40), (24, 1, 1, 40))


@case()
def conv_3x3_padded() -> Case:
    return _conv((1, 9, 10, 8), (16, 3, 3, 8), pad=(1, 1, 1, 1))


@case()
def conv_one_channel() -> Case:
    return _conv((1, 6, 6, 1), (1, 3, 3, 1), pad=(1, 1, 1, 1))


@case()
def conv_strided() -> Case:
    return _conv((1, 17, 15, 3), (17, 3, 3, 3), stride=(2, 2), pad=(0, 0, 1, 1))


@case()
def conv_stride_3() -> Case:
    return _conv((1, 18, 18, 5), (9, 4, 4, 5), stride=(3, 3), pad=(1, 0, 0, 1))


@case()
def conv_dilated() -> Case:
    return _conv((1, 12, 12, 19), (8, 3, 3, 19), dilation=(2, 2), pad=(2, 2, 2, 2))


@case()
def conv_large_kernel() -> Case:
    return _conv((1, 14, 16, 4), (6, 9, 11, 4), pad=(4, 4, 5, 5))


@case()
def conv_deep() -> Case:
    return _conv((1, 3, 3, 200), (130, 3, 3, 200), pad=(1, 1, 1, 1))


@case()
def conv_few_weights() -> Case:
    return _conv((1, 6, 6, 33), (40, 3, 3, 33), small=True)


@case()
def conv_sparse() -> Case:
    return _conv((1, 8, 8, 64), (32, 1, 1, 64), sparse=True)


@case()
def conv_sparse_3x3() -> Case:
    return _conv((1, 8, 8, 32), (32, 3, 3, 32), sparse=True)


@case()
def conv_int16() -> Case:
    return _conv((1, 6, 7, 20), (12, 3, 3, 20), dtype=I16, pad=(1, 1, 1, 1))


@case()
def conv_int16_1x1() -> Case:
    return _conv((1, 6, 7, 70), (40, 1, 1, 70), dtype=I16)


@case()
def depthwise() -> Case:
    return _conv((1, 9, 9, 24), (3, 3, 24, 1), depthwise=True, pad=(1, 1, 1, 1))


@case()
def depthwise_strided() -> Case:
    return _conv((1, 11, 12, 17), (5, 5, 17, 1), depthwise=True, stride=(2, 2), pad=(2, 2, 1, 2))


@case(U85)
def depthwise_stride_4() -> Case:
    """Too large a stride: Vela adds up one operation per kernel element in the accumulators."""
    return _conv((1, 39, 39, 6), (3, 3, 6, 1), depthwise=True, stride=(4, 4))


@case()
def depthwise_multiplied() -> Case:
    return _conv((1, 8, 8, 3), (3, 3, 3, 4), depthwise=True)


@case()
def depthwise_dilated() -> Case:
    return _conv((1, 12, 12, 8), (3, 3, 8, 1), depthwise=True, dilation=(2, 2))


@case()
def depthwise_int16() -> Case:
    return _conv((1, 7, 7, 33), (3, 3, 33, 1), depthwise=True, dtype=I16, pad=(1, 1, 1, 1))


@case(U85)
def conv_3d() -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 5, 7, 7, 20)))
    w, bias = const(b, (9, 3, 3, 3, 20)), const(b, (9,), I32, -900, 900)
    once, twice = (1, 1, 1, 1, 1, 1), (2, 2, 2)
    operands = (x, w, bias, b.zero_point(2, I8), b.zero_point(0, I8))
    (acc,) = b.emit(ops.CONV3D, operands, pad=once, stride=twice, dilation=(1, 1, 1), acc_type=I32)
    return Case(b.finish([quantize(b, acc)]))


def _transposed(stride: tuple[int, int], out_pad: tuple[int, int, int, int], kernel: int) -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 5, 6, 9)))
    w, bias = const(b, (7, kernel, kernel, 9)), const(b, (7,), I32, -900, 900)
    acc = ops.transpose_conv2d(b, x, w, bias, out_pad=out_pad, stride=stride, acc_type=I32, x_zp=-4)
    return Case(b.finish([quantize(b, acc)]))


@case()
def transposed_conv() -> Case:
    return _transposed((2, 2), (0, 0, 0, 0), 3)


@case()
def transposed_conv_cut() -> Case:
    return _transposed((2, 2), (-1, -1, -1, -1), 4)


@case()
def transposed_conv_stride_1() -> Case:
    return _transposed((1, 1), (0, 0, 0, 0), 3)


def _matmul(dtype: DType, batch: int) -> Case:
    b = Builder()
    x, y = b.input(Type(dtype, (batch, 5, 12))), b.input(Type(dtype, (batch, 12, 9)))
    zero = 2 if dtype is I8 else 0
    acc = ops.matmul(b, x, y, x_zp=zero, y_zp=-zero)
    wide = acc.dtype is I48
    factor, shift = ([17000], [30]) if wide else ([1 << 30], [38])
    return Case(b.finish([ops.rescale(b, acc, dtype, multiplier=factor, shift=shift, scale32=not wide)]))


@case()
def matmul() -> Case:
    return _matmul(I8, 1)


@case()
def matmul_batch() -> Case:
    return _matmul(I8, 3)


@case(U85)
def matmul_int16() -> Case:
    return _matmul(I16, 2)


def _pool(kind: str, kernel: tuple[int, int], stride: tuple[int, int], pad: tuple[int, ...], dtype: DType = I8) -> Case:
    b = Builder()
    x = b.input(Type(dtype, (1, 9, 11, 18)))
    window: Any = {"kernel": kernel, "stride": stride, "pad": pad}
    if kind == "max":
        return Case(b.finish([ops.max_pool2d(b, x, **window)]))
    zero = 5 if dtype is I8 else 0
    return Case(b.finish([ops.avg_pool2d(b, x, acc_type=I32, x_zp=zero, out_zp=-zero, **window)]))


@case()
def max_pool() -> Case:
    return _pool("max", (3, 3), (2, 2), (1, 1, 1, 1))


@case()
def max_pool_int16() -> Case:
    return _pool("max", (2, 3), (1, 2), (0, 1, 0, 0), I16)


@case()
def average_pool() -> Case:
    return _pool("average", (3, 3), (1, 1), (0, 0, 0, 0))


@case()
def average_pool_padded() -> Case:
    return _pool("average", (3, 3), (2, 2), (1, 1, 1, 1))


@case()
def average_pool_global() -> Case:
    return _pool("average", (9, 11), (1, 1), (0, 0, 0, 0))


@case()
def average_pool_int16() -> Case:
    return _pool("average", (2, 2), (1, 1), (0, 0, 0, 0), I16)
