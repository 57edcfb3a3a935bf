from __future__ import annotations

import numpy as np

from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Type
from tosaic.ir.text import to_text


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


def test_scalars_holes_and_small_floats() -> None:
    b = Builder()
    x = b.input(Type(DType.BF16, ()))
    hole = b.hole(Type(DType.BF16, ()))
    y = ops.add(b, ops.maximum(b, x, hole, nan_mode="IGNORE"), b.const(np.array(1.5), DType.BF16))
    assert to_text(b.finish([y])) == (
        "graph(%x0: bf16[]) {\n"
        "  %c0 = CONST bf16[] ?\n"
        "  %1: bf16[] = MAXIMUM(%x0, %c0) nan_mode=IGNORE\n"
        "  %c2 = CONST bf16[] [1.5]\n"
        "  %3: bf16[] = ADD(%1, %c2)\n"
        "  return %3\n"
        "}\n"
    )


def test_control_flow_and_variables_are_indented() -> None:
    state = Type(DType.F32, (2,))
    body = Builder()
    same = body.finish([ops.identity(body, body.input(state))])
    b = Builder()
    x = b.input(state)
    ops.variable(b, "s", state, np.array([0.5, 1.0]))
    ops.variable_write(b, "s", x)
    condition = b.const(np.array([True]), DType.BOOL)
    y = ops.cond_if(b, condition, [ops.variable_read(b, "s", state)], same, same)
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
