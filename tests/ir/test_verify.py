from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tosaic.core.errors import Invalid
from tosaic.core.specification import EXTENSIONS, PROFILES, Specification
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Op, Type, Value
from tosaic.ir.verifier import verify

INT, FP = Specification.parse("TOSA-1.0+INT"), Specification.parse("TOSA-1.0+FP")
I32 = Type(DType.I32, (2, 3))
F32 = Type(DType.F32, (2, 3))


def graph_of(build: Callable[[Builder, Value], Value | tuple[Value, ...]], type: Type = I32) -> Graph:
    b = Builder()
    result = build(b, b.input(type))
    return b.finish(result if isinstance(result, tuple) else [result])


def refuse(graph: Graph, spec: Specification | str, *words: str) -> Invalid:
    with pytest.raises(Invalid) as caught:
        verify(graph, Specification.parse(spec) if isinstance(spec, str) else spec)
    for word in words:
        assert word in caught.value.what
    return caught.value


def test_a_good_graph_passes() -> None:
    verify(graph_of(lambda b, x: ops.add(b, x, ops.abs(b, x))), INT)
    verify(graph_of(lambda b, x: ops.exp(b, ops.add(b, x, x)), F32), FP)


def test_use_before_definition() -> None:
    graph = graph_of(lambda b, x: ops.abs(b, ops.clz(b, x)))
    graph.ops.reverse()
    refuse(graph, INT, "op 0 ABS", "input 0 i32[2,3] is not defined before its use")


def test_value_of_another_graph() -> None:
    stranger = Builder().input(I32)
    refuse(graph_of(lambda b, x: ops.add(b, x, stranger)), INT, "op 0 ADD: input 1")


def test_defined_twice() -> None:
    graph = graph_of(lambda b, x: ops.abs(b, x))
    refuse(Graph(graph.inputs, graph.outputs, graph.ops * 2), INT, "op 1 ABS", "defined twice")
    refuse(Graph(graph.inputs * 2, graph.outputs, graph.ops), INT, "twice among the inputs")
    refuse(Graph(graph.outputs, graph.outputs, []), INT, "is the result of ABS")


def test_output_of_no_op() -> None:
    refuse(Graph([], [Value(I32)], []), INT, "output 0 i32[2,3] is not the result of an op")


def test_outputs_must_name_their_maker() -> None:
    graph = graph_of(lambda b, x: ops.abs(b, x))
    graph.outputs[0].op = None
    refuse(graph, INT, "op 0 ABS", "names another op as its producer")


def test_types_are_inferred_again() -> None:
    graph = graph_of(lambda b, x: ops.abs(b, x))
    graph.outputs[0].type = Type(DType.I32, (3, 2))
    refuse(graph, INT, "op 0 ABS: outputs are (i32[3,2]), expected (i32[2,3])")


def test_definitions_are_checked_again() -> None:
    x, y = Value(I32), Value(I32)
    op = Op(ops.reduce_sum, (x,), (y,), {"axis": 2})
    y.op = op
    refuse(Graph([x], [y], [op]), INT, "op 0 REDUCE_SUM: axis 2 is outside 0..1")
    assert refuse(Graph([x], [y], [op]), INT).what.count("REDUCE_SUM") == 1


def test_origin_is_shown() -> None:
    b = Builder(origin=("model.py:7",))
    graph = b.finish([ops.exp(b, b.input(F32))])
    assert refuse(graph, INT).where == "model.py:7"


def test_every_operator_has_a_legality_row() -> None:
    tables = [definition.legal for definition in ops.DEFINITIONS.values()]
    assert all(table.rows for table in tables)
    parts = {part for table in tables for row in table.rows.values() for needs in row for part in needs}
    assert parts <= {*PROFILES, *EXTENSIONS}
    dtypes = {dtype for table in tables for row in table.rows for dtype in row}
    assert dtypes <= {d.value for d in DType}
    assert all(len(row) == len(table.slots) for table in tables for row in table.rows)


def test_every_slot_is_an_operand_or_an_attribute() -> None:
    for definition in ops.DEFINITIONS.values():
        names = {part.name for part in (*definition.operands, *definition.attributes)}
        assert set(definition.legal.slots) <= {"in", "out", *names}, definition.name


