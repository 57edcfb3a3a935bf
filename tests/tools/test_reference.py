"""The reference model: every dtype in and out, and errors that say what went wrong."""

import numpy as np
import pytest

from tosaic.core.errors import Invalid, ToolFailed
from tosaic.engines import reference
from tosaic.formats.tosa_writer import serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import NUMPY, Array, DType, Graph, Type

DTYPES = [dtype for dtype in DType if dtype is not DType.SHAPE]


def _copy(dtype: DType, shape: tuple[int, ...]) -> bytes:
    b = Builder()
    return serialize(b.finish([ops.identity(b, b.input(Type(dtype, shape)))]))


def _add() -> bytes:
    b = Builder()
    x, y = (b.input(Type(DType.I32, (2, 3))) for _ in range(2))
    return serialize(b.finish([ops.add(b, x, y)]))


def _sample(dtype: DType) -> Array:
    rng = np.random.default_rng(0)
    match dtype:
        case DType.BOOL:
            return rng.integers(0, 2, (2, 5)).astype(np.bool_)
        case DType.I4:
            return rng.integers(-7, 8, (2, 5)).astype(np.int8)
        case DType.I48:
            return rng.integers(-(1 << 47), 1 << 47, (2, 5))
        case DType.F16 | DType.F32:
            return rng.normal(size=(2, 5)).astype(NUMPY[dtype])
        case DType.BF16:
            return (rng.normal(size=(2, 5)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        case _:
            return rng.integers(0, 100, (2, 5)).astype(NUMPY[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_goes_in_and_comes_out(dtype: DType) -> None:
    sample = _sample(dtype)
    (result,) = reference.run(_copy(dtype, (2, 5)), [sample])
    assert result.dtype == NUMPY[dtype]
    np.testing.assert_array_equal(result, sample)


def test_convolution_equals_numpy(conv: bytes, conv_graph: Graph) -> None:
    x = np.random.default_rng(1).integers(-128, 128, (1, 8, 8, 8)).astype(np.int8)
    (convolution,) = (op for op in conv_graph.ops if op.kind == "CONV2D")
    weight, bias = (np.asarray(value.data, np.int64) for value in convolution.inputs[1:3])
    padded = np.pad(x.astype(np.int64) - 3, ((0, 0), (1, 1), (1, 1), (0, 0)))
    acc = np.zeros((1, 8, 8, 16), np.int64) + bias
    for dy in range(3):
        for dx in range(3):
            acc += padded[:, dy : dy + 8, dx : dx + 8] @ weight[:, dy, dx].T
    expected = np.clip(((acc * (1 << 30) + (1 << 37)) >> 38) - 5, -128, 127)
    (result,) = reference.run(conv, [x])
    assert result.dtype == np.int8
    np.testing.assert_array_equal(result, expected)


def test_int48_accumulator_comes_as_int64() -> None:
    b = Builder()
    x = b.input(Type(DType.I16, (1, 2, 2, 2)))
    weight = b.const(np.ones((2, 1, 1, 2), np.int64), DType.I8)
    bias = b.const(np.array([1 << 40, -3]), DType.I48)
    acc = ops.conv2d(b, x, weight, bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), acc_type=DType.I48)
    (result,) = reference.run(serialize(b.finish([acc])), [np.full((1, 2, 2, 2), -7, np.int16)])
    assert result.dtype == np.int64
    assert result[0, 0, 0].tolist() == [(1 << 40) - 14, -17]


def test_comparison_gives_numpy_bool() -> None:
    b = Builder()
    x, y = (b.input(Type(DType.I32, (4,))) for _ in range(2))
    tosa = serialize(b.finish([ops.greater(b, x, y)]))
    (result,) = reference.run(tosa, [np.arange(4, dtype=np.int32), np.full(4, 1, np.int32)])
    assert result.dtype == np.bool_
    assert result.tolist() == [False, False, True, True]


def test_precise_mode_gives_float64() -> None:
    b = Builder()
    tosa = serialize(b.finish([ops.exp(b, b.input(Type(DType.F32, (3,))))]))
    x = np.array([0.5, 1.0, 2.0], np.float32)
    (plain,), (precise,) = reference.run(tosa, [x]), reference.run(tosa, [x], precise=True)
    assert (plain.dtype, precise.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(plain.astype(np.float64), np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(precise.astype(np.float64), np.exp(x.astype(np.float64)), rtol=1e-14)


def test_several_outputs_scalars_and_no_inputs() -> None:
    b = Builder()
    c = b.const(np.array(5), DType.I32)
    tosa = serialize(b.finish([ops.add(b, c, c), ops.abs(b, c)]))
    results = reference.run(tosa, [])
    assert [(result.shape, result.item()) for result in results] == [((), 10), ((), 5)]


def test_memory_order_and_unsigned_inputs_do_not_matter() -> None:
    x = np.arange(12, dtype=np.int8).reshape(3, 4)
    tosa = _copy(DType.I8, (3, 4))
    for given in (np.asfortranarray(x), x[:, ::-1][:, ::-1], x.view(np.uint8)):
        np.testing.assert_array_equal(reference.run(tosa, [given])[0], x)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "has 2 inputs, but 0 were given"),
        ([np.zeros((2, 3), np.int32), np.zeros((3, 2), np.int32)], r"input 1 .* is i32\[2,3\]"),
        ([np.zeros((2, 3), np.int64), np.zeros((2, 3), np.int32)], "input 0 .* but int64"),
        ([np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int32)], "input 0 .* but float32"),
        ([np.zeros((2, 3), ">i4"), np.zeros((2, 3), np.int32)], "input 0 .* but >i4"),
    ],
)
def test_wrong_inputs_are_invalid(inputs: list[Array], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        reference.run(_add(), inputs)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x08\0\0\0TOSA" + b"x" * 20], ids=["empty", "text", "damaged"])
def test_bytes_that_are_no_tosa_are_invalid(data: bytes) -> None:
    with pytest.raises(Invalid):
        reference.run(data, [])


def test_overflow_is_an_undefined_result_with_the_reason() -> None:
    big = np.full((2, 3), 2**31 - 1, np.int32)
    with pytest.raises(ToolFailed, match="found the result to be undefined") as caught:
        reference.run(_add(), [big, big])
    assert caught.value.why == "Integer addition: positive overflow, 2147483647 + 2147483647 exceeds INT32_MAX"
    assert "Graph result: UNPREDICTABLE" in caught.value.log
    assert caught.value.exit_code == 3


def test_index_out_of_range_is_an_undefined_result() -> None:
    b = Builder()
    values = b.input(Type(DType.I8, (1, 10, 8)))
    tosa = serialize(b.finish([ops.gather(b, values, b.input(Type(DType.I32, (1, 2))))]))
    with pytest.raises(ToolFailed) as caught:
        reference.run(tosa, [np.zeros((1, 10, 8), np.int8), np.array([[1, 100]], np.int32)])
    assert "index(0, 1)=100" in caught.value.why


def test_graph_that_the_model_does_not_take_is_refused() -> None:
    b = Builder()
    x = b.input(Type(DType.I8, (1, 4)))
    graph = b.finish([ops.argmax(b, x, 1)])
    graph.ops[0].outputs[0].type = Type(DType.I32, (1, 4))
    with pytest.raises(ToolFailed, match="rejected the graph") as caught:
        reference.run(serialize(graph), [np.zeros((1, 4), np.int8)])
    assert "OpArgMax" in caught.value.why


def test_timeout_says_how_to_raise_it() -> None:
    b = Builder()
    x = b.input(Type(DType.I8, (1, 1024, 1024)))
    tosa = serialize(b.finish([ops.matmul(b, x, x)]))
    with pytest.raises(ToolFailed, match=r"within 0\.2 s") as caught:
        reference.run(tosa, [np.ones((1, 1024, 1024), np.int8)], timeout=0.2)
    assert "TOSAIC_TOOL_TIMEOUT" in caught.value.fix


def test_version_is_the_installed_one() -> None:
    assert reference.version().startswith("2026.")
