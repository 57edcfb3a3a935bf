"""Graphs that `make mutate` asked for: without them a small error in the simulator would go unseen."""

from __future__ import annotations

import numpy as np

from support.graphs.cases import BOTH, I8, I16, I32, I48, U85, Case, case, const, make_rng, quantize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import Type, Value


def _conv(b: Builder, x: Value, size: int, outputs: int, dilation: int = 1, stride: int = 1) -> Value:
    w, bias = const(b, (outputs, size, size, x.shape[3])), const(b, (outputs,), I32, -5000, 5000)
    acc = ops.conv2d(
        b, x, w, bias, pad=(0, 0, 0, 0), stride=(stride, stride), dilation=(dilation, dilation), acc_type=I32, x_zp=3
    )
    return quantize(b, acc)


@case(BOTH)
def conv_dilated_and_large() -> Case:
    """More kernel elements than are decoded together where the kernel is dilated."""
    b = Builder()
    return Case(b.finish([_conv(b, b.input(Type(I8, (1, 15, 14, 6))), 6, 10, dilation=2)]))


@case(BOTH)
def conv_clamped_to_8_of_32_bits() -> Case:
    b = Builder()
    y = _conv(b, b.input(Type(I8, (1, 4, 5, 8))), 1, 16)
    return Case(b.finish([ops.rescale(b, y, I32, multiplier=[1 << 30], shift=[30])]))


@case(BOTH)
def conv_of_large_sums() -> Case:
    """Sums just above what single precision holds, and that only because of the zero point."""
    b = Builder()
    x = b.input(Type(I8, (1, 2, 3, 1010)))
    weights = np.full((2, 1, 1, 1010), 127)
    weights[0, 0, 0, -1] = 126
    acc = ops.conv2d(
        b, x, b.const(weights, I8), const(b, (2,), I32, 0, 1), pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1),
        acc_type=I32, x_zp=3,
    )  # fmt: skip
    return Case(b.finish([ops.rescale(b, acc, I32, multiplier=[1 << 30], shift=[30])]), ranges=((-128, -127),))


@case(BOTH)
def conv_8x8() -> Case:
    b = Builder()
    return Case(b.finish([_conv(b, b.input(Type(I8, (1, 11, 9, 6))), 8, 10)]))


@case(BOTH)
def conv_1x1_shallow() -> Case:
    b = Builder()
    return Case(b.finish([_conv(b, b.input(Type(I8, (1, 40, 41, 6))), 1, 24)]))


@case(BOTH)
def conv_one_row() -> Case:
    b = Builder()
    return Case(b.finish([_conv(b, b.input(Type(I8, (1, 1, 40, 40))), 1, 24)]))


@case(BOTH)
def conv_one_odd_row() -> Case:
    b = Builder()
    return Case(b.finish([_conv(b, b.input(Type(I8, (1, 1, 41, 40))), 1, 24)]))


@case(BOTH)
def conv_three_rows_to_one() -> Case:
    b = Builder()
    return Case(b.finish([_conv(b, b.input(Type(I8, (1, 3, 8, 8))), 3, 24)]))


@case(BOTH)
def conv_one_pixel() -> Case:
    b = Builder()
    return Case(b.finish([_conv(b, b.input(Type(I8, (1, 1, 1, 72))), 1, 40)]))


@case(BOTH)
def conv_int16_one_column() -> Case:
    b = Builder()
    x = b.input(Type(I16, (1, 3, 1, 20)))
    bias = const(b, (24,), I48, -5000, 5000)
    w = const(b, (24, 1, 1, 20))
    acc = ops.conv2d(b, x, w, bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), acc_type=I48)
    return Case(b.finish([quantize(b, acc, I16)]))


@case(BOTH)
def conv_depth_first() -> Case:
    """All channels of one kernel element before the next: what large kernels over many channels get."""
    b = Builder()
    return Case(b.finish([_conv(b, b.input(Type(I8, (1, 9, 8, 64))), 5, 24)]))


@case(BOTH)
def conv_depth_first_strided() -> Case:
    b = Builder()
    return Case(b.finish([_conv(b, b.input(Type(I8, (1, 9, 11, 128))), 5, 40, stride=2)]))


@case(BOTH)
def conv_depth_first_sparse() -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 7, 7, 128)))
    weights = make_rng().integers(-127, 128, (20, 5, 5, 128))
    weights[..., ::4] = 0
    weights[..., 2::4] = 0
    acc = ops.conv2d(
        b,
        x,
        b.const(weights, I8),
        const(b, (20,), I32, -5000, 5000),
        pad=(2, 2, 2, 2),
        stride=(1, 1),
        dilation=(1, 1),
        acc_type=I32,
    )
    return Case(b.finish([quantize(b, acc)]))


@case(BOTH)
def tables_of_several_operators() -> Case:
    """Tables that lie beside each other in the NPU."""
    b = Builder()
    x = b.input(Type(I8, (1, 6, 5, 20)))
    rng = make_rng()
    made = [ops.table(b, _conv(b, x, 1, 12), rng.integers(-128, 128, 256)) for _ in range(4)]
    return Case(b.finish(made))


