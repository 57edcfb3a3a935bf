"""Kernels of the firmware that copy nothing: plain numbers, views of the same memory, and what kernels refuse."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import torch

from support.firmware import GCC, STATUSES, Firmware
from support.handmade import Same, Spec, Step, call, make_program
from tosaic.board.kernels import list_kernels

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
BAD_ARGUMENT, BAD_TYPE, BAD_SHAPE = (STATUSES.index(f"BAD_{name}") for name in ("ARGUMENT", "TYPE", "SHAPE"))
NO_DATA = STATUSES.index("NO_DATA")
INT = Spec((4,), torch.int32)
LOWEST = -(1 << 63)

#: The operator, its arguments, and the result.
NUMBERS: list[tuple[str, tuple[Any, ...], float]] = [
    ("add.Scalar", (2, 3), 5),
    ("add.Scalar", (2, 0.5), 2.5),
    ("sub.Scalar", (LOWEST, 1), -LOWEST - 1),
    ("mul.Scalar", (-4, 3), -12),
    ("mul.Scalar", (0.5, 0.5), 0.25),
    ("eq.Scalar", (2, 2.0), True),
    ("gt.Scalar", (2, 3), False),
    ("ge.Scalar", (3, 3), True),
    ("lt.Scalar", (-1.5, 0), True),
    ("le.Scalar", (True, 0), False),
    ("truediv.Scalar", (1, 4), 0.25),
    ("floordiv.Scalar", (-7, 2), -4),
    ("floordiv.int", (7, -2), -4),
    ("mod.Scalar", (-7, 3), 2),
    ("mod.int", (7, -3), -2),
    ("neg.Scalar", (5,), -5),
    ("neg.Scalar", (0.5,), -0.5),
    ("sym_float.Scalar", (3,), 3.0),
    ("sym_int.Scalar", (-2.7,), -2),
    ("trunc.Scalar", (2.7,), 2),
    ("sym_not.Scalar", (False,), True),
    ("sym_max.Scalar", (2, 7), 7),
    ("sym_min.Scalar", (2.5, 7), 2.5),
]


def get_bits(number: float) -> int:
    return struct.unpack("<q", struct.pack("<d", number))[0] if type(number) is float else int(number)


def test_numbers(firmware: Firmware) -> None:
    for name, args, expected in NUMBERS:
        operator, _, overload = name.partition(".")
        data = call(f"executorch_prim::{operator}", overload, args, type(expected)(0))
        ended = firmware.run(data, [])
        assert ended.status == 0 and int(ended.outputs[0]) == get_bits(expected), (name, args)
    tested = {f"executorch_prim::{name}" for name, _, _ in NUMBERS} | {"executorch_prim::et_view.default"}
    assert {name for name in list_kernels() if name.startswith("executorch_prim")} == tested


def test_sizes_as_numbers(firmware: Firmware) -> None:
    x = Spec((3, 5), torch.int8)
    assert int(firmware.run(call("aten::sym_size", "int", (x, -1), 0)).outputs[0]) == 5
    assert int(firmware.run(call("aten::sym_numel", "", (x,), 0)).outputs[0]) == 15
    for dtype, value in ((torch.int32, -7), (torch.float32, 0.5), (torch.bool, True)):
        data = call("aten::_local_scalar_dense", "", (Spec((1,), dtype),), type(value)(0))
        array = torch.tensor([value], dtype=dtype).numpy()
        assert int(firmware.run(data, [array]).outputs[0]) == get_bits(value)


def test_division_of_numbers_by_zero(firmware: Firmware) -> None:
    for name, args in (("floordiv", (1, 0)), ("mod", (1, 0)), ("floordiv", (LOWEST, -1))):
        assert firmware.run(call(f"executorch_prim::{name}", "Scalar", args, 0), []).status == BAD_ARGUMENT


def test_view_has_the_memory_of_its_source(firmware: Firmware) -> None:
    """The result has no memory of its own, in every run."""
    view = Spec((2, 2), torch.int32, planned=False)
    data = call("executorch_prim::et_view", "default", (INT, [2, -1]), view)
    array = np.arange(4, dtype=np.int32)
    for runs in (1, 3):
        assert firmware.run(data, [array], runs=runs).outputs[0].tolist() == [[0, 1], [2, 3]]
    for sizes in ([3, -1], [2, 3], [-1, -1], [1 << 40, 2]):
        bad = call("executorch_prim::et_view", "default", (INT, sizes), view)
        assert firmware.run(bad, [array], runs=2).status == BAD_SHAPE
    assert firmware.run(call("executorch_prim::et_view", "default", (INT, [4]), 1)).status == BAD_ARGUMENT


def test_view_of_a_caller_ends_with_the_run(firmware: Firmware) -> None:
    """In the second run, a view is read before it is made again: the caller may have reused its memory."""
    view, flag = Same(4), Same(5)
    steps = (
        Step("aten::neg", "out", (view,), (INT,)),
        Step(
            *("executorch_prim::et_view", "default"),
            *((Spec((4,), torch.int32, planned=False), [4]), (Spec((4,), torch.int32, planned=False),)),
        ),
        Step("aten::logical_not", "out", (flag,), (Spec((1,), torch.bool),)),
    )
    array = np.arange(4, dtype=np.int32)
    data = make_program(*steps, first=[(flag.number, 2)])
    ended = firmware.run(data, [array])
    assert ended.status == 0 and ended.outputs[1].tolist() == [0, 1, 2, 3] and ended.outputs[2].tolist() == [True]
    ended = firmware.run(data, [array], runs=2)
    assert (ended.status, ended.instruction, ended.detail) == (NO_DATA, 1, 0)
    # An output that has no memory at the end of a run.
    ended = firmware.run(make_program(*steps, first=[(flag.number, 3)]), [array])
    assert (ended.status, ended.detail) == (NO_DATA, 1)


@pytest.mark.parametrize(
    ("name", "overload", "args", "status"),
    [
        ("div", "out_mode", (INT, INT, "floor"), BAD_ARGUMENT),
        ("remainder", "Scalar_out", (INT, 0), BAD_ARGUMENT),
        ("add", "out", (INT, INT, 0.5), BAD_TYPE),
        ("add", "Scalar_out", (INT, 0.5, 1), BAD_TYPE),
        ("where", "self_out", (INT, INT, INT), BAD_TYPE),
        ("exp", "out", (INT,), BAD_TYPE),
        ("bitwise_not", "out", (Spec((4,)),), BAD_TYPE),
        ("permute_copy", "out", (INT, [1]), BAD_SHAPE),
        ("permute_copy", "out", (Spec((2, 2), torch.int32), [0, 0]), BAD_SHAPE),
        ("select_copy", "int_out", (Spec((4, 2), torch.int32), 1, 2), BAD_SHAPE),
        ("slice_copy", "Tensor_out", (INT, 0, 0, 4, 0), BAD_SHAPE),
        ("slice_copy", "Tensor_out", (INT, 1, 0, 4, 1), BAD_SHAPE),
        ("narrow_copy", "out", (INT, 0, 2, 4), BAD_SHAPE),
        ("cat", "out", ([INT, Spec((2, 2), torch.int32)], 0), BAD_SHAPE),
        ("as_strided_copy", "out", (INT, [4], [2], 0), BAD_SHAPE),
        ("as_strided_copy", "out", (INT, [4], [-1], 3), BAD_SHAPE),
        ("unfold_copy", "out", (INT, 0, 5, 1), BAD_SHAPE),
        ("constant_pad_nd", "out", (INT, [1], 0), BAD_SHAPE),
        ("repeat", "out", (INT, [1 << 40]), BAD_SHAPE),
        ("expand_copy", "out", (INT, [3], False), BAD_SHAPE),
        ("arange", "start_out", (0, 4, 0), BAD_SHAPE),
        ("full", "out", ([-1], 1), BAD_SHAPE),
        ("view_copy", "out", (INT, [5]), BAD_SHAPE),
    ],
)
def test_refusals(firmware: Firmware, name: str, overload: str, args: tuple[Any, ...], status: int) -> None:
    inputs = [np.zeros(spec.shape, np.int32) for spec in args if spec is INT] if name == "div" else (None,) * 4
    assert firmware.run(call(f"aten::{name}", overload, args, INT), inputs).status == status
