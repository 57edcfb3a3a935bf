"""Graphs as text: what is printed, and that parsing it gives the same graph."""

from __future__ import annotations

import numpy as np
import pytest

import tosaic
from tosaic import zoo
from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification
from tosaic.formats.tosa_writer import read, serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Op, Type, Value
from tosaic.ir.text import from_text, to_text
from tosaic.ir.verifier import verify


def test_golden_text() -> None:
    b = Builder()
    x = b.input(Type(DType.I8, (1, 4, 4, 3)))
    weight = b.const(np.arange(54).reshape(2, 3, 3, 3), DType.I8)
    y = ops.conv2d(
        b,
        x,
        weight,
        b.const(np.array([1, -2]), DType.I32),
        pad=(0, 1, 0, 1),
        stride=(2, 2),
        dilation=(1, 1),
        acc_type=DType.I32,
        x_zp=3,
    )
    y = ops.rescale(b, y, DType.I8, multiplier=[1 << 30], shift=[33], out_zp=3)
    assert to_text(b.finish([ops.reshape(b, y, (8,)), x])) == (
        "graph(%x0: i8[1,4,4,3]) {\n"
        "  %c0 = CONST i8[2,3,3,3] sha=675f28ac\n"
        "  %c1 = CONST i32[2] [1, -2]\n"
        "  %c2 = CONST i8[1] [3]\n"
        "  %c3 = CONST i8[1] [0]\n"
        "  %4: i32[1,2,2,2] = CONV2D(%x0, %c0, %c1, %c2, %c3)"
        " pad=(0,1,0,1) stride=(2,2) dilation=(1,1) acc_type=i32\n"
        "  %c5 = CONST i32[1] [1073741824]\n"
        "  %c6 = CONST i8[1] [33]\n"
        "  %c7 = CONST i32[1] [0]\n"
        "  %8: i8[1,2,2,2] = RESCALE(%4, %c5, %c6, %c7, %c2) scale32=True rounding_mode=SINGLE_ROUND\n"
        "  %c9 = CONST_SHAPE shape[1] [8]\n"
        "  %10: i8[8] = RESHAPE(%8, %c9)\n"
        "  return %10, %x0\n"
        "}\n"
    )


def test_scalars_and_small_floats() -> None:
    b = Builder()
    x = b.input(Type(DType.BF16, ()))
    y = ops.add(b, ops.maximum(b, x, x, nan_mode="IGNORE"), b.const(np.array(1.5), DType.BF16))
    assert to_text(b.finish([y])) == (
        "graph(%x0: bf16[]) {\n"
        "  %0: bf16[] = MAXIMUM(%x0, %x0) nan_mode=IGNORE\n"
        "  %c1 = CONST bf16[] [1.5]\n"
        "  %2: bf16[] = ADD(%0, %c1)\n"
        "  return %2\n"
        "}\n"
    )


def test_control_flow_and_variables_are_indented() -> None:
    state = Type(DType.F32, (2,))
    body = Builder()
    same = body.finish([ops.identity(body, body.input(state))])
    b = Builder()
    x = b.input(state)
    b.emit(ops.VARIABLE, (), name="s", type=state, data=np.array([0.5, 1.0], np.float32))
    b.emit(ops.VARIABLE_WRITE, (x,), name="s")
    condition = b.const(np.array([True]), DType.BOOL)
    (old,) = b.emit(ops.VARIABLE_READ, (), name="s", type=state)
    y = b.emit(ops.COND_IF, (condition, old), then_graph=same, else_graph=same)
    branch = (
        "      graph(%x0: f32[2]) {\n"
        "        %0: f32[2] = IDENTITY(%x0)\n"
        "        return %0\n"
        "      }\n"
    )  # fmt: skip
    assert to_text(b.finish(y)) == (
        "graph(%x0: f32[2]) {\n"
        "  VARIABLE() name=s type=f32[2] data=[0.5, 1.0]\n"
        "  VARIABLE_WRITE(%x0) name=s\n"
        "  %c0 = CONST bool[1] [True]\n"
        "  %1: f32[2] = VARIABLE_READ() name=s type=f32[2]\n"
        "  %2: f32[2] = COND_IF(%c0, %1)\n"
        "    then_graph:\n"
        f"{branch}"
        "    else_graph:\n"
        f"{branch}"
        "  return %2\n"
        "}\n"
    )


def test_same_graph_same_text_and_data_changes_show() -> None:
    def build(last: int) -> Graph:
        b = Builder()
        x = b.input(Type(DType.I32, (9,)))
        return b.finish([ops.add(b, x, b.const(np.array([0] * 8 + [last]), DType.I32))])

    assert to_text(build(1)) == to_text(build(1)) != to_text(build(2))


def test_a_broken_graph_still_prints() -> None:
    b, other = Builder(), Builder()
    ops.identity(b, other.input(Type(DType.I8, (1,))))
    assert "IDENTITY(%?)" in to_text(b.finish([other.input(Type(DType.I8, (2,)))]))
    value = Value(Type(DType.I8, (9,)))
    value.op = Op(ops.CONST, (), (value,), {"type": value.type, "data": None})
    assert "CONST i8[9] ?" in to_text(Graph([], [value], [value.op]))


