"""Graphs of elementwise operations, tables, reductions, data movement and control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from support.graphs.cases import BOOL, I8, I16, I32, I48, U85, Case, case, const, make_rng, quantize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.definition import OpDef
from tosaic.ir.graph import DType, Graph, Type, Value


def _binary(
    function: Callable[..., Value], dtype: DType, left: Sequence[int], right: Sequence[int], **more: int
) -> Case:
    b = Builder()
    x, y = b.input(Type(dtype, tuple(left))), b.input(Type(dtype, tuple(right)))
    return Case(b.finish([function(b, x, y, **more)]))


def _quantized_sum(
    function: Callable[..., Value], left: Sequence[int], right: Sequence[int], dtype: DType = I8
) -> Case:
    """Add or subtract as a quantizer makes it: both inputs scaled to 32 bits, the result scaled back."""
    b = Builder()
    x, y = b.input(Type(dtype, tuple(left))), b.input(Type(dtype, tuple(right)))
    zero = 3 if dtype is I8 else 0
    # One input is only shifted, as an NPU that scales just one of them wants it.
    shift = 11 if dtype is I8 else 16
    a = ops.rescale(b, x, I32, multiplier=[1 << 30], shift=[shift], in_zp=zero)
    c = ops.rescale(b, y, I32, multiplier=[1518500250], shift=[shift + 1], in_zp=-zero)
    total = function(b, a, c)
    return Case(b.finish([ops.rescale(b, total, dtype, multiplier=[1400000000], shift=[61 - shift], out_zp=2 * zero)]))


@case()
def add_quantized() -> Case:
    return _quantized_sum(ops.add, (1, 4, 5, 20), (1, 4, 5, 20))


@case()
def sub_quantized_broadcast() -> Case:
    return _quantized_sum(ops.sub, (1, 4, 5, 20), (1, 1, 5, 1))


@case()
def sub_quantized_reversed() -> Case:
    return _quantized_sum(ops.sub, (1, 1, 1, 20), (1, 4, 5, 20))


@case()
def add_int16_quantized() -> Case:
    return _quantized_sum(ops.add, (1, 4, 5, 20), (1, 4, 5, 20), I16)


@case()
def add_int32() -> Case:
    return _binary(ops.add, I32, (1, 4, 5, 3), (1, 1, 5, 3))


@case()
def sub_int32_scalar() -> Case:
    return _binary(ops.sub, I32, (1, 1, 1, 1), (2, 4, 5, 3))


@case()
def mul_int8() -> Case:
    return _binary(ops.mul, I8, (1, 4, 5, 18), (1, 4, 1, 18))


@case()
def mul_int32_shifted() -> Case:
    return _binary(ops.mul, I32, (1, 4, 5, 18), (1, 4, 5, 18), shift=17)


@case()
def mul_int16() -> Case:
    return _binary(ops.mul, I16, (1, 4, 5, 18), (1, 4, 5, 18))


@case()
def maximum_int32() -> Case:
    return _binary(ops.maximum, I32, (1, 4, 5, 18), (1, 4, 5, 1))


@case()
def minimum_int32() -> Case:
    return _binary(ops.minimum, I32, (1, 4, 5, 18), (1, 4, 5, 18))


def _unary(function: Callable[..., Value], dtype: DType, shape: Sequence[int] = (1, 3, 4, 21)) -> Case:
    b = Builder()
    return Case(b.finish([function(b, b.input(Type(dtype, tuple(shape))))]))


@case()
def abs_int32() -> Case:
    return _unary(ops.abs, I32)


@case()
def clz_int32() -> Case:
    return _unary(ops.clz, I32)


@case()
def clamp_int8() -> Case:
    return _unary(lambda b, x: ops.clamp(b, x, -20, 50), I8)


@case()
def negate_int8() -> Case:
    return _unary(lambda b, x: ops.negate(b, x, x_zp=4, out_zp=-3), I8)


@case(U85)
def bitwise_not_int8() -> Case:
    return _unary(ops.bitwise_not, I8)


@case()
def table_int8() -> Case:
    return _unary(lambda b, x: ops.table(b, x, make_rng().integers(-128, 128, 256)), I8)


@case()
def table_int16() -> Case:
    entries = np.sort(make_rng().integers(-32768, 32768, 513))
    return _unary(lambda b, x: ops.table(b, x, entries), I16)


@case()
def table_int16_rescaled() -> Case:
    entries = np.sort(make_rng().integers(-32768, 32768, 513))

    def look_up(b: Builder, x: Value) -> Value:
        return ops.rescale(b, ops.table(b, x, entries), I16, multiplier=[1 << 30], shift=[37])

    return _unary(look_up, I16)


@case()
def conv_with_table() -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 6, 6, 8)))
    bias = const(b, (16,), I32, -900, 900)
    acc = ops.conv2d(
        b, x, const(b, (16, 3, 3, 8)), bias, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1), acc_type=I32
    )
    return Case(b.finish([ops.table(b, quantize(b, acc), make_rng().integers(-128, 128, 256))]))


def _shift(definition: OpDef, dtype: DType, **more: bool) -> Case:
    b = Builder()
    x, y = b.input(Type(dtype, (1, 4, 5, 6))), b.input(Type(dtype, (1, 4, 5, 6)))
    bits = {I8: 8, I16: 16, I32: 32}[dtype]
    return Case(b.finish(b.emit(definition, (x, y), **more)), ranges=(None, (0, bits)))


@case()
def shift_right_rounded() -> Case:
    return _shift(ops.ARITHMETIC_RIGHT_SHIFT, I32, round=True)


@case(U85)
def shift_right_floor() -> Case:
    return _shift(ops.ARITHMETIC_RIGHT_SHIFT, I32)


@case(U85)
def shift_right_int8() -> Case:
    return _shift(ops.ARITHMETIC_RIGHT_SHIFT, I8)


@case()
def shift_left() -> Case:
    return _shift(ops.logical_left_shift, I32)


@case(U85)
def shift_right_logical() -> Case:
    return _shift(ops.logical_right_shift, I32)


@case(U85)
def divide() -> Case:
    b = Builder()
    x, y = b.input(Type(I32, (1, 4, 5, 6))), b.input(Type(I32, (1, 4, 5, 6)))
    return Case(b.finish([ops.intdiv(b, x, y)]), ranges=(None, (1, 1000)))


@case(U85)
def bitwise() -> Case:
    b = Builder()
    x, y = b.input(Type(I8, (1, 4, 5, 6))), b.input(Type(I8, (1, 4, 5, 6)))
    both = ops.bitwise_and(b, x, y)
    return Case(b.finish([ops.bitwise_xor(b, ops.bitwise_or(b, x, both), y)]))


@case(U85)
def compare() -> Case:
    b = Builder()
    x, y = b.input(Type(I32, (1, 4, 5, 6))), b.input(Type(I32, (1, 4, 5, 6)))
    return Case(b.finish([ops.greater(b, x, y), ops.greater_equal(b, x, y), ops.equal(b, x, y)]))


@case(U85)
def choose() -> Case:
    b = Builder()
    x, y = b.input(Type(I32, (1, 4, 5, 6))), b.input(Type(I32, (1, 4, 5, 6)))
    return Case(b.finish([ops.select(b, ops.greater(b, x, y), x, y)]))


@case(U85)
def logic() -> Case:
    b = Builder()
    x, y = b.input(Type(BOOL, (1, 4, 5, 6))), b.input(Type(BOOL, (1, 4, 5, 6)))
    return Case(b.finish([ops.logical_or(b, ops.logical_not(b, x), ops.logical_xor(b, x, y))]))


@case()
def reduce_sum_channels() -> Case:
    return _unary(lambda b, x: ops.reduce_sum(b, x, 3), I32)


@case()
def reduce_sum_rows() -> Case:
    return _unary(lambda b, x: ops.reduce_sum(b, x, 1), I32, (1, 7, 4, 5))


@case()
def reduce_max_columns() -> Case:
    return _unary(lambda b, x: ops.reduce_max(b, x, 2), I8)


@case()
def reduce_min_rows() -> Case:
    return _unary(lambda b, x: ops.reduce_min(b, x, 1), I8)


@case(U85)
def argmax_channels() -> Case:
    return _unary(lambda b, x: ops.argmax(b, x, 3), I8)


@case(U85)
def argmax_rows() -> Case:
    return _unary(lambda b, x: ops.argmax(b, x, 1), I8, (1, 9, 5, 6))


@case()
def transpose_rows_columns() -> Case:
    return _unary(lambda b, x: ops.transpose(b, x, (0, 2, 1, 3)), I8)


@case()
def transpose_to_channels_last() -> Case:
    return _unary(lambda b, x: ops.transpose(b, x, (0, 2, 3, 1)), I8, (1, 5, 6, 7))


@case()
def transpose_to_channels_first() -> Case:
    return _unary(lambda b, x: ops.transpose(b, x, (0, 3, 1, 2)), I16, (1, 5, 6, 7))


@case()
def transpose_int32() -> Case:
    return _unary(lambda b, x: ops.transpose(b, x, (0, 3, 2, 1)), I32, (1, 5, 6, 7))


@case()
def reverse_rows() -> Case:
    return _unary(lambda b, x: ops.reverse(b, x, 1), I8)


@case(U85)
def reverse_channels() -> Case:
    return _unary(lambda b, x: ops.reverse(b, x, 3), I8)


@case()
def concatenate_and_cut() -> Case:
    b = Builder()
    x, y = b.input(Type(I8, (1, 4, 5, 6))), b.input(Type(I8, (1, 4, 5, 3)))
    joined = ops.concat(b, [x, y, x], 3)
    return Case(b.finish([ops.slice(b, joined, (0, 1, 2, 3), (1, 3, 2, 9))]))


@case()
def pad_and_tile() -> Case:
    return _unary(lambda b, x: ops.tile(b, ops.pad(b, x, (0, 0, 1, 2, 0, 1, 0, 0), 9), (1, 2, 1, 1)), I8)


@case()
def rescale_to_int32() -> Case:
    return _unary(lambda b, x: ops.rescale(b, x, I32, multiplier=[1 << 30], shift=[20], in_zp=3), I8)


@case()
def rescale_double_rounded() -> Case:
    def scale(b: Builder, x: Value) -> Value:
        return ops.rescale(b, x, I8, multiplier=[1234567890], shift=[42], rounding="DOUBLE_ROUND", out_zp=1)

    return _unary(scale, I32)


@case()
def rescale_unsigned() -> Case:
    def scale(b: Builder, x: Value) -> Value:
        return ops.rescale(b, x, I8, multiplier=[1 << 30], shift=[30], in_zp=-20, out_zp=128 - 20, output_unsigned=True)

    return _unary(scale, I8)


@case()
def cast_to_int32() -> Case:
    return _unary(lambda b, x: ops.cast(b, x, I32), I8)


@case(U85)
def cast_to_int8() -> Case:
    return _unary(lambda b, x: ops.cast(b, x, I8), I32)


@case(U85)
def cast_to_bool() -> Case:
    return _unary(lambda b, x: ops.cast(b, x, BOOL), I8)


def _resize(mode: str, scale: tuple[int, int, int, int], offset: int, border: int, dtype: DType = I8) -> Case:
    b = Builder()
    x = b.input(Type(dtype, (1, 5, 6, 7)))
    y = ops.resize(b, x, scale=scale, offset=(offset, offset), border=(border, border), mode=mode)
    if mode == "BILINEAR":
        one, wide = (14, True) if y.dtype is I48 else (30, False)
        divisor = scale[0] * scale[2]
        shift = divisor.bit_length() - 1 + one
        y = ops.rescale(b, y, dtype, multiplier=[round((1 << shift) / divisor)], shift=[shift], scale32=not wide)
    return Case(b.finish([y]))


@case()
def resize_nearest() -> Case:
    return _resize("NEAREST", (4, 2, 4, 2), -1, 1)


@case()
def resize_nearest_4() -> Case:
    return _resize("NEAREST", (8, 2, 8, 2), -3, 3)


@case()
def resize_nearest_aligned() -> Case:
    return _resize("NEAREST", (2, 1, 2, 1), 0, 0)


@case(U85)
def resize_bilinear() -> Case:
    return _resize("BILINEAR", (4, 2, 4, 2), -1, 1)


@case(U85)
def resize_bilinear_aligned() -> Case:
    return _resize("BILINEAR", (4, 1, 4, 1), 0, 0)


@case(U85)
def resize_bilinear_int16() -> Case:
    return _resize("BILINEAR", (8, 2, 8, 2), 0, 6, I16)


@case(U85)
def resize_bilinear_int16_by_thirds() -> Case:
    return _resize("BILINEAR", (3, 1, 4, 2), 0, 0, I16)


@case(U85)
def gather() -> Case:
    b = Builder()
    values, index = b.input(Type(I8, (1, 10, 6))), b.input(Type(I32, (1, 7)))
    return Case(b.finish([ops.gather(b, values, index)]), ranges=(None, (0, 10)))


@case(U85)
def gather_batch() -> Case:
    b = Builder()
    values, index = b.input(Type(I16, (3, 10, 6))), b.input(Type(I32, (3, 7)))
    return Case(b.finish([ops.gather(b, values, index)]), ranges=(None, (0, 10)))


@case(U85)
def scatter() -> Case:
    b = Builder()
    values, source = b.input(Type(I8, (1, 10, 6))), b.input(Type(I8, (1, 4, 6)))
    index = b.const(np.array([[7, 0, 3, 9]]), I32)
    return Case(b.finish(b.emit(ops.SCATTER, (values, index, source))))


@case()
def two_convs() -> Case:
    """Deep enough for Vela to cut into stripes."""
    b = Builder()
    x = b.input(Type(I8, (1, 24, 24, 16)))
    for outputs, inputs in ((32, 16), (16, 32)):
        bias = const(b, (outputs,), I32, -900, 900)
        w = const(b, (outputs, 3, 3, inputs))
        acc = ops.conv2d(b, x, w, bias, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1), acc_type=I32, x_zp=1)
        x = quantize(b, acc, out_zp=1)
    return Case(b.finish([x]))


@case(U85)
def branch() -> Case:
    b = Builder()
    condition, x = b.input(Type(BOOL, (1,))), b.input(Type(I8, (1, 4, 5, 6)))
    bodies: list[Graph] = []
    for function in (lambda c, y: ops.clamp(c, y, -10, 10), lambda c, y: ops.negate(c, y)):
        inner = Builder()
        bodies.append(inner.finish([function(inner, inner.input(x.type))]))
    return Case(b.finish(b.emit(ops.COND_IF, (condition, x), then_graph=bodies[0], else_graph=bodies[1])))


@case(U85)
def loop() -> Case:
    b = Builder()
    count, x = b.input(Type(I32, (1,))), b.input(Type(I32, (1, 4, 5, 6)))
    condition, body = Builder(), Builder()
    value, _ = condition.input(count.type), condition.input(x.type)
    test = condition.finish([ops.greater(condition, condition.const(np.array([7]), I32), value)])
    value, tensor = body.input(count.type), body.input(x.type)
    step = ops.add(body, value, body.const(np.array([2]), I32))
    repeated = body.finish([step, ops.add(body, tensor, tensor)])
    outputs = b.emit(ops.WHILE_LOOP, (count, x), cond_graph=test, body_graph=repeated)
    return Case(b.finish(list(outputs)), ranges=((0, 8), (-100, 100)))
