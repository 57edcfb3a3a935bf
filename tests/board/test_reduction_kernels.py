"""Kernels that reduce dimensions, against ExecuTorch's own."""

from __future__ import annotations

import numpy as np
import pytest

from support.firmware import GCC, Firmware
from support.handmade import Spec
from support.kernel_calls import BOOL, CHAR, CODES, FLOAT, INT, LAST, LONG, NUMPY, Comparison, Ordered, draw, run

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
#: Shape, dimensions.
GROUPS: tuple[tuple[tuple[int, ...], list[int]], ...] = (
    ((2, 3, 4), [1]),
    ((2, 3, 4), [-1]),
    ((2, 3, 4), [0, -1]),
    ((2, 3, 4), [0, 1, 2]),
    ((1, 17, 1, 5), [3, 1]),
    ((7,), [0]),
    ((), [-1]),
    ((3, 0, 2), [0]),
)
FILLED = [(shape, dims) for shape, dims in GROUPS if shape]
SINGLE = [(shape, dims[0]) for shape, dims in GROUPS if len(dims) == 1]


@pytest.mark.parametrize("keepdim", [False, True])
def test_sums(firmware: Firmware, keepdim: bool) -> None:
    calls = Comparison()
    for shape, dims in (*FILLED, ((2, 3), []), ((2, 0), [1]), ((2, 0), None)):
        for kind, out in ((FLOAT, FLOAT), (INT, LONG), (CHAR, LONG), (BOOL, LONG), (LONG, LONG), (INT, FLOAT)):
            array = draw(shape, kind)
            if kind in (LONG, INT):
                array = np.asarray(array % 50)  # ExecuTorch's sums of integers are floats in between
            calls.add("aten::sum.IntList_out", array, dims, keepdim, CODES[out], outs=(out,))
        calls.add("aten::sum.IntList_out", draw(shape), dims, keepdim, None)
        calls.add("aten::mean.out", draw(shape), dims, keepdim, None)
        calls.add("aten::mean.out", draw(shape, BOOL), dims, keepdim, CODES[FLOAT])
    calls.check(firmware)


def test_sum_of_bytes_wraps(firmware: Firmware) -> None:
    calls = Comparison()
    array = np.array([[100, 100], [-128, -1]], np.int8)
    calls.add("aten::sum.IntList_out", array, [1], False, CODES[CHAR], outs=(CHAR,))
    calls.check(firmware)


def test_whole_tensors(firmware: Firmware) -> None:
    calls = Comparison()
    for shape in ((2, 3), (), (0,)):
        calls.add("aten::mean.dtype_out", draw(shape), None)
        calls.add("aten::prod.out", draw(shape), None)
        calls.add("aten::prod.out", draw(shape, INT), None, outs=(LONG,))
        calls.add("aten::any.all_out", draw(shape), outs=(BOOL,))
        calls.add("aten::any.all_out", draw(shape, BOOL), outs=(BOOL,))
    for kind in (FLOAT, INT, CHAR, LONG):
        for shape in ((2, 3), ()):
            calls.add("aten::max.unary_out", draw(shape, kind), outs=(kind,))
            calls.add("aten::min.unary_out", draw(shape, kind), outs=(kind,))
    calls.check(firmware)


