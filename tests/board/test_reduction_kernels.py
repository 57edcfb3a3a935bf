"""Kernels that reduce dimensions, against ExecuTorch's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.firmware import GCC, Firmware, build_harness
from support.handmade import Spec
from support.kernel_calls import LAST, Ordered, check, compare, run

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc")
FLOAT, LONG, INT, CHAR, BOOL = torch.float32, torch.int64, torch.int32, torch.int8, torch.bool
CODES = {CHAR: 1, INT: 3, LONG: 4, FLOAT: 6, BOOL: 11}
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
SINGLE = [(shape, dims[0]) for shape, dims in GROUPS if len(dims) == 1]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_harness(tmp_path_factory.mktemp("harness"))


@pytest.fixture
def firmware(program: Path, tmp_path: Path) -> Iterator[Firmware]:
    process = Firmware(program, tmp_path / "log")
    yield process
    process.close()


def draw(shape: tuple[int, ...], dtype: torch.dtype = FLOAT, seed: int = 0) -> Any:
    """Numbers of a type, the limits of the type among them."""
    rng = np.random.default_rng(seed)
    if dtype == FLOAT:
        return rng.normal(size=shape).astype(np.float32)
    if dtype == BOOL:
        return rng.random(shape) < 0.3
    limits = torch.iinfo(dtype)
    array = rng.integers(-100, 100, shape).astype(torch.empty(0, dtype=dtype).numpy().dtype)
    array[rng.random(shape) < 0.1] = limits.min
    array[rng.random(shape) < 0.1] = limits.max
    return array


@pytest.mark.parametrize("keepdim", [False, True])
def test_sums(firmware: Firmware, keepdim: bool) -> None:
    for shape, dims in (*GROUPS, ((2, 3), []), ((2, 0), [1]), ((2, 0), None)):
        for kind, out in ((FLOAT, FLOAT), (INT, LONG), (CHAR, LONG), (BOOL, LONG), (LONG, LONG), (INT, FLOAT)):
            array = draw(shape, kind)
            if out == FLOAT and kind == INT:
                array = array % 50
            compare(firmware, "aten::sum.IntList_out", array, dims, keepdim, CODES[out], outs=(out,))
        compare(firmware, "aten::sum.IntList_out", draw(shape), dims, keepdim, None)
        compare(firmware, "aten::mean.out", draw(shape), dims, keepdim, None)
        compare(firmware, "aten::mean.out", draw(shape, BOOL), dims, keepdim, CODES[FLOAT])


def test_sum_of_bytes_wraps(firmware: Firmware) -> None:
    array = np.array([[100, 100], [-128, -1]], np.int8)
    compare(firmware, "aten::sum.IntList_out", array, [1], False, CODES[CHAR], outs=(CHAR,))
    largest = np.array([2**63 - 1, 1, 5])
    compare(firmware, "aten::sum.IntList_out", largest, [0], False, None, outs=(LONG,))


def test_whole_tensors(firmware: Firmware) -> None:
    for shape in ((2, 3), (), (0,)):
        compare(firmware, "aten::mean.dtype_out", draw(shape), None)
        compare(firmware, "aten::prod.out", draw(shape), None)
        compare(firmware, "aten::prod.out", draw(shape, INT), None, outs=(LONG,))
        compare(firmware, "aten::any.all_out", draw(shape), outs=(BOOL,))
        compare(firmware, "aten::any.all_out", draw(shape, BOOL), outs=(BOOL,))
    for kind in (FLOAT, INT, CHAR, LONG):
        for shape in ((2, 3), ()):
            compare(firmware, "aten::max.unary_out", draw(shape, kind), outs=(kind,))
            compare(firmware, "aten::min.unary_out", draw(shape, kind), outs=(kind,))


@pytest.mark.parametrize("keepdim", [False, True])
def test_products_and_any(firmware: Firmware, keepdim: bool) -> None:
    for shape, dim in SINGLE:
        compare(firmware, "aten::prod.int_out", draw(shape), dim, keepdim, None)
        compare(firmware, "aten::prod.int_out", draw(shape, INT), dim, keepdim, CODES[LONG], outs=(LONG,))
        compare(firmware, "aten::any.out", draw(shape), dim, keepdim, outs=(BOOL,))
        compare(firmware, "aten::any.out", draw(shape, LONG) // 90, dim, keepdim, outs=(BOOL,))
    for shape, dims in (*GROUPS, ((2, 3), []), ((2, 3), None)):
        compare(firmware, "aten::any.dims_out", draw(shape, BOOL), dims, keepdim, outs=(BOOL,))


@pytest.mark.parametrize("name", ["amax", "amin"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_extremes(firmware: Firmware, name: str, keepdim: bool) -> None:
    for shape, dims in (*GROUPS[:-2], ((2, 3), [])):
        for kind in (FLOAT, INT, CHAR, LONG, BOOL):
            compare(firmware, f"aten::{name}.out", draw(shape, kind), dims, keepdim, outs=(kind,))
    array = draw((2, 3, 4, 5))
    compare(firmware, f"aten::{name}.out", Ordered(array), [1], True, order=LAST)
    strange = np.array([[np.nan, 1, 2], [1, np.nan, 3], [np.inf, -np.inf, 0], [-0.0, 0.0, -1]], np.float32)
    compare(firmware, f"aten::{name}.out", strange, [1], keepdim)


@pytest.mark.parametrize("keepdim", [False, True])
def test_variances(firmware: Firmware, keepdim: bool) -> None:
    for shape, dims in (*GROUPS, ((2, 3), None), ((2, 1), [1]), ((2, 0), [1])):
        for unbiased in (False, True):
            compare(firmware, "aten::var.out", draw(shape), dims, unbiased, keepdim)
        for correction in (None, 0, 1, 0.5, 3):
            compare(firmware, "aten::var.correction_out", draw(shape), dims, correction, keepdim)


def test_variance_and_mean(firmware: Firmware) -> None:
    """ExecuTorch's kernel is of a later release in some installations, so torch's is the measure."""
    array = draw((2, 3, 4))
    status, ended = run(firmware, "aten::var_mean.correction_out", (array, [1], 0, True), (Spec((2, 1, 4)),) * 2)
    assert status == "OK"
    for ours, theirs in zip(ended.outputs, torch.var_mean(torch.from_numpy(array), [1], correction=0, keepdim=True)):
        check(ours, theirs.numpy(), "var_mean")


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_places_of_extremes(firmware: Firmware, name: str, keepdim: bool) -> None:
    strange = np.array([[1, np.nan, 2], [3, 3, 3], [np.nan, np.nan, 0], [-np.inf, np.inf, 0]], np.float32)
    for kind in (FLOAT, INT, CHAR, LONG):
        for shape, dim in SINGLE[:-1]:
            for given in (dim, None):
                compare(firmware, f"aten::arg{name}.out", draw(shape, kind), given, keepdim, outs=(LONG,))
            compare(firmware, f"aten::{name}.dim_{name}", draw(shape, kind), dim, keepdim, outs=(kind, LONG))
    compare(firmware, f"aten::arg{name}.out", strange, 1, keepdim, outs=(LONG,))
    compare(firmware, f"aten::{name}.dim_{name}", strange, -1, keepdim, outs=(FLOAT, LONG))


def test_topk(firmware: Firmware) -> None:
    rng = np.random.default_rng(3)
    for shape, dim in (((7,), 0), ((3, 9), -1), ((3, 9, 2), 1), ((200,), 0), ((), 0)):
        distinct = rng.permutation(int(np.prod(shape))).reshape(shape)
        size = shape[dim] if shape else 1
        for k in {0, 1, size // 2, size}:
            if k == 0 and not shape:
                continue
            for largest in (False, True):
                for kind in (FLOAT, INT, CHAR):
                    array = np.asarray(distinct, torch.empty(0, dtype=kind).numpy().dtype)
                    if kind == CHAR and array.size > 100:
                        continue
                    outs = (kind, LONG)
                    compare(firmware, "aten::topk.values", array, k, dim, largest, True, outs=outs)
    ties = np.array([2, np.nan, 1, 2, -np.inf, np.nan, 3], np.float32)
    status, ended = run(firmware, "aten::topk.values", (ties, 5, 0, True, True), (Spec((5,)), Spec((5,), LONG)))
    assert status == "OK"
    assert ended.outputs[1].tolist() == [1, 5, 6, 0, 3]
    status, _ = run(firmware, "aten::topk.values", (ties, 8, 0, True, True), (Spec((8,)), Spec((8,), LONG)))
    assert status == "BAD_SHAPE"


def test_running_sums(firmware: Firmware) -> None:
    for shape, dim in SINGLE:
        compare(firmware, "aten::cumsum.out", draw(shape), dim, None)
        for kind in (CHAR, INT, LONG, BOOL):
            compare(firmware, "aten::cumsum.out", draw(shape, kind), dim, CODES[LONG], outs=(LONG,))
        compare(firmware, "aten::cumsum.out", draw(shape, BOOL), dim, CODES[FLOAT])


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax(firmware: Firmware, name: str) -> None:
    for shape, dim in SINGLE:
        for scale in (1, 30, 1e30):
            compare(firmware, f"aten::{name}.out", draw(shape) * np.float32(scale), dim, False)
    strange = np.array([[0, -np.inf, 1], [1e38, -1e38, 3e38], [-200, 0, -50]], np.float32)
    compare(firmware, f"aten::{name}.out", strange, 1, False)
    compare(firmware, f"aten::{name}.out", draw((4, 1000)) * np.float32(5), 1, False)


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
