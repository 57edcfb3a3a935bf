"""Pairs of operations, executed: what Vela makes of two is not always what it makes of one and the other.

`WRONG` are those that Vela 5.2.0 gets wrong, found by running all; the pass `separate_vela_pairs` keeps them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest

from support.graphs.cases import BOOL, I8, I16, I32, Case, const, make_rng, quantize
from support.npu_bench import Bench
from support.pass_graphs import make_two_biases
from tosaic.core.errors import ToolCrashed
from tosaic.engines import reference
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import Array, DType, Graph, Type, Value
from tosaic.npu import Fault
from tosaic.passes.separate_biases import separate_biases
from tosaic.passes.separate_vela_pairs import separate_vela_pairs
from tosaic.tools import vela

Make: TypeAlias = Callable[[Builder, Value], Value]
SHAPE = (1, 5, 6, 16)
TARGETS = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")
PLAIN: Any = {"pad": (0, 0, 0, 0), "stride": (1, 1)}


def widen(b: Builder, x: Value, shift: int = 30) -> Value:
    return ops.rescale(b, x, I32, multiplier=[1 << 30], shift=[shift])


def convolve(b: Builder, x: Value, kernel: int) -> Value:
    weight, bias = const(b, (8, kernel, kernel, x.shape[3])), b.const(np.arange(8), I32)
    pad = (kernel // 2,) * 4
    return quantize(b, ops.conv2d(b, x, weight, bias, pad=pad, stride=(1, 1), dilation=(1, 1), acc_type=I32))


def convolve_depthwise(b: Builder, x: Value) -> Value:
    weight, bias = const(b, (3, 3, x.shape[3], 1)), b.const(np.arange(x.shape[3]), I32)
    options: Any = {"pad": (1, 1, 1, 1), "stride": (1, 1), "dilation": (1, 1)}
    return quantize(b, ops.depthwise_conv2d(b, x, weight, bias, acc_type=I32, **options))


def cover(x: Value, span: int, stride: int) -> tuple[int, int, int, int]:
    """Pad by all but one pixel of the window before each row and column, and after them to a whole number of steps."""
    below, right = (-(size - 1) % stride for size in x.shape[1:3])
    return (span - 1, below, span - 1, right)


def convolve_wide(b: Builder, x: Value, dilation: int = 1, stride: int = 1) -> Value:
    weight, bias = const(b, (8, 3, 3, x.shape[3])), b.const(np.arange(8), I32)
    steps: Any = {"stride": (stride, stride), "dilation": (dilation, dilation)}
    pad = cover(x, 2 * dilation + 1, stride)
    return quantize(b, ops.conv2d(b, x, weight, bias, pad=pad, acc_type=I32, **steps))


def convolve_wide_depthwise(b: Builder, x: Value, dilation: int = 1, stride: int = 1) -> Value:
    weight, bias = const(b, (3, 3, x.shape[3], 1)), b.const(np.arange(x.shape[3]), I32)
    steps: Any = {"stride": (stride, stride), "dilation": (dilation, dilation)}
    pad = cover(x, 2 * dilation + 1, stride)
    return quantize(b, ops.depthwise_conv2d(b, x, weight, bias, pad=pad, acc_type=I32, **steps))


def convolve_transposed(b: Builder, x: Value) -> Value:
    weight, bias = const(b, (8, 2, 2, x.shape[3])), b.const(np.arange(8), I32)
    return quantize(b, ops.transpose_conv2d(b, x, weight, bias, out_pad=(0, 0, 0, 0), stride=(2, 2), acc_type=I32))


def add(b: Builder, x: Value) -> Value:
    other = ops.rescale(b, const(b, x.shape), I32, multiplier=[1518500250], shift=[12])
    total = ops.add(b, widen(b, x, 11), other)
    return ops.rescale(b, total, I8, multiplier=[1 << 30], shift=[50])


def multiply(b: Builder, x: Value) -> Value:
    return ops.rescale(b, ops.mul(b, widen(b, x), widen(b, x)), I8, multiplier=[1 << 30], shift=[40])


def combine_with_16_bits(b: Builder, x: Value, combine: Callable[..., Value], shift: int) -> Value:
    other = b.const(make_rng().integers(-(2**15), 2**15, x.shape), I16)
    return ops.rescale(b, combine(b, widen(b, x, shift), widen(b, other)), I8, multiplier=[1 << 30], shift=[44])


def matrix(b: Builder, x: Value) -> Value:
    rows = ops.reshape(b, x, (1, x.type.size // x.shape[3], x.shape[3]))
    return ops.matmul(b, rows, b.const(make_rng().integers(-9, 9, (1, x.shape[3], 5)), I8))


def cut(start: tuple[int, ...], size: tuple[int, ...]) -> Make:
    return lambda b, x: ops.slice(b, x, start, size)


FIRST: Mapping[str, Make] = {
    "rows": cut((0, 2, 0, 0), (1, 3, 6, 16)),
    "first_rows": cut((0, 0, 0, 0), (1, 3, 6, 16)),
    "one_row": cut((0, 0, 0, 0), (1, 1, 6, 16)),
    "columns": cut((0, 0, 1, 0), (1, 5, 3, 16)),
    "channels": cut((0, 0, 0, 4), (1, 5, 6, 8)),
    "corner": cut((0, 1, 2, 3), (1, 3, 3, 9)),
    "slice_reshaped": lambda b, x: ops.reshape(b, ops.slice(b, x, (0, 2, 0, 0), (1, 3, 6, 16)), (1, 2, 9, 16)),
    "slice_of_transposed": lambda b, x: ops.slice(b, ops.transpose(b, x, (0, 2, 1, 3)), (0, 1, 1, 4), (1, 4, 3, 8)),
    "transposed_slice": lambda b, x: ops.transpose(b, ops.slice(b, x, (0, 1, 1, 4), (1, 3, 4, 8)), (0, 2, 1, 3)),
    "transposed": lambda b, x: ops.transpose(b, x, (0, 2, 1, 3)),
    "channels_first": lambda b, x: ops.transpose(b, x, (0, 3, 1, 2)),
    "reversed": lambda b, x: ops.reverse(b, x, 2),
    "joined": lambda b, x: ops.concat(b, [x, x], 1),
    "joined_channels": lambda b, x: ops.concat(b, [x, x], 3),
    "padded": lambda b, x: ops.pad(b, x, (0, 0, 1, 1, 1, 1, 0, 0), 3),
    "tiled": lambda b, x: ops.tile(b, x, (1, 1, 2, 1)),
    "reshaped": lambda b, x: ops.reshape(b, x, (1, 6, 5, 16)),
    "largest": lambda b, x: ops.max_pool2d(b, x, kernel=(2, 2), **PLAIN),
    "looked_up": lambda b, x: ops.table(b, x, make_table()),
    "added": add,
    "convolved": lambda b, x: convolve(b, x, 1),
    "highest": lambda b, x: ops.reduce_max(b, x, 3),
    "summed": lambda b, x: ops.rescale(b, ops.reduce_sum(b, widen(b, x), 2), I8, multiplier=[1 << 30], shift=[33]),
}
#: what only Ethos-U85 has
FIRST_U85: Mapping[str, Make] = {
    "chosen": lambda b, x: ops.select(
        b, ops.greater(b, widen(b, x), widen(b, const(b, x.shape))), x, const(b, x.shape)
    ),
    "with_bits": lambda b, x: ops.bitwise_and(b, x, const(b, x.shape)),
    "inverted": lambda b, x: ops.bitwise_not(b, x),
    "ones": lambda b, x: ops.cast(b, ops.greater(b, widen(b, x), widen(b, const(b, x.shape))), I8),
    "lowest": lambda b, x: ops.reduce_min(b, x, 3),
}
SECOND: Mapping[str, Make] = {
    "conv_1": lambda b, x: convolve(b, x, 1),
    "conv_3": lambda b, x: convolve(b, x, 3),
    "depthwise": convolve_depthwise,
    "conv_dilated": lambda b, x: convolve_wide(b, x, dilation=3),
    "depthwise_dilated": lambda b, x: convolve_wide_depthwise(b, x, dilation=3),
    "conv_strided": lambda b, x: convolve_wide(b, x, stride=4),
    "depthwise_strided": lambda b, x: convolve_wide_depthwise(b, x, stride=4),
    "conv_transposed": convolve_transposed,
    "max_pool": lambda b, x: ops.max_pool2d(b, x, kernel=(1, 2), **PLAIN),
    "average_pool": lambda b, x: ops.avg_pool2d(b, x, kernel=(1, 2), acc_type=I32, **PLAIN),
    "table": lambda b, x: ops.table(b, x, np.arange(-128, 128, dtype=np.int8)[::-1]),
    "to_8_bits": lambda b, x: ops.rescale(b, x, I8, multiplier=[1 << 30], shift=[31], in_zp=3),
    "to_8_bits_by_1": lambda b, x: ops.rescale(b, x, I8, multiplier=[1 << 30], shift=[30], out_zp=-128),
    "to_8_bits_joined": lambda b, x: ops.concat(b, [SECOND["to_8_bits"](b, x), const(b, x.shape)], 2),
    "to_8_bits_padded": lambda b, x: ops.pad(b, SECOND["to_8_bits"](b, x), (0, 0, 1, 1, 1, 1, 0, 0), 3),
    "to_16_bits": lambda b, x: ops.rescale(b, x, I16, multiplier=[1 << 30], shift=[24]),
    "to_32_bits": lambda b, x: widen(b, x, 20),
    "to_32_bits_by_1": widen,
    **{f"max_{axis}": lambda b, x, axis=axis: ops.reduce_max(b, x, axis) for axis in (1, 2, 3)},
    **{f"min_{axis}": lambda b, x, axis=axis: ops.reduce_min(b, x, axis) for axis in (1, 2, 3)},
    **{f"sum_{axis}": lambda b, x, axis=axis: ops.reduce_sum(b, widen(b, x), axis) for axis in (1, 2, 3)},
    "abs": lambda b, x: ops.abs(b, widen(b, x)),
    "clz": lambda b, x: ops.clz(b, widen(b, x)),
    "clamp": lambda b, x: ops.clamp(b, x, -50, 60),
    "negate": lambda b, x: ops.negate(b, x),
    "add": add,
    "multiply": multiply,
    "add_16": lambda b, x: combine_with_16_bits(b, x, ops.add, 14),
    "multiply_16": lambda b, x: combine_with_16_bits(b, x, ops.mul, 30),
    "maximum": lambda b, x: ops.maximum(b, widen(b, x), widen(b, const(b, x.shape))),
    "subtract": lambda b, x: ops.sub(b, widen(b, x), widen(b, const(b, x.shape))),
    "matmul": matrix,
    "argmax": lambda b, x: ops.argmax(b, x, 3),
    "transpose": lambda b, x: ops.transpose(b, x, (0, 2, 1, 3)),
    "channels_first": lambda b, x: ops.transpose(b, x, (0, 3, 1, 2)),
    "reverse": lambda b, x: ops.reverse(b, x, 2),
    "concat": lambda b, x: ops.concat(b, [x, x], 1),
    "pad": lambda b, x: ops.pad(b, x, (0, 0, 1, 1, 1, 1, 0, 0), 3),
    "tile": lambda b, x: ops.tile(b, x, (1, 2, 1, 1)),
    "slice": lambda b, x: ops.slice(b, x, (0, 0, 0, 1), (*x.shape[:3], x.shape[3] - 1)),
    "flat": lambda b, x: ops.reshape(b, x, (1, 1, 1, x.type.size)),
}
WRONG = {
    "ethos-u55-128": [
        ("rows", "to_32_bits"), ("one_row", "to_32_bits_by_1"), ("rows", "max_1"),
        ("channels", "max_3"), ("columns", "sum_3"), ("rows", "conv_transposed"),
        ("joined", "to_32_bits"), ("padded", "to_32_bits"), ("tiled", "to_32_bits"), ("rows", "clz"),
        ("tiled", "to_8_bits_joined"), ("joined", "to_8_bits_padded"), ("padded", "to_8_bits_joined"),
        ("channels", "conv_dilated"), ("columns", "depthwise_dilated"), ("highest", "conv_strided"),
        ("rows", "multiply_16"), ("joined", "add_16"), ("summed", "max_3"),
        ("convolved", "to_8_bits_by_1"),
    ],
    "ethos-u65-256": [
        ("rows", "to_32_bits"), ("channels", "max_3"), ("joined_channels", "to_32_bits"),
        ("rows", "multiply_16"), ("joined", "add_16"), ("summed", "max_3"),
        ("convolved", "to_8_bits_by_1"),
    ],
    "ethos-u85-256": [
        ("channels", "max_3"), ("rows", "min_3"), ("columns", "sum_3"), ("rows", "conv_transposed"),
        ("slice_of_transposed", "max_3"), ("largest", "to_32_bits"), ("largest", "to_16_bits"),
        ("channels", "conv_dilated"), ("rows", "depthwise_dilated"), ("columns", "conv_strided"),
        ("columns", "depthwise_strided"), ("highest", "conv_strided"), ("lowest", "depthwise_strided"),
        ("largest", "add_16"), ("summed", "max_3"),
        ("convolved", "to_8_bits_by_1"),
        ("chosen", "to_16_bits"), ("with_bits", "to_32_bits"), ("inverted", "to_16_bits"), ("ones", "to_32_bits"),
    ],
}  # fmt: skip


def make(first: str, second: str) -> Case:
    b = Builder()
    return Case(b.finish([SECOND[second](b, ({**FIRST, **FIRST_U85})[first](b, b.input(Type(I8, SHAPE))))]))


def separate(first: str, second: str) -> Case:
    return Case(separate_vela_pairs(make(first, second).graph))


def make_product_of_a_slice() -> Case:
    b = Builder()
    x, y = b.input(Type(I8, (1, 4, 9))), b.input(Type(I8, (1, 6, 8)))
    return Case(b.finish([ops.matmul(b, ops.slice(b, x, (0, 0, 2), (1, 4, 6)), y)]))


@pytest.mark.parametrize(("target", "first", "second"), [(t, *pair) for t, pairs in WRONG.items() for pair in pairs])
def test_what_vela_gets_wrong_is_kept_apart(bench: Bench, target: str, first: str, second: str) -> None:
    check_wrong(bench, make(first, second), target)


def test_products_of_a_slice_are_kept_apart(bench: Bench) -> None:
    check_wrong(bench, make_product_of_a_slice(), "ethos-u55-128")


@pytest.mark.parametrize("target", TARGETS)
def test_the_maximum_of_one_column(bench: Bench, target: str) -> None:
    b = Builder()
    column = ops.slice(b, b.input(Type(I8, (3, 5))), (0, 1), (3, 1))
    case = Case(separate_vela_pairs(b.finish([ops.reduce_max(b, ops.reshape(b, column, (3,)), 0)])))
    bench.check(case.tosa, case.inputs(), target)


def make_product_of_two_shapes() -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 3, 2, 1)))
    product = ops.mul(b, widen(b, x), widen(b, ops.reshape(b, x, (1, 1, 1, 6))))
    return Case(b.finish([ops.rescale(b, product, I8, multiplier=[1 << 30], shift=[36])]))


def make_choice_of_two_shapes() -> Case:
    b = Builder()
    x = b.input(Type(I8, (6, 1)))
    row = ops.reshape(b, x, (1, 6))
    return Case(b.finish([ops.select(b, ops.greater(b, widen(b, x), widen(b, row)), x, row)]))


def make_choice_that_is_read_in_two_shapes() -> Case:
    b = Builder()
    x, y = b.input(Type(I8, (3, 6, 2))), b.input(Type(I8, (3, 6, 2)))
    chosen = ops.select(b, ops.greater(b, widen(b, x), widen(b, y)), x, y)
    return Case(b.finish([chosen, ops.table(b, ops.reshape(b, x, (36,)), np.arange(-128, 128, dtype=np.int8)[::-1])]))


def make_choice_of_a_choice() -> Case:
    b = Builder()
    x, y = b.input(Type(I8, (3, 6, 2))), b.input(Type(I8, (3, 6, 2)))
    mask = ops.greater(b, widen(b, x), widen(b, y))
    first = ops.select(b, mask, ops.table(b, x, np.arange(-128, 128, dtype=np.int8)[::-1]), x)
    return Case(b.finish([ops.select(b, mask, y, first), ops.reshape(b, first, (36,)), ops.reshape(b, x, (36,))]))


def make_choice_of_a_rescaled_slice() -> Case:
    b = Builder()
    x, mask, y = b.input(Type(I8, (24,))), b.input(Type(BOOL, (2, 5))), b.input(Type(I8, (2, 5)))
    row = ops.rescale(b, ops.slice(b, x, (3,), (10,)), I8, multiplier=[3 << 29], shift=[31])
    return Case(b.finish([ops.select(b, mask, ops.reshape(b, row, (2, 5)), y)]))


def make_bits_of_a_rescaled_slice() -> Case:
    b = Builder()
    x = b.input(Type(I8, (24,)))
    row = ops.rescale(b, ops.slice(b, x, (3,), (10,)), I8, multiplier=[3 << 29], shift=[31])
    matrix = ops.reshape(b, row, (2, 5))
    return Case(b.finish([ops.bitwise_and(b, matrix, matrix)]))


def make_slice_with_leading_ones(start: tuple[int, ...], size: tuple[int, ...], shape: tuple[int, ...]) -> Case:
    """A slice of a tensor that is one larger in its second or third dimension, in a shape with more or fewer ones."""
    b = Builder()
    x = b.input(Type(I8, tuple(s + n for s, n in zip(start, size, strict=True))))
    return Case(b.finish([ops.table(b, ops.reshape(b, ops.slice(b, x, start, size), shape), make_table())]))


def make_table() -> Array:
    return np.arange(-128, 128, dtype=np.int8)[::-1].copy()


def make_saturated_sum_times_int16(*, after_a_pair: bool = False) -> Case:
    b = Builder()
    x, y, z = b.input(Type(I8, (1, 4, 4, 8))), b.input(Type(I8, (1, 4, 4, 8))), b.input(Type(I16, (1, 4, 4, 8)))
    if after_a_pair:
        x = ops.reduce_max(b, ops.slice(b, x, (0, 1, 0, 0), (1, 2, 4, 8)), 1)
    total = ops.rescale(b, ops.add(b, widen(b, x), widen(b, y)), I8, multiplier=[1 << 30], shift=[30])
    product = ops.mul(b, widen(b, total), widen(b, z))
    return Case(b.finish([ops.rescale(b, product, I8, multiplier=[1 << 30], shift=[44])]))


def make_maximum_with_its_place() -> Case:
    b = Builder()
    x = b.input(Type(I8, (3, 4, 1)))
    return Case(b.finish([ops.reduce_max(b, x, 1), ops.argmax(b, ops.reshape(b, x, (1, 1, 3, 4)), 3)]))


def make_place_in_one_channel() -> Case:
    b = Builder()
    x = convolve(b, b.input(Type(I8, (1, 6, 8, 3))), 1)
    heat = ops.max_pool2d(b, ops.reduce_max(b, x, 3), kernel=(2, 1), **PLAIN)
    return Case(b.finish([ops.argmax(b, ops.reshape(b, heat, (1, 1, 5, 8)), 3)]))


def make_mask_that_is_returned(shape: tuple[int, ...]) -> Case:
    b = Builder()
    x, y = b.input(Type(I8, (4, 6))), b.input(Type(I8, (4, 6)))
    mask = ops.greater(b, widen(b, x), widen(b, y))
    returned = mask if shape == mask.shape else ops.reshape(b, mask, shape)
    return Case(b.finish([ops.select(b, mask, x, y), returned]))


def make_transpose_of_what_is_returned() -> Case:
    b = Builder()
    x = ops.reshape(b, b.input(Type(I8, (1, 2, 3, 4))), (2, 3, 4))
    return Case(b.finish([ops.transpose(b, x, (2, 0, 1)), x]))


def make_matmul_with_a_transpose(*, is_slice: bool, is_returned: bool) -> Case:
    b = Builder()
    x, y = b.input(Type(I8, (1, 4, 8, 16 if is_slice else 8))), b.input(Type(I8, (4, 3, 8)))
    factor = ops.slice(b, x, (0, 0, 0, 0), (1, 4, 8, 8)) if is_slice else ops.reverse(b, x, 2)
    turned = ops.reshape(b, ops.transpose(b, factor, (0, 1, 3, 2)), (4, 8, 8))
    product = ops.matmul(b, y, turned)
    other = factor if is_returned else ops.table(b, factor, np.arange(-128, 128, dtype=np.int8)[::-1])
    return Case(b.finish([other, ops.rescale(b, product, I8, multiplier=[1 << 30], shift=[37])]))


def make_product_of_a_sum_in_two_shapes() -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 3, 2, 1)))
    total = ops.rescale(b, ops.add(b, widen(b, x), widen(b, x)), I8, multiplier=[1 << 30], shift=[31])
    product = ops.mul(b, widen(b, total), widen(b, ops.reshape(b, total, (1, 1, 1, 6))))
    return Case(b.finish([ops.rescale(b, product, I8, multiplier=[1 << 30], shift=[36])]))


def make_product_of_two_shapes_of_16_bits() -> Case:
    b = Builder()
    x = b.input(Type(I16, (1, 3, 2, 1)))
    product = ops.mul(b, widen(b, x), widen(b, ops.reshape(b, x, (1, 1, 1, 6))))
    return Case(b.finish([ops.rescale(b, product, I16, multiplier=[1 << 30], shift=[45])]))


def make_product_of_a_widened_row() -> Case:
    b = Builder()
    x, y = b.input(Type(I8, (3, 2))), b.input(Type(I8, (4, 1)))
    wide = ops.rescale(b, ops.table(b, x, make_table()), I16, multiplier=[1 << 30], shift=[24])
    product = ops.mul(b, widen(b, y), widen(b, ops.reshape(b, wide, (1, 6))))
    return Case(b.finish([ops.rescale(b, product, I8, multiplier=[1 << 30], shift=[42])]))


def make_product_of_what_is_returned() -> Case:
    b = Builder()
    x, y = b.input(Type(I8, (1, 3, 2, 1))), b.input(Type(I8, (1, 1, 1, 6)))
    product = ops.rescale(b, ops.mul(b, widen(b, x), widen(b, y)), I8, multiplier=[1 << 30], shift=[36])
    return Case(b.finish([ops.reshape(b, x, (1, 6)), product]))


@pytest.mark.parametrize(
    ("make", "target"),
    [
        (make_product_of_what_is_returned, "ethos-u55-128"),
        (make_product_of_two_shapes, "ethos-u55-128"),
        (make_product_of_two_shapes, "ethos-u65-256"),
        (make_product_of_a_sum_in_two_shapes, "ethos-u55-128"),
        (make_product_of_a_sum_in_two_shapes, "ethos-u65-256"),
        (make_product_of_two_shapes_of_16_bits, "ethos-u55-128"),
        (make_product_of_two_shapes_of_16_bits, "ethos-u65-256"),
        (make_choice_of_two_shapes, "ethos-u85-256"),
        (make_choice_that_is_read_in_two_shapes, "ethos-u85-256"),
        (make_choice_of_a_choice, "ethos-u85-256"),
        (make_maximum_with_its_place, "ethos-u85-256"),
        (make_place_in_one_channel, "ethos-u85-256"),
        (make_choice_of_a_rescaled_slice, "ethos-u85-256"),
        (make_bits_of_a_rescaled_slice, "ethos-u85-256"),
    ],
)
def test_two_shapes_of_one_tensor_are_kept_apart(bench: Bench, make: Callable[[], Case], target: str) -> None:
    check_wrong(bench, make(), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("start", "size", "shape"),
    [
        ((2, 0, 0, 0), (3, 2, 2, 3), (1, 3, 2, 2, 3)),
        ((0, 2, 0, 0, 0), (1, 3, 2, 2, 3), (1, 1, 3, 2, 2, 3)),
        ((0, 0, 1, 0), (3, 4, 1, 5), (1, 3, 4, 1, 5)),
    ],
)
def test_a_slice_gets_leading_ones(
    bench: Bench, start: tuple[int, ...], size: tuple[int, ...], shape: tuple[int, ...], target: str
) -> None:
    check_wrong(bench, make_slice_with_leading_ones(start, size, shape), target)


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize("start", [(0, 2, 0, 0, 0), (1, 0, 0, 0, 0)])
def test_a_slice_loses_leading_ones(bench: Bench, start: tuple[int, ...], target: str) -> None:
    plain = make_slice_with_leading_ones(start, (1, 3, 2, 2, 3), (3, 2, 2, 3))
    with pytest.raises(ToolCrashed):
        bench.compile(plain.tosa, target)
    bench.check(Case(separate_vela_pairs(plain.graph)).tosa, plain.inputs(), target)


@pytest.mark.parametrize("shape", [(4, 6), (24,)])
def test_a_mask_that_is_returned_is_kept_apart(bench: Bench, shape: tuple[int, ...]) -> None:
    check_wrong(bench, make_mask_that_is_returned(shape), "ethos-u85-256")


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_returned_and_transposed_is_kept_apart(bench: Bench, target: str) -> None:
    check_wrong(bench, make_transpose_of_what_is_returned(), target)


@pytest.mark.parametrize("target", TARGETS)
def test_operands_of_16_bits_are_copied_once(bench: Bench, target: str) -> None:
    case = make_product_of_a_widened_row()
    bench.check(Case(separate_vela_pairs(case.graph)).tosa, case.inputs(), target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("shape", [(4, 2, 3), (1, 4, 2, 3)])
def test_what_is_transposed_twice_and_returned_is_kept_apart(
    bench: Bench, target: str, summed: bool, shape: tuple[int, ...]
) -> None:
    b = Builder()
    turned = ops.transpose(b, b.input(Type(I8, (2, 3, 4))), (2, 0, 1))
    read = turned if shape == turned.shape else ops.reshape(b, turned, shape)
    if summed:
        result = ops.rescale(b, ops.reduce_sum(b, widen(b, read), len(shape) - 2), I8, multiplier=[1 << 30], shift=[32])
    else:
        result = ops.transpose(b, read, tuple(range(len(shape)))[::-1])
    check_wrong(bench, Case(b.finish([result, turned])), target)


@pytest.mark.parametrize("shape", [(16,), (3, 5), (1, 4, 5, 8)])
@pytest.mark.parametrize("first", ["table", "clamp"])
@pytest.mark.parametrize("move", ["reverse", "transpose"])
def test_two_functions_around_a_move(bench: Bench, first: str, move: str, shape: tuple[int, ...]) -> None:
    b = Builder()
    x = SECOND[first](b, b.input(Type(I8, shape)))
    x = ops.reverse(b, x, len(shape) - 1) if move == "reverse" else ops.transpose(b, x, tuple(range(len(shape)))[::-1])
    case = Case(b.finish([ops.table(b, x, np.arange(-128, 128, dtype=np.int8)[::-1])]))
    if move == "reverse" or len(shape) == 2:
        check_wrong(bench, case, "ethos-u85-256")
    bench.check(Case(separate_vela_pairs(case.graph)).tosa, case.inputs(), "ethos-u85-256")


@pytest.mark.parametrize("target", TARGETS)
def test_a_sum_saturates_before_a_product_of_16_bits(bench: Bench, target: str) -> None:
    check_wrong(bench, make_saturated_sum_times_int16(), target)


@pytest.mark.parametrize("is_sum", [False, True])
def test_a_saturated_number_is_an_operand_twice(bench: Bench, is_sum: bool) -> None:
    b = Builder()
    x, y = b.input(Type(I8, (1, 4, 4, 8))), b.input(Type(I8, (1, 4, 4, 8)))
    if is_sum:
        x = ops.rescale(b, ops.add(b, widen(b, x), widen(b, x)), I8, multiplier=[1 << 30], shift=[30])
    else:
        x = ops.rescale(b, x, I8, multiplier=[3 << 29], shift=[29])
    u, v = (widen(b, z, 25 if is_sum else 30) for z in (x, y))
    results = [ops.minimum(b, u, v), ops.maximum(b, u, v)]
    shift = 36 if is_sum else 31
    case = Case(b.finish([ops.rescale(b, z, I8, multiplier=[1 << 30], shift=[shift]) for z in results]))
    check_wrong(bench, case, "ethos-u85-256")


@pytest.mark.parametrize("target", TARGETS)
def test_a_pair_after_another_one_is_kept_apart(bench: Bench, target: str) -> None:
    check_wrong(bench, make_saturated_sum_times_int16(after_a_pair=True), target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_factor_that_is_transposed_and_returned_is_kept_apart(bench: Bench, target: str) -> None:
    check_wrong(bench, make_matmul_with_a_transpose(is_slice=False, is_returned=True), target)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512"])
def test_a_factor_that_is_transposed_and_a_slice_is_kept_apart(bench: Bench, target: str) -> None:
    check_wrong(bench, make_matmul_with_a_transpose(is_slice=True, is_returned=False), target)


@pytest.mark.parametrize("target", TARGETS)
def test_equal_weights_with_two_biases_are_kept_apart(bench: Bench, target: str) -> None:
    check_wrong(bench, Case(make_two_biases()), target, separate_biases)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("depthwise", [False, True])
def test_equal_weights_with_many_biases(bench: Bench, target: str, depthwise: bool) -> None:
    """Strides, dilation, factors for each channel, and some with the same bias."""
    b = Builder()
    x = b.input(Type(I8, (1, 9, 9, 8)))
    weight = const(b, (3, 3, 8, 1) if depthwise else (8, 3, 3, 8))
    convolve = ops.depthwise_conv2d if depthwise else ops.conv2d
    results: list[Value] = []
    for index, (stride, dilation, shift) in enumerate([(1, 1, 38), (1, 1, 38), (2, 1, 38), (1, 2, 38), (1, 1, 37)] * 2):
        steps: Any = {"stride": (stride, stride), "dilation": (dilation, dilation), "pad": (1, 1, 1, 1)}
        sums = convolve(b, x, weight, b.const(np.arange(8) * (index // 2) * 900, I32), acc_type=I32, **steps)
        results.append(ops.rescale(b, sums, I8, multiplier=[1 << 30] * 8, shift=[shift] * 8, per_channel=True))
    case = Case(separate_biases(b.finish(results)))
    bench.check(case.tosa, case.inputs(), target)


@pytest.mark.parametrize("target", TARGETS[:2])
def test_a_minimum_before_a_reshape_is_wrong(bench: Bench, target: str) -> None:
    """The record of `amin` takes the maximum of mirrored codes instead; its samples are executed with all others."""
    b = Builder()
    plain = Case(b.finish([ops.reshape(b, ops.reduce_min(b, b.input(Type(I8, (2, 3, 4))), 2), (2, 3))]))
    inputs = plain.inputs()
    found, wanted = bench.run(bench.compile(plain.tosa, target), inputs), reference.run(plain.tosa, inputs)
    assert found[0].tobytes() != wanted[0].tobytes(), "Vela is right: amin needs no mirror"


def check_wrong(
    bench: Bench, plain: Case, target: str, separate: Callable[[Graph], Graph] = separate_vela_pairs
) -> None:
    """Vela is wrong about the graph, and right about the one with separated pairs."""
    inputs = plain.inputs()
    try:
        found = [array.tobytes() for array in bench.run(bench.compile(plain.tosa, target), inputs)]
    except Fault:
        found = []
    assert found != [array.tobytes() for array in reference.run(plain.tosa, inputs)], "Vela is right about this pair"
    bench.check(Case(separate(plain.graph)).tosa, inputs, target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_padded_convolution_of_slices_of_several_images(bench: Bench, target: str) -> None:
    b = Builder()
    part = ops.slice(b, b.input(Type(I8, (3, 7, 7, 6))), (0, 0, 0, 3), (3, 7, 7, 3))
    check_wrong(bench, Case(b.finish([convolve(b, part, 3)])), target)


def rescale_by_3_4(b: Builder, x: Value) -> Value:
    return ops.rescale(b, x, I8, multiplier=[3 << 29], shift=[31])


#: what Vela rescales on its own, not as a part of the operator before
RESCALED: Mapping[str, Make] = {
    "input": rescale_by_3_4,
    "slice": lambda b, x: rescale_by_3_4(b, ops.slice(b, x, (0, 2, 0, 0), (1, 3, 6, 16))),
    "maximum": lambda b, x: rescale_by_3_4(b, ops.reduce_max(b, x, 3)),
    "table": lambda b, x: rescale_by_3_4(b, ops.table(b, x, np.arange(-128, 128, dtype=np.int8)[::-1])),
    "two_sums": lambda b, x: rescale_by_3_4(b, ops.add(b, ops.add(b, widen(b, x), widen(b, x)), widen(b, x))),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [name for name in RESCALED if name != "two_sums"])
def test_what_is_rescaled_and_reshaped_has_several_readers(bench: Bench, target: str, name: str) -> None:
    check_wrong(bench, make_rescaled(name), target)


@pytest.mark.parametrize("target", TARGETS[:2])
def test_a_sum_of_two_sums_is_rescaled_and_reshaped(bench: Bench, target: str) -> None:
    check_wrong(bench, make_rescaled("two_sums"), target)


def make_rescaled(name: str) -> Case:
    b = Builder()
    x = RESCALED[name](b, b.input(Type(I8, SHAPE)))
    x = ops.reshape(b, x, (2, x.type.size // 2))
    others = [f(b, widen(b, x), widen(b, const(b, x.shape))) for f in (ops.minimum, ops.mul)]
    return Case(b.finish([ops.rescale(b, y, I8, multiplier=[1 << 30], shift=[36]) for y in others]))


MOVED: Mapping[str, Make] = {
    "slice": lambda b, x: ops.slice(b, x, (0, 1, 0, 3), (1, 3, 6, 9)),
    "concat": lambda b, x: ops.concat(b, [x, x], 3),
    "pad": lambda b, x: ops.pad(b, x, (0, 0, 1, 1, 1, 1, 0, 0), 0),
    "tile": lambda b, x: ops.tile(b, x, (1, 2, 1, 1)),
}


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize("name", MOVED)
def test_wide_numbers_are_moved_and_rescaled(bench: Bench, target: str, name: str) -> None:
    b = Builder()
    x = b.input(Type(I8, SHAPE))
    moved = MOVED[name](b, ops.maximum(b, widen(b, x), widen(b, const(b, SHAPE))))
    check_wrong(bench, Case(b.finish([rescale_by_3_4(b, moved)])), target)


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize("name", ["concat", "pad"])
def test_widened_numbers_are_joined(bench: Bench, target: str, name: str) -> None:
    b = Builder()
    x = b.input(Type(I8, SHAPE))
    joined = ops.concat(b, [widen(b, x), widen(b, x, 29)], 3) if name == "concat" else MOVED[name](b, widen(b, x))
    check_wrong(bench, Case(b.finish([joined])), target)


@pytest.mark.parametrize(
    ("dtype", "target"),
    # Only Ethos-U85 has maxima of 32 bits.
    [(dtype, target) for dtype in (I8, I16) for target in TARGETS] + [(I32, "ethos-u85-256")],
)
def test_concatenated_maxima(bench: Bench, dtype: DType, target: str) -> None:
    b = Builder()
    parts = [ops.reduce_max(b, b.input(Type(dtype, (1, 5, 6, 4))), 3) for _ in range(2)]
    check_wrong(bench, Case(b.finish([ops.concat(b, parts, 3)])), target)


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize("combine", [ops.add, ops.mul])
@pytest.mark.parametrize("name", ["concat", "pad"])
def test_results_of_8_and_16_bits_are_joined(
    bench: Bench, target: str, combine: Callable[..., Value], name: str
) -> None:
    b = Builder()
    x, y = b.input(Type(I8, (1, 5, 6, 8))), b.input(Type(I16, (1, 5, 6, 8)))
    x = ops.rescale(b, combine(b, widen(b, y), widen(b, x)), I8, multiplier=[3 << 29], shift=[42])
    joined = (
        ops.concat(b, [const(b, x.shape), x], 3) if name == "concat" else ops.pad(b, x, (0, 0, 0, 0, 0, 0, 1, 1), 0)
    )
    check_wrong(bench, Case(b.finish([joined])), target)


@pytest.mark.parametrize("target", TARGETS[:2])
def test_maxima_with_another_zero_point_are_concatenated(bench: Bench, target: str) -> None:
    b = Builder()
    x = ops.reduce_max(b, b.input(Type(I8, (8, 8, 5, 2))), 0)
    x = ops.rescale(b, x, I8, multiplier=[1 << 30], shift=[30], out_zp=5)
    check_wrong(bench, Case(b.finish([ops.concat(b, [x, b.input(Type(I8, (1, 8, 5, 2)))], 3)])), target)


def test_a_sum_of_16_bits_saturates_before_it_is_widened(bench: Bench) -> None:
    b = Builder()
    x = b.input(Type(I16, (5, 7)))
    total = ops.rescale(b, ops.add(b, widen(b, x), widen(b, x)), I16, multiplier=[1 << 30], shift=[30])
    check_wrong(bench, Case(b.finish([widen(b, total, 16)])), "ethos-u85-256")


@pytest.mark.parametrize("target", TARGETS)
def test_a_slice_of_16_bits_is_reduced(bench: Bench, target: str) -> None:
    b = Builder()
    part = ops.slice(b, b.input(Type(I16, (5, 7))), (0, 1), (5, 3))
    check_wrong(bench, Case(b.finish([ops.reduce_max(b, part, 1)])), target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "target"),
    # Ethos-U55 and U65 take some strides of 4 only, depending on the width of the image.
    [(second, target) for second in SECOND for target in TARGETS if not second.endswith("_strided") or "u85" in target],
)
def test_pairs(bench: Bench, second: str, target: str) -> None:
    refused = 0
    firsts = [*FIRST, *(FIRST_U85 if "u85" in target else ())]
    for first in firsts:
        case = separate(first, second)
        try:
            bench.check(case.tosa, case.inputs(), target)
        except vela.Refused:
            refused += 1
    assert refused in (0, len(firsts))


def test_separated_pairs_stay_as_they_are() -> None:
    once = separate("rows", "max_1").graph
    assert [op.kind for op in separate_vela_pairs(once).ops] == [op.kind for op in once.ops]