@pytest.mark.parametrize("keepdim", [False, True])
def test_products_and_any(firmware: Firmware, keepdim: bool) -> None:
    calls = Comparison()
    for shape, dim in SINGLE:
        calls.add("aten::prod.int_out", draw(shape), dim, keepdim, None)
        calls.add("aten::prod.int_out", draw(shape, INT), dim, keepdim, CODES[LONG], outs=(LONG,))
        calls.add("aten::any.out", draw(shape), dim, keepdim, outs=(BOOL,))
        calls.add("aten::any.out", np.asarray(draw(shape, LONG) // 90), dim, keepdim, outs=(BOOL,))
    for shape, dims in (*GROUPS, ((2, 3), []), ((2, 3), None)):
        calls.add("aten::any.dims_out", draw(shape, BOOL), dims, keepdim, outs=(BOOL,))
    calls.check(firmware)


@pytest.mark.parametrize("name", ["amax", "amin"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_extremes(firmware: Firmware, name: str, keepdim: bool) -> None:
    calls = Comparison()
    for shape, dims in (*GROUPS[:-2], ((2, 3), [])):
        for kind in (FLOAT, INT, CHAR, LONG, BOOL):
            calls.add(f"aten::{name}.out", draw(shape, kind), dims, keepdim, outs=(kind,))
    array = draw((2, 3, 4, 5))
    calls.add(f"aten::{name}.out", Ordered(array), [1], True, order=LAST)
    strange = np.array([[np.nan, 1, 2], [1, np.nan, 3], [np.inf, -np.inf, 0], [-0.0, 0.0, -1]], np.float32)
    calls.add(f"aten::{name}.out", strange, [1], keepdim)
    calls.check(firmware)


@pytest.mark.parametrize("keepdim", [False, True])
def test_variances(firmware: Firmware, keepdim: bool) -> None:
    calls = Comparison()
    for shape, dims in (*GROUPS, ((2, 3), None), ((2, 1), [1]), ((2, 0), [1])):
        for unbiased in (False, True):
            calls.add("aten::var.out", draw(shape), dims, unbiased, keepdim)
        for correction in (None, 0, 1, 0.5, 3):
            calls.add("aten::var.correction_out", draw(shape), dims, correction, keepdim)
    calls.check(firmware)


def test_beyond_executorch(firmware: Firmware) -> None:
    """Calls that end ExecuTorch's runtime, or that some of its releases do not have."""
    calls = Comparison()
    calls.add("aten::var_mean.correction_out", draw((2, 3, 4)), [1], 0, True, outs=(FLOAT, FLOAT))
    calls.add("aten::sum.IntList_out", draw(()), [-1], False, None)
    calls.add("aten::sum.IntList_out", np.array([2**63 - 1, 1, 5]), [0], False, None, outs=(LONG,))
    calls.add("aten::_softmax.out", draw((3, 0, 2)), 0, False)
    calls.add("aten::_log_softmax.out", draw((3, 0, 2)), 0, False)
    calls.add("aten::cumsum.out", draw(()), -1, None)
    calls.add("aten::cumsum.out", draw((), BOOL), 0, None, outs=(LONG,))
    calls.check(firmware, against_torch=True)


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_places_of_extremes(firmware: Firmware, name: str, keepdim: bool) -> None:
    calls = Comparison()
    strange = np.array([[1, np.nan, 2], [3, 3, 3], [np.nan, np.nan, 0], [-np.inf, np.inf, 0]], np.float32)
    for kind in (FLOAT, INT, CHAR, LONG):
        for shape, dim in SINGLE[:-1]:
            for given in (dim, None):
                calls.add(f"aten::arg{name}.out", draw(shape, kind), given, keepdim, outs=(LONG,))
            calls.add(f"aten::{name}.dim_{name}", draw(shape, kind), dim, keepdim, outs=(kind, LONG))
    calls.add(f"aten::arg{name}.out", strange, 1, keepdim, outs=(LONG,))
    calls.add(f"aten::{name}.dim_{name}", strange, -1, keepdim, outs=(FLOAT, LONG))
    calls.check(firmware)


def test_topk(firmware: Firmware) -> None:
    calls = Comparison()
    rng = np.random.default_rng(3)
    for shape, dim in (((7,), 0), ((3, 9), -1), ((3, 9, 2), 1), ((200,), 0), ((), 0)):
        distinct = rng.permutation(int(np.prod(shape))).reshape(shape)
        size = shape[dim] if shape else 1
        for k in {0, 1, size // 2, size}:
            if k == 0 and not shape:
                continue
            for largest in (False, True):
                for kind in (FLOAT, INT, CHAR):
                    array = np.asarray(distinct, NUMPY[kind])
                    if kind == CHAR and array.size > 100:
                        continue
                    outs = (kind, LONG)
                    calls.add("aten::topk.values", array, k, dim, largest, True, outs=outs)
    ties = np.array([2, np.nan, 1, 2, -np.inf, np.nan, 3], np.float32)
    status, ended = run(firmware, "aten::topk.values", (ties, 5, 0, True, True), (Spec((5,)), Spec((5,), LONG)))
    assert status == "OK"
    assert ended.outputs[1].tolist() == [1, 5, 6, 0, 3]
    status, _ = run(firmware, "aten::topk.values", (ties, 8, 0, True, True), (Spec((8,)), Spec((8,), LONG)))
    assert status == "BAD_SHAPE"
    calls.check(firmware)


def test_running_sums(firmware: Firmware) -> None:
    calls = Comparison()
    for shape, dim in SINGLE:
        if not shape:
            continue
        calls.add("aten::cumsum.out", draw(shape), dim, None)
        for kind in (CHAR, INT, LONG, BOOL):
            calls.add("aten::cumsum.out", draw(shape, kind), dim, CODES[LONG], outs=(LONG,))
        calls.add("aten::cumsum.out", draw(shape, BOOL), dim, CODES[FLOAT])
    calls.check(firmware)


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax(firmware: Firmware, name: str) -> None:
    calls = Comparison()
    for shape, dim in SINGLE[:-1]:
        for scale in (1, 30, 1e30):
            calls.add(f"aten::{name}.out", np.asarray(draw(shape) * np.float32(scale)), dim, False)
    strange = np.array([[0, -np.inf, 1], [1e38, -1e38, 3e38], [-200, 0, -50]], np.float32)
    calls.add(f"aten::{name}.out", strange, 1, False)
    calls.add(f"aten::{name}.out", draw((4, 1000)) * np.float32(5), 1, False)
    calls.check(firmware)


def test_refusals(firmware: Firmware) -> None:
    x, out = draw((2, 3)), Spec((2,))
    for operator, args, outs, status in (
        ("aten::sum.IntList_out", (x, [2], False, None), (out,), "BAD_SHAPE"),
        ("aten::sum.IntList_out", (x, [1, -1], False, None), (out,), "BAD_SHAPE"),
        ("aten::sum.IntList_out", (x, [1], True, None), (out,), "BAD_SHAPE"),
        ("aten::sum.IntList_out", (x, [1], False, 3), (Spec((2,), INT),), "BAD_TYPE"),
        ("aten::sum.IntList_out", (x, [1], False, 3), (out,), "BAD_TYPE"),
        ("aten::amax.out", (x, [1], False), (Spec((2,), LONG),), "BAD_TYPE"),
        ("aten::amax.out", (draw((2, 0)), [1], False), (out,), "BAD_SHAPE"),
        ("aten::argmax.out", (draw((2, 0)), 1, False), (Spec((2,), LONG),), "BAD_SHAPE"),
        ("aten::argmax.out", (x, 1, False), (out,), "BAD_TYPE"),
        ("aten::_softmax.out", (x, 2, False), (Spec((2, 3)),), "BAD_SHAPE"),
        ("aten::_softmax.out", (draw((2, 3), INT), 1, False), (Spec((2, 3)),), "BAD_TYPE"),
        ("aten::cumsum.out", (x, 1, None), (Spec((2, 3), INT),), "BAD_TYPE"),
    ):
        assert run(firmware, operator, args, outs)[0] == status, (operator, args)