@case(U85)
def argmax_of_negatives() -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 7, 4, 9)))
    return Case(b.finish([ops.argmax(b, x, 1), ops.argmax(b, x, 2)]), ranges=((-128, 0),))


def _average(
    pad: tuple[int, int, int, int], kernel: tuple[int, int] = (3, 3), stride: tuple[int, int] = (1, 1)
) -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 8, 8, 5)))
    return Case(
        b.finish([ops.avg_pool2d(b, x, kernel=kernel, stride=(1, 1), pad=pad, acc_type=I32, x_zp=7, out_zp=-7)])
    )


@case(BOTH)
def average_pool_padded_rows() -> Case:
    return _average((1, 1, 0, 0))


@case(BOTH)
def average_pool_padded_columns() -> Case:
    return _average((0, 0, 1, 1))


@case(BOTH)
def average_pool_padded_at_the_end() -> Case:
    return _average((0, 1, 0, 1), kernel=(2, 2))


@case(BOTH)
def average_pool_padded_at_the_start() -> Case:
    return _average((1, 0, 1, 0), kernel=(2, 2))


@case(BOTH)
def mul_int32_halved() -> Case:
    """A scale of 1 with a shift: almost nothing to do, but not nothing."""
    b = Builder()
    x, y = b.input(Type(I32, (1, 3, 5, 6))), b.input(Type(I32, (1, 3, 5, 6)))
    return Case(b.finish([ops.mul(b, x, y, shift=1)]), ranges=((-999, 999), (-999, 999)))


@case(BOTH)
def rescale_at_the_edges() -> Case:
    """Numbers that saturate on both sides, and halves that must be rounded."""
    b = Builder()
    x = b.input(Type(I32, (1, 4, 16, 16)))
    return Case(b.finish([ops.rescale(b, x, I8, multiplier=[1 << 30], shift=[31])]), ranges=((-300, 300),))


@case(U85)
def divide_signs() -> Case:
    b = Builder()
    x, y = b.input(Type(I32, (1, 3, 4, 5))), b.input(Type(I32, (1, 3, 4, 5)))
    low = ops.intdiv(b, x, y)
    return Case(b.finish([low]), ranges=((-1000, 1000), (-9, 0)))


@case(BOTH)
def max_pool_of_negatives() -> Case:
    """The padding must not win."""
    b = Builder()
    x = b.input(Type(I8, (1, 6, 6, 17)))
    pool = ops.max_pool2d(b, x, kernel=(3, 3), stride=(1, 1), pad=(1, 1, 1, 1))
    return Case(b.finish([pool]), ranges=((-128, -100),))


@case(BOTH)
def conv_on_the_edge_of_bricks() -> Case:
    """15, 16 and 17 channels between operators."""
    b = Builder()
    x = b.input(Type(I8, (1, 7, 9, 15)))
    for outputs in (16, 17, 33, 15):
        x = _conv(b, x, 1, outputs)
    return Case(b.finish([x]))


@case(BOTH)
def add_to_constants() -> Case:
    b = Builder()
    x = b.input(Type(I32, (1, 4, 5, 17)))
    row = b.const(np.arange(17).reshape(1, 1, 1, 17) * 1000 - 7000, I32)
    column = b.const(np.arange(4).reshape(1, 4, 1, 1) * 77777 - 7, I32)
    one = b.const(np.full((1, 1, 1, 1), -12345), I32)
    return Case(b.finish([ops.sub(b, column, ops.add(b, ops.sub(b, x, row), one))]))


@case(BOTH)
def rescale_double_rounded_often() -> Case:
    """Shifts just above 31, where the second rounding changes one number in eight, on both sides of zero."""
    b = Builder()
    x = b.input(Type(I32, (1, 6, 9, 17)))
    made = [
        ops.rescale(b, x, I8, multiplier=[1481765933], shift=[shift], rounding="DOUBLE_ROUND") for shift in (32, 33, 34)
    ]
    return Case(b.finish(made), ranges=((-400, 400),))


@case(BOTH)
def conv_int16_sparse() -> Case:
    b = Builder()
    x = b.input(Type(I16, (1, 5, 5, 128)))
    weights = make_rng().integers(-127, 128, (24, 1, 1, 128))
    weights[..., ::4] = 0
    weights[..., 2::4] = 0
    bias = const(b, (24,), I48, -5000, 5000)
    acc = ops.conv2d(b, x, b.const(weights, I8), bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), acc_type=I48)
    return Case(b.finish([quantize(b, acc, I16)]))


@case(BOTH)
def conv_in_pieces() -> Case:
    """More output than the simulator computes at once, and rows left over at the end."""
    b = Builder()
    return Case(b.finish([_conv(b, b.input(Type(I8, (1, 99, 101, 3))), 3, 40)]))


@case(BOTH)
def pool_in_pieces() -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 103, 64, 48)))
    return Case(b.finish([ops.max_pool2d(b, x, kernel=(3, 3), stride=(1, 1), pad=(1, 1, 1, 1))]))


@case(BOTH)
def sum_in_pieces() -> Case:
    b = Builder()
    x, y = b.input(Type(I32, (1, 103, 64, 48))), b.input(Type(I32, (1, 1, 64, 48)))
    return Case(b.finish([ops.add(b, x, y)]))
