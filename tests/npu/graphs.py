"""Small TOSA graphs that together use most of what an Ethos-U can do, each with inputs that fit it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tosaic.tosa import ops
from tosaic.tosa.build import Builder
from tosaic.tosa.flatbuffer import serialize
from tosaic.tosa.ir import Array, DType, Graph, Type, Value

I8, I16, I32, I48, BOOL = DType.I8, DType.I16, DType.I32, DType.I48, DType.BOOL
_RANGES = {I8: (-128, 128), I16: (-32768, 32768), I32: (-(1 << 20), 1 << 20), BOOL: (0, 2)}


@dataclass(frozen=True)
class Case:
    """A graph, and the range of each input where not all values are legal."""

    graph: Graph
    ranges: Sequence[tuple[int, int] | None] = ()

    @property
    def tosa(self) -> bytes:
        return serialize(self.graph)

    def inputs(self, seed: int = 0) -> list[Array]:
        rng = np.random.default_rng(seed)
        arrays: list[Array] = []
        for index, value in enumerate(self.graph.inputs):
            chosen = self.ranges[index] if index < len(self.ranges) else None
            low, high = chosen or _RANGES[value.dtype]
            kinds = {I8: np.int8, I16: np.int16, I32: np.int32, BOOL: np.bool_}
            arrays.append(rng.integers(low, high, value.shape).astype(kinds[value.dtype]))
        return arrays


_CASES: dict[str, tuple[Callable[[], Case], tuple[str, ...]]] = {}
BOTH, U85 = ("u55", "u85"), ("u85",)


def case(families: tuple[str, ...] = BOTH) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(function: Callable[[], Case]) -> Callable[[], Case]:
        _CASES[function.__name__] = (function, families)
        return function

    return register


def names(family: str) -> list[str]:
    return [name for name, (_, families) in _CASES.items() if family in families]


def make(name: str) -> Case:
    return _CASES[name][0]()


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def _const(b: Builder, shape: Sequence[int], dtype: DType = I8, low: int = -127, high: int = 128) -> Value:
    return b.const(_rng().integers(low, high, tuple(shape)), dtype)


def _scales(count: int) -> tuple[list[int], list[int]]:
    rng = _rng()
    return rng.integers(1 << 30, (1 << 31) - 1, count).tolist(), rng.integers(36, 42, count).tolist()


def _quantise(b: Builder, acc: Value, dtype: DType = I8, **more: int) -> Value:
    """A rescale with one factor per channel."""
    if acc.dtype is I48:
        factor, shift = [20000 + 100 * i for i in range(acc.shape[-1])], [28] * acc.shape[-1]
        return ops.rescale(b, acc, dtype, multiplier=factor, shift=shift, scale32=False, per_channel=True)
    factor, shift = _scales(acc.shape[-1])
    return ops.rescale(b, acc, dtype, multiplier=factor, shift=shift, per_channel=True, **more)


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
    values = _rng().integers(-127, 128, weight)
    if small:
        values = _rng().choice([-3, 0, 5], weight)
    if sparse:
        values[..., ::4] = 0
        values[..., 2::4] = 0
    w = b.const(values, I8)
    outputs = weight[2] * weight[3] if depthwise else weight[0]
    acc_type = I32 if dtype is I8 else I48
    bias = _const(b, (outputs,), acc_type, -5000, 5000)
    function = ops.depthwise_conv2d if depthwise else ops.conv2d
    zero = 3 if dtype is I8 else 0
    acc = function(b, x, w, bias, pad=pad, stride=stride, dilation=dilation, acc_type=acc_type, x_zp=zero)
    more = {"out_zp": -5} if dtype is I8 else {}
    return Case(b.finish([_quantise(b, acc, dtype, **more)]))


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
    w, bias = _const(b, (9, 3, 3, 3, 20)), _const(b, (9,), I32, -900, 900)
    once, twice = (1, 1, 1, 1, 1, 1), (2, 2, 2)
    acc = ops.conv3d(b, x, w, bias, pad=once, stride=twice, dilation=(1, 1, 1), acc_type=I32, x_zp=2)
    return Case(b.finish([_quantise(b, acc)]))


def _transposed(stride: tuple[int, int], out_pad: tuple[int, int, int, int], kernel: int) -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 5, 6, 9)))
    w, bias = _const(b, (7, kernel, kernel, 9)), _const(b, (7,), I32, -900, 900)
    acc = ops.transpose_conv2d(b, x, w, bias, out_pad=out_pad, stride=stride, acc_type=I32, x_zp=-4)
    return Case(b.finish([_quantise(b, acc)]))


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
    window = {"kernel": kernel, "stride": stride, "pad": (pad[0], pad[1], pad[2], pad[3])}
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


def _binary(
    function: Callable[..., Value], dtype: DType, left: Sequence[int], right: Sequence[int], **more: int
) -> Case:
    b = Builder()
    x, y = b.input(Type(dtype, tuple(left))), b.input(Type(dtype, tuple(right)))
    return Case(b.finish([function(b, x, y, **more)]))


def _quantised_sum(
    function: Callable[..., Value], left: Sequence[int], right: Sequence[int], dtype: DType = I8
) -> Case:
    """Add or subtract as a quantiser makes it: both inputs scaled to 32 bits, the result scaled back."""
    b = Builder()
    x, y = b.input(Type(dtype, tuple(left))), b.input(Type(dtype, tuple(right)))
    zero = 3 if dtype is I8 else 0
    bits = 10 if dtype is I8 else 16
    a = ops.rescale(b, x, I32, multiplier=[1518500250], shift=[bits], in_zp=zero)
    c = ops.rescale(b, y, I32, multiplier=[1073741824], shift=[bits], in_zp=-zero)
    total = function(b, a, c)
    return Case(b.finish([ops.rescale(b, total, dtype, multiplier=[1400000000], shift=[52], out_zp=2 * zero)]))


@case()
def add_quantised() -> Case:
    return _quantised_sum(ops.add, (1, 4, 5, 20), (1, 4, 5, 20))


@case()
def sub_quantised_broadcast() -> Case:
    return _quantised_sum(ops.sub, (1, 4, 5, 20), (1, 1, 5, 1))


@case()
def sub_quantised_reversed() -> Case:
    return _quantised_sum(ops.sub, (1, 1, 1, 20), (1, 4, 5, 20))


@case()
def add_int16_quantised() -> Case:
    return _quantised_sum(ops.add, (1, 4, 5, 20), (1, 4, 5, 20), I16)


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
    return _unary(lambda b, x: ops.table(b, x, _rng().integers(-128, 128, 256)), I8)


@case()
def table_int16() -> Case:
    entries = np.sort(_rng().integers(-32768, 32768, 513))
    return _unary(lambda b, x: ops.table(b, x, entries), I16)


@case()
def table_int16_rescaled() -> Case:
    entries = np.sort(_rng().integers(-32768, 32768, 513))

    def look_up(b: Builder, x: Value) -> Value:
        return ops.rescale(b, ops.table(b, x, entries), I16, multiplier=[1 << 30], shift=[37])

    return _unary(look_up, I16)


@case()
def conv_with_table() -> Case:
    b = Builder()
    x = b.input(Type(I8, (1, 6, 6, 8)))
    bias = _const(b, (16,), I32, -900, 900)
    acc = ops.conv2d(
        b, x, _const(b, (16, 3, 3, 8)), bias, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1), acc_type=I32
    )
    return Case(b.finish([ops.table(b, _quantise(b, acc), _rng().integers(-128, 128, 256))]))


def _shift(function: Callable[..., Value], dtype: DType, **more: bool) -> Case:
    b = Builder()
    x, y = b.input(Type(dtype, (1, 4, 5, 6))), b.input(Type(dtype, (1, 4, 5, 6)))
    bits = {I8: 8, I16: 16, I32: 32}[dtype]
    return Case(b.finish([function(b, x, y, **more)]), ranges=(None, (0, bits)))


@case()
def shift_right_rounded() -> Case:
    return _shift(ops.arithmetic_right_shift, I32, round=True)


@case(U85)
def shift_right_floor() -> Case:
    return _shift(ops.arithmetic_right_shift, I32)


@case(U85)
def shift_right_int8() -> Case:
    return _shift(ops.arithmetic_right_shift, I8)


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
        shift = (scale[0] * scale[2]).bit_length() - 1
        y = ops.rescale(b, y, dtype, multiplier=[1 << one], shift=[shift + one], scale32=not wide)
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
    return Case(b.finish([ops.scatter(b, values, index, source)]))


@case()
def two_convs() -> Case:
    """Deep enough for Vela to cut into stripes."""
    b = Builder()
    x = b.input(Type(I8, (1, 24, 24, 16)))
    for outputs, inputs in ((32, 16), (16, 32)):
        bias = _const(b, (outputs,), I32, -900, 900)
        w = _const(b, (outputs, 3, 3, inputs))
        acc = ops.conv2d(b, x, w, bias, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1), acc_type=I32, x_zp=1)
        x = _quantise(b, acc, out_zp=1)
    return Case(b.finish([x]))


@case(U85)
def branch() -> Case:
    b = Builder()
    condition, x = b.input(Type(BOOL, (1,))), b.input(Type(I8, (1, 4, 5, 6)))
    bodies: list[Graph] = []
    for function in (lambda c, y: ops.clamp(c, y, -10, 10), lambda c, y: ops.negate(c, y)):
        inner = Builder()
        bodies.append(inner.finish([function(inner, inner.input(x.type))]))
    return Case(b.finish([ops.cond_if(b, condition, [x], bodies[0], bodies[1])[0]]))


@case(U85)
def loop() -> Case:
    b = Builder()
    count, x = b.input(Type(I32, (1,))), b.input(Type(I32, (1, 4, 5, 6)))
    condition, body = Builder(), Builder()
    value, _ = condition.input(count.type), condition.input(x.type)
    test = condition.finish([ops.greater(condition, condition.const(np.array([7]), I32), value)])
    value, tensor = body.input(count.type), body.input(x.type)
    step = ops.add(body, value, body.const(np.array([2]), I32))
    outputs = ops.while_loop(b, [count, x], test, body.finish([step, ops.add(body, tensor, tensor)]))
    return Case(b.finish(list(outputs)), ranges=((0, 8), (-100, 100)))