def convolve(source: DType, weight: DType, acc: DType, out: DType) -> Graph:
    def build(b: Builder, x: Value) -> Value:
        return ops.conv2d(
            b,
            x,
            b.input(Type(weight, (1, 1, 1, 3))),
            b.input(Type(out, (1,))),
            pad=(0, 0, 0, 0),
            stride=(1, 1),
            dilation=(1, 1),
            acc_type=acc,
        )

    return graph_of(build, Type(source, (1, 2, 2, 3)))


@pytest.mark.parametrize(
    ("graph", "good", "bad"),
    [
        (convolve(DType.I8, DType.I8, DType.I32, DType.I32), "TOSA-1.0+INT", "TOSA-1.0+FP"),
        (convolve(DType.I8, DType.I4, DType.I32, DType.I32), "TOSA-1.0+INT+int4", "TOSA-1.0+INT"),
        (convolve(DType.I16, DType.I8, DType.I48, DType.I48), "TOSA-1.0+INT+int16", "TOSA-1.0+INT+int4"),
        (convolve(DType.F32, DType.F32, DType.F32, DType.F32), "TOSA-1.0+FP", "TOSA-1.0+INT"),
        (convolve(DType.F16, DType.F16, DType.F32, DType.F16), "TOSA-1.0+FP", "TOSA-1.0+INT"),
        (convolve(DType.BF16, DType.BF16, DType.F32, DType.BF16), "TOSA-1.0+FP+bf16", "TOSA-1.0+FP"),
        (graph_of(ops.exp, F32), "TOSA-1.0+FP", "TOSA-1.0+INT"),
        (graph_of(lambda b, x: ops.add(b, x, x)), "TOSA-1.0+FP", None),
        (graph_of(ops.abs), "TOSA-1.0+INT", "TOSA-1.0+FP"),
        (graph_of(lambda b, x: ops.cast(b, x, DType.F32)), "TOSA-1.0+FP", "TOSA-1.0+INT"),
        (graph_of(lambda b, x: b.emit(ops.RFFT2D, (x,)), Type(DType.F32, (1, 2, 2))), "TOSA-1.0+FP+fft", "TOSA-1.0+FP"),
        (graph_of(lambda b, x: ops.concat(b, [x], 0), Type(DType.I16, (3,))), "TOSA-1.0+INT+int16", "TOSA-1.0+INT"),
        (graph_of(lambda b, x: ops.reshape(b, x, (3, 1)), Type(DType.I16, (3,))), "TOSA-1.0+INT", "TOSA-1.0+FP"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_legality_table(graph: Graph, good: str, bad: str | None) -> None:
    verify(graph, Specification.parse(good))
    if bad is not None:
        assert "use a specification with" in refuse(graph, bad, "needs", f"which {bad} does not have").fix


def test_combinations_that_no_specification_has() -> None:
    everything = Specification("1.0", PROFILES, tuple(EXTENSIONS))
    refuse(graph_of(lambda b, x: ops.add(b, x, x), Type(DType.I8, (1,))), everything, "no ADD of i8")
    refuse(convolve(DType.I8, DType.I8, DType.I48, DType.I48), everything, "no CONV2D of i8 i8 i48 i48")
    refuse(graph_of(lambda b, x: ops.cast(b, x, DType.I32)), everything, "no CAST of i32 i32")


def test_rounding_needs_its_extension() -> None:
    graph = graph_of(
        lambda b, x: ops.rescale(b, x, DType.I8, multiplier=[1 << 30], shift=[40], rounding="DOUBLE_ROUND")
    )
    verify(graph, Specification.parse("TOSA-1.0+INT+doubleround"))
    refuse(graph, INT, "DOUBLE_ROUND needs doubleround")


def test_operands_that_must_be_constant() -> None:
    b = Builder()
    x, table = b.input(Type(DType.I8, (4,))), b.input(Type(DType.I8, (256,)))
    (y,) = b.emit(ops.TABLE, (x, table))
    refuse(b.finish([y]), INT, "op 0 TABLE: table must be a constant")


def loop(depth: int) -> Graph:
    b = Builder()
    x = b.input(Type(DType.I32, (1,)))
    if depth == 0:
        return b.finish([ops.identity(b, x)])
    inner = loop(depth - 1)
    condition = ops.greater(b, x, x)
    return b.finish(b.emit(ops.COND_IF, (condition, x), then_graph=inner, else_graph=inner))


def test_control_flow_needs_cf_and_bodies_are_verified() -> None:
    verify(loop(2), Specification.parse("TOSA-1.0+INT+cf"))
    refuse(loop(1), INT, "COND_IF needs cf")
    graph = loop(1)
    body = graph.ops[-1].attrs["then_graph"]
    assert isinstance(body, Graph)
    body.ops.clear()
    refuse(graph, "TOSA-1.0+INT+cf", "op 1 COND_IF then_graph: output 0 i32[1] is not the result of an op")


def test_nesting_is_bounded_by_the_level() -> None:
    verify(loop(5), Specification.parse("TOSA-1.0+INT+cf+8k"))
    refuse(loop(6), "TOSA-1.0+INT+cf+8k", "nested deeper than 6")


def test_variables() -> None:
    spec = Specification.parse("TOSA-1.0+FP+var")

    def build(*steps: str, type: Type = F32) -> Graph:
        b = Builder()
        x, outputs = b.input(F32), list[Value]()
        for step in steps:
            if step == "declare":
                b.emit(ops.VARIABLE, (), name="s", type=F32)
            elif step == "write":
                b.emit(ops.VARIABLE_WRITE, (x,), name="s")
            else:
                outputs += b.emit(ops.VARIABLE_READ, (), name="s", type=type)
        return b.finish(outputs)

    verify(build("declare", "write", "read"), spec)
    refuse(build("declare", "write", "read"), FP, "op 0 VARIABLE", "needs FP+var")
    refuse(build("write"), spec, "op 0 VARIABLE_WRITE: variable 's' is not declared before")
    refuse(build("declare", "declare"), spec, "op 1 VARIABLE: variable 's' is declared twice")
    refuse(build("declare", "read", type=Type(DType.F32, (6,))), spec, "variable 's' is f32[2,3], not f32[6]")


@pytest.mark.parametrize(
    ("build", "type", "words"),
    [
        (ops.identity, Type(DType.I32, (1,) * 7), "rank 7; at most 6"),
        (ops.identity, Type(DType.I8, (1 << 16, 1 << 15)), "too large"),
        (
            lambda b, x: ops.max_pool2d(b, x, kernel=(8193, 1), stride=(1, 1), pad=(0, 0, 0, 0)),
            Type(DType.I8, (1, 8193, 1, 1)),
            "kernel (8193, 1) is above 8192",
        ),
        (
            lambda b, x: ops.max_pool2d(b, x, kernel=(1, 1), stride=(8193, 1), pad=(0, 0, 0, 0)),
            Type(DType.I8, (1, 1, 1, 1)),
            "stride (8193, 1) is above 8192",
        ),
        (
            lambda b, x: ops.resize(b, x, scale=(257, 1, 1, 1), offset=(0, 0), border=(0, 0), mode="NEAREST"),
            Type(DType.I8, (1, 2, 2, 1)),
            "scale (257, 1) is above 256",
        ),
        (lambda b, x: ops.concat(b, [x] * 65, 0), Type(DType.I8, (1,)), "more than 64 tensors"),
    ],
)
def test_level_8k(build: Callable[[Builder, Value], Value], type: Type, words: str) -> None:
    graph = graph_of(build, type)
    verify(graph, INT)
    refuse(graph, "TOSA-1.0+INT+8k", words)


def test_dilated_kernel_counts_for_the_level() -> None:
    b = Builder()
    x = b.input(Type(DType.I8, (1, 8193, 1, 1)))
    weight, bias = b.const(np.ones((1, 2, 1, 1)), DType.I8), b.const(np.zeros(1), DType.I32)
    y = ops.conv2d(
        b, x, weight, bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(4097, 1), acc_type=DType.I32
    )  # fmt: skip
    graph = b.finish([y])
    verify(graph, INT)
    refuse(graph, "TOSA-1.0+INT+8k", "dilated kernel (8194, 1) is above 8192")


def test_empty_dimensions_and_shape_inputs_are_refused() -> None:
    refuse(graph_of(ops.identity, Type(DType.I8, (0,))), INT, "empty dimension")
    refuse(Graph([Value(Type(DType.SHAPE, (1,)))], [], []), INT, "a shape cannot be an input")
    verify(graph_of(ops.identity, Type(DType.I8, ())), INT)