def test_a_test_can_be_written_as_text() -> None:
    text = """
        graph(%image: f32[1,2,2,1], %mask: bool[1,2,2,1]) {
          %half = CONST f32[1,1,1,1] [0.5]
          %shape = CONST_SHAPE shape[2] [1, 4]
          %sum: f32[1,2,2,1] = ADD(%image, %half)
          %low: f32[1,2,2,1] = CLAMP(%sum) min_val=0.0 max_val=inf
          %both: f32[1,2,2,1] = SELECT(%mask, %low, %image)
          %flat: f32[1,4] = RESHAPE(%both, %shape)
          return %flat, %mask
        }
    """
    graph = from_text(text)
    verify(graph, Specification.parse("TOSA-1.0+FP"))
    assert [op.kind for op in graph.ops] == ["CONST", "CONST_SHAPE", "ADD", "CLAMP", "SELECT", "RESHAPE"]
    assert graph.ops[3].attrs == {"min_val": 0.0, "max_val": float("inf"), "nan_mode": "PROPAGATE"}
    assert graph.outputs[1] is graph.inputs[1]
    assert to_text(from_text(to_text(graph))) == to_text(graph)


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+FP"])
@pytest.mark.parametrize("name", ["ds_cnn", pytest.param("mobilenet_v2", marks=pytest.mark.slow)])
def test_lowered_models_round_trip(name: str, target: str) -> None:
    model, inputs = zoo.load(name)
    program = tosaic.compile(model, inputs, target, calibration=zoo.inputs(name, 1, 1))
    assert program.delegates
    for delegate in program.delegates:
        graph = read(delegate.tosa)
        again = from_text(to_text(graph, full=True))
        verify(again, Specification.parse(target))
        assert to_text(again) == to_text(graph)
        assert serialize(again) == serialize(graph)


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.SHAPE])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (3, 5)])
def test_constants_of_every_dtype_round_trip(dtype: DType, shape: tuple[int, ...]) -> None:
    b = Builder()
    numbers = np.random.default_rng(5).integers(0, 2 if dtype is DType.BOOL else 7, shape)
    value = b.const(np.asarray(numbers), dtype)
    (again,) = from_text(to_text(b.finish([value]), full=True)).outputs
    assert again.type == value.type
    assert again.data is not None and value.data is not None and again.data.dtype == value.data.dtype
    np.testing.assert_array_equal(again.data, value.data)


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        (["%0: i8[1] = ABS(%y)", "return %0"], 2, "%y is not defined before its use"),
        (["%0: i8[1] = SOFTMAX(%x)", "return %0"], 2, "SOFTMAX is not an operator of TOSA 1.0"),
        (["%0: i8[1] = ABS(%x) axis=1", "return %0"], 2, "ABS has no attribute axis"),
        (["%0: i8[1] = ABS(%x) axis", "return %0"], 2, "expected attributes as `name=value`"),
        (["%0: i9[1] = ABS(%x)", "return %0"], 2, "'i9' is not a valid DType"),
        (["%0 = ABS(%x)", "return %0"], 2, "expected values as `%0: i8[1,4]`"),
        (["%0: i8[1] = REVERSE(%x) axis=one", "return %0"], 2, "invalid literal for int"),
        (["%x: i8[1] = ABS(%x)", "return %x"], 2, "%x is defined twice"),
        (["%c = CONST i8[9] sha=675f28ac", "return %c"], 2, "expected numbers in brackets or `hex=`"),
        (["%c = CONST i8[2] [1]", "return %c"], 2, "1 numbers are not those of i8[2]"),
        (["%c = CONST i8[1] [300]", "return %c"], 2, "do not fit i8"),
        (["%c = CONST i8[2] hex=00", "return %c"], 2, "1 bytes are not the numbers of i8[2]"),
        (["%c = CONST bool[1] [1]", "return %c"], 2, "expected True or False"),
        (["%0: i8[1] = COND_IF(%x)", "return %0"], 3, "expected `then_graph:`"),
        (["abs of x"], 2, "expected `%1: type = OPERATOR(%0, ...)"),
        (["return %x", "}", "graph() {"], 4, "nothing may follow the graph"),
        ([], 2, "expected `%1: type = OPERATOR"),
    ],
)
def test_wrong_text_is_refused_with_its_line(lines: list[str], line: int, reason: str) -> None:
    with pytest.raises(Invalid) as caught:
        from_text("\n".join(["graph(%x: i8[1]) {", *lines, "}"]))
    assert caught.value.what.startswith(f"line {line} of the graph's text: ")
    assert reason in caught.value.what


def test_text_that_ends_early_is_refused() -> None:
    for text in ("", "graph() {", "graph() {\n  return"):
        with pytest.raises(Invalid, match="the text ends inside a graph"):
            from_text(text)
