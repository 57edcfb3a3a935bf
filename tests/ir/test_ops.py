"""Every operator: its inferred type against the reference model's result, the numbers against numpy, its ERROR_IFs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tosaic.core.errors import Invalid
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import NUMPY, Array, DType, Graph, Type, Value

Run = Callable[[Graph, Sequence[Array]], list[Array]]

RNG = np.random.default_rng(7)


def ints(*shape: int, dtype: type = np.int32, low: int = -50, high: int = 50) -> Array:
    return RNG.integers(low, high, shape).astype(dtype)


def floats(*shape: int, low: float = 0.1, high: float = 2.0) -> npt.NDArray[np.float32]:
    return RNG.uniform(low, high, shape).astype(np.float32)


def bools(*shape: int) -> Array:
    return RNG.integers(0, 2, shape).astype(np.bool_)


def get_type(array: Array) -> Type:
    dtype = next(d for d, n in NUMPY.items() if n == array.dtype.type and d not in (DType.I4, DType.SHAPE, DType.I48))
    return Type(dtype, array.shape)


@dataclass
class Case:
    """Input arrays, the graph on them, and what numpy makes of them (None where only the type is checked)."""

    kind: str
    inputs: list[Array]
    build: Callable[..., Value | tuple[Value, ...]]
    expect: Callable[..., object] | None = None


def branch(type: Type, build: Callable[[Builder, Value], Value]) -> Graph:
    b = Builder()
    x = b.input(type)
    return b.finish([build(b, x)])


def conv_operands(b: Builder, shape: tuple[int, ...], channels: int) -> tuple[Value, Value]:
    return b.const(np.ones(shape), DType.F32), b.const(np.zeros(channels), DType.F32)


def unary(kind: str, expect: Callable[[Array], object], x: Array) -> Case:
    return Case(kind, [x], getattr(ops, kind.lower()), expect)


def binary(kind: str, expect: Callable[[Array, Array], object], x: Array, y: Array) -> Case:
    return Case(kind, [x, y], getattr(ops, kind.lower()), expect)


def convolve(b: Builder, x: Value) -> Value:
    weight, bias = conv_operands(b, (5, 3, 2, 3), 5)
    return ops.conv2d(b, x, weight, bias, pad=(1, 0, 1, 2), stride=(2, 3), dilation=(2, 1), acc_type=DType.F32)


def convolve3d(b: Builder, x: Value) -> Value:
    weight, bias = conv_operands(b, (2, 2, 3, 1, 3), 1)
    pads, ones = (1, 0, 0, 0, 0, 0), (1, 1, 1)
    zero = b.zero_point(0, DType.F32)
    return b.emit(ops.CONV3D, (x, weight, bias, zero, zero), pad=pads, stride=ones, dilation=ones, acc_type=DType.F32)[
        0
    ]


def convolve_depthwise(b: Builder, x: Value) -> Value:
    weight, bias = conv_operands(b, (3, 3, 3, 2), 6)
    pads, ones = (1, 1, 1, 1), (1, 1)
    return ops.depthwise_conv2d(b, x, weight, bias, pad=pads, stride=ones, dilation=ones, acc_type=DType.F32)


def convolve_transposed(b: Builder, x: Value) -> Value:
    weight, bias = conv_operands(b, (4, 3, 3, 3), 4)
    return ops.transpose_conv2d(b, x, weight, bias, out_pad=(-1, 0, 2, -1), stride=(2, 3), acc_type=DType.F32)


def rescale(b: Builder, x: Value) -> Value:
    return ops.rescale(b, x, DType.I8, multiplier=[1 << 30, 1 << 29], shift=[32, 32], out_zp=3, per_channel=True)


def run_if(b: Builder, x: Value) -> tuple[Value, ...]:
    condition = b.const(np.array([True]), DType.BOOL)
    yes = branch(x.type, lambda s, v: ops.add(s, v, v))
    no = branch(x.type, lambda s, v: ops.sub(s, v, v))
    return b.emit(ops.COND_IF, (condition, x), then_graph=yes, else_graph=no)


def run_while(b: Builder, x: Value) -> tuple[Value, ...]:
    test = branch(x.type, lambda s, v: ops.greater(s, s.const(np.array([100]), DType.I32), v))
    body = branch(x.type, lambda s, v: ops.add(s, v, v))
    return b.emit(ops.WHILE_LOOP, (x,), cond_graph=test, body_graph=body)


X4 = floats(1, 4, 6, 3)
F = floats(2, 3)
I32 = ints(2, 3)
TABLE8 = np.arange(255, -1, -1).astype(np.uint8).view(np.int8)
CASES = [
    Case("ARGMAX", [F], lambda b, x: ops.argmax(b, x, 1), lambda x: np.argmax(x, 1)),
    Case("AVG_POOL2D", [X4], lambda b, x: ops.avg_pool2d(
        b, x, kernel=(2, 2), stride=(2, 2), pad=(0, 0, 0, 0), acc_type=DType.F32
    ), lambda x: x.reshape(1, 2, 2, 3, 2, 3).mean((2, 4))),
    Case("CONV2D", [floats(1, 6, 8, 3)], convolve),
    Case("CONV3D", [floats(1, 2, 4, 3, 3)], convolve3d),
    Case("DEPTHWISE_CONV2D", [X4], convolve_depthwise),
    Case("FFT2D", [floats(1, 4, 8), floats(1, 4, 8)], lambda b, x, y: b.emit(ops.FFT2D, (x, y))),
    Case("MATMUL", [floats(2, 3, 4), floats(2, 4, 5)], ops.matmul, np.matmul),
    Case("MAX_POOL2D", [X4], lambda b, x: ops.max_pool2d(b, x, kernel=(2, 3), stride=(2, 3), pad=(0, 0, 0, 0)),
         lambda x: x.reshape(1, 2, 2, 2, 3, 3).max((2, 4))),
    Case("RFFT2D", [floats(1, 4, 8)], lambda b, x: b.emit(ops.RFFT2D, (x,)), lambda x: np.fft.rfft2(x).real),
    Case("TRANSPOSE_CONV2D", [X4], convolve_transposed),
    Case("CLAMP", [ints(2, 3, dtype=np.int8)], lambda b, x: ops.clamp(b, x, -5, 9), lambda x: np.clip(x, -5, 9)),
    unary("ERF", np.vectorize(erf), F),
    unary("SIGMOID", lambda x: 1 / (1 + np.exp(-x)), F),
    unary("TANH", np.tanh, F),
    binary("ADD", np.add, I32, ints(1, 3)),
    Case("ARITHMETIC_RIGHT_SHIFT", [I32, ints(2, 1, low=0, high=4)],
         lambda b, x, y: b.emit(ops.ARITHMETIC_RIGHT_SHIFT, (x, y)), np.right_shift),
    binary("BITWISE_AND", np.bitwise_and, I32, ints(2, 3)),
    binary("BITWISE_OR", np.bitwise_or, I32, ints(2, 3)),
    binary("BITWISE_XOR", np.bitwise_xor, I32, ints(2, 3)),
    binary("INTDIV", lambda x, y: np.trunc(x / y), I32, ints(2, 3, low=1, high=9)),
    binary("LOGICAL_AND", np.logical_and, bools(2, 3), bools(2, 3)),
    binary("LOGICAL_LEFT_SHIFT", np.left_shift, I32, ints(2, 3, low=0, high=5)),
    binary("LOGICAL_RIGHT_SHIFT", lambda x, y: x.view(np.uint32) >> y, I32, ints(2, 3, low=1, high=5)),
    binary("LOGICAL_OR", np.logical_or, bools(2, 3), bools(2, 3)),
    binary("LOGICAL_XOR", np.logical_xor, bools(2, 3), bools(2, 3)),
    binary("MAXIMUM", np.maximum, I32, ints(2, 3)),
    binary("MINIMUM", np.minimum, F, floats(2, 1)),
    Case("MUL", [I32, ints(2, 3)], lambda b, x, y: ops.mul(b, x, y, shift=2), lambda x, y: (x * y + 2) >> 2),
    binary("POW", np.power, F, floats(2, 3)),
    binary("SUB", np.subtract, F, floats(1, 1)),
    Case("TABLE", [ints(2, 3, dtype=np.int8)], lambda b, x: ops.table(b, x, TABLE8),
         lambda x: TABLE8[x.astype(np.int32) + 128]),
    unary("ABS", np.abs, I32),
    unary("BITWISE_NOT", np.invert, I32),
    unary("CEIL", np.ceil, F),
    unary("CLZ", lambda x: 32 - np.ceil(np.log2(x + 1)), ints(2, 3, low=0, high=500)),
    unary("COS", np.cos, F),
    unary("EXP", np.exp, F),
    unary("FLOOR", np.floor, F),
    unary("LOG", np.log, F),
    unary("LOGICAL_NOT", np.logical_not, bools(2, 3)),
    Case("NEGATE", [ints(4, dtype=np.int8)], lambda b, x: ops.negate(b, x, x_zp=2, out_zp=1),
         lambda x: -(x.astype(np.int32) - 2) + 1),
    unary("RECIPROCAL", np.reciprocal, F),
    unary("RSQRT", lambda x: 1 / np.sqrt(x), F),
    unary("SIN", np.sin, F),
    Case("SELECT", [bools(2, 1), F, floats(1, 3)], ops.select, np.where),
    binary("EQUAL", np.equal, ints(9, low=0, high=2), ints(9, low=0, high=2)),
    binary("GREATER", np.greater, F, floats(2, 3)),
    binary("GREATER_EQUAL", np.greater_equal, I32, ints(1, 1)),
    Case("REDUCE_ALL", [bools(4, 2)], lambda b, x: ops.reduce_all(b, x, 1), lambda x: x.all(1, keepdims=True)),
    Case("REDUCE_ANY", [bools(4, 2)], lambda b, x: ops.reduce_any(b, x, 0), lambda x: x.any(0, keepdims=True)),
    Case("REDUCE_MAX", [I32], lambda b, x: ops.reduce_max(b, x, 1), lambda x: x.max(1, keepdims=True)),
    Case("REDUCE_MIN", [F], lambda b, x: ops.reduce_min(b, x, 0), lambda x: x.min(0, keepdims=True)),
    Case("REDUCE_PRODUCT", [F], lambda b, x: ops.reduce_product(b, x, 1), lambda x: x.prod(1, keepdims=True)),
    Case("REDUCE_SUM", [I32], lambda b, x: ops.reduce_sum(b, x, 1), lambda x: x.sum(1, keepdims=True)),
    Case("CONCAT", [I32, ints(2, 1)], lambda b, x, y: ops.concat(b, [x, y, x], 1),
         lambda x, y: np.concatenate([x, y, x], 1)),
    Case("PAD", [I32], lambda b, x: ops.pad(b, x, (1, 0, 2, 3), 7),
         lambda x: np.pad(x, ((1, 0), (2, 3)), constant_values=7)),
    Case("RESHAPE", [I32], lambda b, x: ops.reshape(b, x, (3, 1, 2)), lambda x: x.reshape(3, 1, 2)),
    Case("REVERSE", [I32], lambda b, x: ops.reverse(b, x, 1), lambda x: x[:, ::-1]),
    Case("SLICE", [I32], lambda b, x: ops.slice(b, x, (1, 0), (1, 2)), lambda x: x[1:2, 0:2]),
    Case("TILE", [I32], lambda b, x: ops.tile(b, x, (2, 3)), lambda x: np.tile(x, (2, 3))),
    Case("TRANSPOSE", [ints(2, 3, 4)], lambda b, x: ops.transpose(b, x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    Case("GATHER", [floats(2, 5, 3), ints(2, 4, low=0, high=5)], ops.gather,
         lambda v, i: np.stack([v[n][i[n]] for n in range(2)])),
    Case("SCATTER", [floats(1, 4, 2), np.array([[2, 0]], np.int32), floats(1, 2, 2)],
         lambda b, *operands: b.emit(ops.SCATTER, operands),
         lambda v, i, s: np.stack([s[0, 1], v[0, 1], s[0, 0], v[0, 3]])[None]),
    Case("RESIZE", [ints(1, 2, 3, 1, dtype=np.int8)], lambda b, x: ops.resize(
        b, x, scale=(4, 2, 4, 2), offset=(0, 0), border=(0, 0), mode="BILINEAR"
    )),
    Case("CAST", [I32], lambda b, x: ops.cast(b, x, DType.I16), lambda x: x),
    Case("RESCALE", [ints(3, 2)], rescale, lambda x: np.floor(x * np.array([1 / 4, 1 / 8]) + 0.5) + 3),
    Case("CONST", [I32], lambda b, x: ops.add(b, x, b.const(np.ones((2, 3)), DType.I32)), lambda x: x + 1),
    Case("CONST_SHAPE", [ints(1, 1)], lambda b, x: ops.reshape(b, x, ()), lambda x: x.reshape(())),
    Case("IDENTITY", [I32], ops.identity, lambda x: x),
    Case("COND_IF", [I32], run_if, lambda x: x + x),
    Case("WHILE_LOOP", [np.array([3], np.int32)], run_while, lambda x: np.array([192])),
]  # fmt: skip
NOT_RUN = {"CUSTOM", "VARIABLE", "VARIABLE_WRITE", "VARIABLE_READ"}  # the reference model has none of these


def build(case: Case) -> Graph:
    b = Builder()
    result = case.build(b, *[b.input(get_type(array)) for array in case.inputs])
    return b.finish(result if isinstance(result, tuple) else [result])


def test_every_operator_has_a_definition_and_a_case() -> None:
    assert len(ops.DEFINITIONS) == 75
    assert {case.kind for case in CASES} | NOT_RUN == set(ops.DEFINITIONS)
    assert all(name == definition.name for name, definition in ops.DEFINITIONS.items())


def test_an_operand_is_found_by_its_name() -> None:
    b = Builder()
    x, weight, bias = b.input(X), b.input(W), b.input(B)
    op = conv(b, x, weight, bias, x_zp=3).op
    assert op is not None
    assert (op.operand("input"), op.operand("weight"), op.operand("bias")) == (x, weight, bias)
    zero_point = op.operand("input_zp").data
    assert zero_point is not None and zero_point.tolist() == [3]
    with pytest.raises(Invalid, match="CONV2D has no operand 'filter'; it has input, weight, bias"):
        op.operand("filter")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_reference_model_agrees(case: Case, reference: Run) -> None:
    graph = build(case)
    assert case.kind in {op.kind for op in graph.ops}
    outputs = reference(graph, case.inputs)
    assert [o.shape for o in outputs] == [v.shape for v in graph.outputs]
    assert [o.dtype for o in outputs] == [np.dtype(NUMPY[v.dtype]) for v in graph.outputs]
    if case.expect is not None:
        expected = np.asarray(case.expect(*case.inputs), np.float64)
        np.testing.assert_allclose(outputs[0].astype(np.float64), expected, rtol=2e-5, atol=1e-5)


def test_integer_convolution_with_zero_points(reference: Run) -> None:
    x, weight = ints(1, 3, 3, 2, dtype=np.int8), ints(4, 1, 1, 2, dtype=np.int8)
    b = Builder()
    bias = b.const(np.arange(4), DType.I32)
    y = ops.conv2d(
        b, b.input(get_type(x)), b.const(weight, DType.I8), bias,
        pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), acc_type=DType.I32, x_zp=5,
    )  # fmt: skip
    (out,) = reference(b.finish([y]), [x])
    expected = (x.astype(np.int32) - 5) @ weight.reshape(4, 2).T.astype(np.int32) + np.arange(4)
    assert y.type == Type(DType.I32, (1, 3, 3, 4))
    np.testing.assert_array_equal(out, expected)


def test_int16_convolution_gives_int48_and_rescales(reference: Run) -> None:
    x = ints(1, 2, 2, 3, dtype=np.int16, low=-3000, high=3000)
    b = Builder()
    weight, bias = b.const(np.full((2, 1, 1, 3), 7), DType.I8), b.const(np.array([1 << 32, -5]), DType.I48)
    acc = ops.conv2d(
        b, b.input(get_type(x)), weight, bias,
        pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), acc_type=DType.I48,
    )  # fmt: skip
    y = ops.rescale(b, acc, DType.I16, multiplier=[1 << 14], shift=[16], scale32=False)
    (out,) = reference(b.finish([y]), [x])
    sums = x.astype(np.int64).sum(-1, keepdims=True) * 7 + np.array([1 << 32, -5])
    assert acc.dtype is DType.I48
    np.testing.assert_array_equal(out[..., 1], np.clip((sums[..., 1] + 2) >> 2, -32768, 32767))
    assert (out[..., 0] == 32767).all()


def test_int4_weights(reference: Run) -> None:
    x, weight = ints(1, 1, 1, 3, dtype=np.int8), np.array([[-7, 3, 7]], np.int8).reshape(1, 1, 1, 3)
    b = Builder()
    y = ops.conv2d(
        b, b.input(get_type(x)), b.const(weight, DType.I4), b.const(np.zeros(1), DType.I32),
        pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), acc_type=DType.I32,
    )  # fmt: skip
    (out,) = reference(b.finish([y]), [x])
    assert out.item() == int((x.astype(np.int32) * weight).sum())


def test_unsigned_rescale_zero_points_are_bit_patterns(reference: Run) -> None:
    b = Builder()
    x = b.input(Type(DType.I8, (3,)))
    y = ops.rescale(b, x, DType.I8, multiplier=[1 << 30], shift=[30], in_zp=200, input_unsigned=True)
    (out,) = reference(b.finish([y]), [np.array([200, 255, 100], np.uint8).view(np.int8)])
    assert out.tolist() == [0, 55, -100]


def conv(b: Builder, x: Value, weight: Value, bias: Value, **changes: Any) -> Value:
    attrs: dict[str, Any] = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1), "acc_type": DType.I32}
    return ops.conv2d(b, x, weight, bias, **(attrs | changes))


X, W, B = Type(DType.I8, (1, 4, 4, 3)), Type(DType.I8, (2, 3, 3, 3)), Type(DType.I32, (2,))
V = Type(DType.I32, (2, 3))
FV = Type(DType.F32, (2, 3))


def pool(b: Builder, *, pad: tuple[int, int, int, int] = (0, 0, 0, 0), stride: int = 2, kernel: int = 2) -> Value:
    return ops.max_pool2d(b, b.input(X), kernel=(kernel, kernel), stride=(stride, stride), pad=pad)


def resize(b: Builder, **changes: Any) -> Value:
    attrs: dict[str, Any] = {"scale": (2, 1, 2, 1), "offset": (0, 0), "border": (0, 0), "mode": "NEAREST"}
    return ops.resize(b, b.input(X), **(attrs | changes))


def scale(b: Builder, source: DType, result: DType, **changes: Any) -> Value:
    attrs: dict[str, Any] = {"multiplier": [1], "shift": [30]}
    return ops.rescale(b, b.input(Type(source, (2, 3))), result, **(attrs | changes))


WRONG: list[tuple[str, str, Callable[[Builder], object]]] = [
    ("ARGMAX", "axis 2 is outside 0..1", lambda b: ops.argmax(b, b.input(V), 2)),
    ("ARGMAX", "nan_mode must be one of", lambda b: ops.argmax(b, b.input(V), 1, nan_mode="MAYBE")),
    ("CONV2D", "must have rank 4", lambda b: conv(b, b.input(V), b.input(W), b.input(B))),
    ("CONV2D", "wants 3 input channels", lambda b: conv(
        b, b.input(Type(DType.I8, (1, 4, 4, 5))), b.input(W), b.input(B))),
    ("CONV2D", "negative number", lambda b: conv(b, b.input(X), b.input(W), b.input(B), pad=(0, -1, 0, 0))),
    ("CONV2D", "at least 1", lambda b: conv(b, b.input(X), b.input(W), b.input(B), stride=(0, 1))),
    ("CONV2D", "not a multiple of the stride", lambda b: conv(b, b.input(X), b.input(W), b.input(B), stride=(2, 1))),
    ("CONV2D", "larger than the padded input", lambda b: conv(b, b.input(X), b.input(W), b.input(B), dilation=(3, 1))),
    ("CONV2D", "bias has 3 numbers", lambda b: conv(b, b.input(X), b.input(W), b.input(Type(DType.I32, (3,))))),
    ("CONV2D", "bias must be i32", lambda b: conv(b, b.input(X), b.input(W), b.input(Type(DType.I8, (2,))))),
    ("CONV2D", "only i8 has a zero point", lambda b: conv(
        b, b.input(Type(DType.I16, X.shape)), b.input(W), b.input(Type(DType.I48, (2,))), x_zp=1, acc_type=DType.I48)),
    ("MAX_POOL2D", "smaller than the kernel", lambda b: pool(b, pad=(2, 0, 0, 0))),
    ("MAX_POOL2D", "not a multiple of the stride", lambda b: pool(b, stride=3, kernel=2)),
    ("MAX_POOL2D", "must be at least 1", lambda b: pool(b, stride=0)),
    ("TRANSPOSE_CONV2D", "removes a whole", lambda b: ops.transpose_conv2d(
        b, b.input(X), b.input(W), b.input(B), out_pad=(-3, 0, 0, 0), stride=(1, 1), acc_type=DType.I32)),
    ("MATMUL", "inner dimensions differ", lambda b: ops.matmul(
        b, b.input(Type(DType.I8, (1, 2, 3))), b.input(Type(DType.I8, (1, 2, 3))))),
    ("RFFT2D", "powers of two", lambda b: b.emit(ops.RFFT2D, (b.input(Type(DType.F32, (1, 3, 4))),))),
    ("FFT2D", "input_imag must be", lambda b: b.emit(
        ops.FFT2D, (b.input(Type(DType.F32, (1, 4, 4))), b.input(Type(DType.F32, (1, 4, 2)))), inverse=True)),
    ("CLAMP", "is below min_val", lambda b: ops.clamp(b, b.input(FV), 1.0, 0.0)),
    ("CLAMP", "not a number", lambda b: ops.clamp(b, b.input(FV), 0.0, float("nan"))),
    ("CLAMP", "does not fit i8", lambda b: ops.clamp(b, b.input(X), -129, 0)),
    ("ADD", "ranks differ", lambda b: ops.add(b, b.input(V), b.input(Type(DType.I32, (3,))))),
    ("SUB", "do not broadcast", lambda b: ops.sub(b, b.input(V), b.input(Type(DType.I32, (2, 2))))),
    ("POW", "input2 must be f32", lambda b: ops.pow(b, b.input(FV), b.input(V))),
    ("MUL", "outside 0..63", lambda b: ops.mul(b, b.input(V), b.input(V), 64)),
    ("MUL", "only i32 takes one", lambda b: ops.mul(b, b.input(FV), b.input(FV), 1)),
    ("INTDIV", "contains a zero", lambda b: ops.intdiv(b, b.input(V), b.const(np.zeros((1, 3)), DType.I32))),
    ("LOGICAL_LEFT_SHIFT", "outside 0..31", lambda b: ops.logical_left_shift(
        b, b.input(V), b.const(np.full((1, 1), 32), DType.I32))),
    ("TABLE", "table must be i8[256]", lambda b: ops.table(b, b.input(X), np.zeros(255, np.int8))),
    ("TABLE", "must be i8 or i16", lambda b: ops.table(b, b.input(V), np.zeros(513, np.int16))),
    ("NEGATE", "only i8 has a zero point", lambda b: ops.negate(b, b.input(V), x_zp=1)),
    ("NEGATE", "must be 0 for f32", lambda b: b.emit(
        ops.NEGATE, (b.input(FV), *[b.const(np.array([0.5]), DType.F32)] * 2))),
    ("VARIABLE", "needs a name", lambda b: b.emit(ops.VARIABLE, (), name="", type=FV)),
    ("SELECT", "input1 must be bool", lambda b: ops.select(b, b.input(V), b.input(V), b.input(V))),
    ("REDUCE_SUM", "outside 0..1", lambda b: ops.reduce_sum(b, b.input(V), -1)),
    ("CONCAT", "at least one input", lambda b: ops.concat(b, [], 0)),
    ("CONCAT", "differ outside axis 0", lambda b: ops.concat(b, [b.input(V), b.input(Type(DType.I32, (2, 4)))], 0)),
    ("PAD", "must have 4 numbers", lambda b: ops.pad(b, b.input(V), (1, 1))),
    ("PAD", "negative number", lambda b: ops.pad(b, b.input(V), (1, -1, 0, 0))),
    ("RESHAPE", "cannot take the shape", lambda b: ops.reshape(b, b.input(V), (4, 2))),
    ("RESHAPE", "cannot take the shape", lambda b: ops.reshape(b, b.input(V), (-2, -3))),
    ("SLICE", "is outside", lambda b: ops.slice(b, b.input(V), (0, 1), (2, 3))),
    ("TILE", "at least 1", lambda b: ops.tile(b, b.input(V), (0, 1))),
    ("TRANSPOSE", "not a permutation", lambda b: ops.transpose(b, b.input(V), (0, 0))),
    ("REVERSE", "outside 0..1", lambda b: ops.reverse(b, b.input(V), 2)),
    ("GATHER", "an index is outside 0..1", lambda b: ops.gather(
        b, b.input(Type(DType.I8, (1, 2, 3))), b.const(np.array([[2]]), DType.I32))),
    ("SCATTER", "occurs twice", lambda b: b.emit(
        ops.SCATTER, (b.input(Type(DType.I8, (1, 4, 1))), b.const(np.array([[1, 1]]), DType.I32),
                      b.input(Type(DType.I8, (1, 2, 1)))))),
    ("RESIZE", "outside what RESIZE can do", lambda b: resize(b, scale=(1, 16, 2, 1))),
    ("RESIZE", "out of range", lambda b: resize(b, offset=(32, 0))),
    ("RESIZE", "not a multiple", lambda b: resize(b, scale=(4, 5, 2, 1))),
    ("RESIZE", "mode must be one of", lambda b: resize(b, mode="CUBIC")),
    ("RESCALE", "scale32 cannot be used", lambda b: scale(b, DType.I48, DType.I8)),
    ("RESCALE", "DOUBLE_ROUND needs scale32", lambda b: scale(
        b, DType.I32, DType.I8, scale32=False, rounding="DOUBLE_ROUND")),
    ("RESCALE", "both be unsigned", lambda b: scale(b, DType.I8, DType.I8, input_unsigned=True, output_unsigned=True)),
    ("RESCALE", "input_zp must be 0 for i32", lambda b: scale(b, DType.I32, DType.I8, in_zp=1)),
    ("RESCALE", "must be 0 or 32768", lambda b: scale(b, DType.I8, DType.I16, out_zp=5, output_unsigned=True)),
    ("RESCALE", "outside 2..62", lambda b: scale(b, DType.I32, DType.I8, shift=[1])),
    ("RESCALE", "a multiplier is negative", lambda b: scale(b, DType.I32, DType.I8, multiplier=[-1])),
    ("RESCALE", "multiplier must be i32[3]", lambda b: scale(b, DType.I32, DType.I8, per_channel=True)),
    ("CONST", "outside the range of i4", lambda b: b.const(np.array([-8]), DType.I4)),
    ("CONST", "held by CONST_SHAPE", lambda b: b.emit(
        ops.CONST, (), type=Type(DType.SHAPE, (1,)), data=np.zeros(1, np.int64))),
    ("COND_IF", "condition must be bool", lambda b: b.emit(
        ops.COND_IF, (b.input(V),), then_graph=Graph([], [], []), else_graph=Graph([], [], []))),
    ("COND_IF", "inputs of then_graph", lambda b: b.emit(
        ops.COND_IF, (b.input(Type(DType.BOOL, (1,))), b.input(V)),
        then_graph=Graph([], [], []), else_graph=Graph([], [], []))),
    ("WHILE_LOOP", "cond_graph must return one bool", lambda b: b.emit(
        ops.WHILE_LOOP, (b.input(V),), cond_graph=branch(V, ops.identity), body_graph=branch(V, ops.identity))),
    ("ABS", "takes 1 inputs", lambda b: b.emit(ops.abs, (b.input(V), b.input(V)))),
    ("ABS", "has the attributes none, not axis", lambda b: b.emit(ops.abs, (b.input(V),), axis=1)),
    ("REDUCE_SUM", "axis must be an integer", lambda b: b.emit(ops.reduce_sum, (b.input(V),), axis="1")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "reason", "wrong"), WRONG, ids=[f"{k}-{r[:20]}" for k, r, _ in WRONG])
def test_error_if(kind: str, reason: str, wrong: Callable[[Builder], object]) -> None:
    with pytest.raises(Invalid) as caught:
        wrong(Builder())
    assert caught.value.what.startswith(f"{kind}: ")
    assert reason in caught.value.what


def test_unknown_operator_is_refused() -> None:
    with pytest.raises(Invalid, match=r"FULLY_CONNECTED is not an operator of TOSA 1\.0"):
        ops.find("FULLY_CONNECTED")


def test_equal_constants_are_one_value() -> None:
    b = Builder()
    first = b.const(np.array([1, 2], np.int32), DType.I32)
    assert b.const(np.array([1, 2], np.int32), DType.I32) is first
    assert b.const(np.array([[1, 2]], np.int32), DType.I32) is not first
    assert b.const(np.array([1, 2], np.int8), DType.I8) is not first
    assert b.const(np.array([1, 2], np.int8), DType.I4).dtype is DType.I4
    assert b.const_shape((1, 2)) is b.const_shape([1, 2])
    assert b.const(np.array([0.0]), DType.F32) is not b.const(np.array([-0.0]), DType.F32)
    assert b.const(np.array([np.nan]), DType.F32) is b.const(np.array([np.nan]), DType.F32)


def test_constants_are_converted_and_checked() -> None:
    b = Builder()
    data = b.const(np.array([1.5, -2.0]), DType.BF16).data
    assert data is not None and data.tolist() == [0x3FC0, 0xC000]
    assert b.const(np.array([1]), DType.BF16) is b.const(np.array([0x3F80], np.uint16), DType.BF16)
    assert b.const(np.array([1.0]), DType.F8E4M3) is b.const(np.array([0x38], np.uint8), DType.F8E4M3)
    with pytest.raises(Invalid, match="do not fit i8"):
        b.const(np.array([200]), DType.I8)
    with pytest.raises(Invalid, match="do not fit i32"):
        b.const(np.array([0.5]), DType.I32)


def test_constants_are_read_only_views() -> None:
    data = np.arange(6, dtype=np.int32)
    value = Builder().const(data, DType.I32)
    assert value.data is not None and np.shares_memory(value.data, data)
    assert not value.data.flags.writeable and data.flags.writeable


def test_origin_is_stamped_on_each_op() -> None:
    b = Builder(origin=("a",))
    x = ops.identity(b, b.input(V))
    b.origin = ("b", "c")
    y = ops.identity(b, x)
    assert x.op is not None and x.op.origin == ("a",)
    assert y.op is not None and y.op.origin == ("b", "c")


def test_custom_and_variables_have_the_types_they_are_given() -> None:
    b = Builder()
    x = b.input(FV)
    (y,) = b.emit(ops.CUSTOM, (x,), operator_name="sort", domain_name="test", implementation_attrs=b"\1", types=(V,))
    b.emit(ops.VARIABLE, (), name="state", type=FV, data=np.zeros((2, 3), np.float32))
    b.emit(ops.VARIABLE_WRITE, (x,), name="state")
    (z,) = b.emit(ops.VARIABLE_READ, (), name="state", type=FV)
    assert (y.type, z.type) == (V, FV)
