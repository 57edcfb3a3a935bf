"""One small graph per pass, in which it has something to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Type, Value

_FLOAT, _U55 = "TOSA-1.0+FP", "ethos-u55-128"


def _make_batch_norm() -> Graph:
    b = Builder()
    x = b.input(Type(DType.F32, (1, 4, 4, 2)))
    weight = b.const(np.array([[1, -2], [0.5, 3]], np.float32).reshape(2, 1, 1, 2), DType.F32)
    bias = b.const(np.array([1, -1], np.float32), DType.F32)
    conv = ops.conv2d(b, x, weight, bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), acc_type=DType.F32)
    scale, shift = (b.const(np.array([[[row]]], np.float32), DType.F32) for row in ((2, 4), (0.25, 8)))
    return b.finish([ops.add(b, ops.mul(b, conv, scale), shift)])


def make_equal_ops() -> Graph:
    """Make the same chain of ops twice, and an op that nobody reads."""
    b = Builder()
    x = b.input(Type(DType.F32, (2, 3)))
    left, right = ops.exp(b, x), ops.exp(b, x)
    ops.tanh(b, x)
    return b.finish([ops.add(b, ops.abs(b, left), ops.abs(b, right))])


def _make_vela_pairs() -> Graph:
    """Make a reduced slice, and a product of one tensor in two shapes."""
    b = Builder()
    x = b.input(Type(DType.I8, (1, 1, 4, 8)))
    largest = ops.reduce_max(b, ops.slice(b, x, (0, 0, 1, 0), (1, 1, 2, 8)), 2)

    def widen(value: Value) -> Value:
        return ops.rescale(b, value, DType.I32, multiplier=[1 << 30], shift=[30])

    column = b.input(Type(DType.I8, (1, 1, 1, 8)))
    row = ops.reshape(b, column, (1, 1, 8, 1))
    product = ops.mul(b, widen(column), widen(row))
    return b.finish([largest, ops.rescale(b, product, DType.I8, multiplier=[1 << 30], shift=[37])])


def _make_transpose() -> Graph:
    b = Builder()
    x = b.input(Type(DType.I8, (1, 2, 64, 64)))
    return b.finish([ops.transpose(b, x, (0, 2, 3, 1))])


def make_two_biases() -> Graph:
    """Make two convolutions with the same weights and factors."""
    b = Builder()
    x = b.input(Type(DType.I8, (1, 3, 3, 2)))
    weight = b.const(np.array([[1, -2], [5, 3]]).reshape(2, 1, 1, 2), DType.I8)

    def convolve(bias: list[int]) -> Value:
        offset, plain = b.const(np.array(bias), DType.I32), (0, 0, 0, 0)
        sums = ops.conv2d(b, x, weight, offset, pad=plain, stride=(1, 1), dilation=(1, 1), acc_type=DType.I32)
        return ops.rescale(b, sums, DType.I8, multiplier=[1 << 30], shift=[33])

    return b.finish([convolve([100, 200]), convolve([-300, 50])])


def _make_repeated_output() -> Graph:
    b = Builder()
    x = ops.abs(b, b.input(Type(DType.F32, (2, 3))))
    return b.finish([x, x])


def _make_views() -> Graph:
    """Make an outer product of a part of a tensor with itself."""
    b = Builder()
    part = ops.slice(b, b.input(Type(DType.I8, (8,))), (2,), (4,))
    shapes = (ops.reshape(b, part, (4, 1)), ops.reshape(b, part, (1, 4)))
    x, y = (ops.rescale(b, value, DType.I32, multiplier=[1 << 30], shift=[30]) for value in shapes)
    return b.finish([ops.rescale(b, ops.mul(b, x, y), DType.I8, multiplier=[1 << 30], shift=[37])])


def _make_bf16_pad() -> Graph:
    b = Builder()
    return b.finish([ops.pad(b, b.input(Type(DType.BF16, (2, 3))), (0, 0, 1, 2), -1.5)])


#: The target and the graph of each pass.
GRAPHS: Mapping[str, tuple[str, Callable[[], Graph]]] = {
    "fold_conv_scale": (_FLOAT, _make_batch_norm),
    "pads_to_concat": ("vgf", _make_bf16_pad),
    "cse": (_FLOAT, make_equal_ops),
    "dce": (_FLOAT, make_equal_ops),
    "separate_vela_pairs": (_U55, _make_vela_pairs),
    "transpose_to_conv": (_U55, _make_transpose),
    "separate_biases": (_U55, make_two_biases),
    "copy_outputs": ("vgf", _make_repeated_output),
    "separate_all": (_U55, _make_views),
}
