"""Kernels that choose elements by indices and masks, against ExecuTorch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from support.firmware import GCC, Firmware
from support.handmade import Optionals, Same, Spec, Step, make_program
from support.kernel_calls import BOOL, CHAR, FLOAT, INT, LONG, Comparison, draw, find_difference, run

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
KINDS = (FLOAT, CHAR, INT, LONG, BOOL)


def pick(shape: tuple[int, ...], size: int, dtype: Any = np.int64) -> Any:
    """Indices below a size."""
    return np.asarray(np.random.default_rng(5).integers(0, size, shape), dtype)


def test_rows(firmware: Firmware) -> None:
    calls = Comparison()
    for kind in KINDS:
        for shape, dim in (((5,), 0), ((2, 5, 3), 1), ((2, 3, 5), -1), ((0, 5), 1)):
            for index in (pick((4,), 5), pick((3,), 5, np.int32), pick((), 5), pick((0,), 5)):
                calls.add("aten::index_select.out", draw(shape, kind), dim, index, outs=(kind,))
        for index in (pick((3,), 5), pick((2, 3), 5, np.int32), pick((0,), 5)):
            calls.add("aten::embedding.out", draw((5, 4), kind), index, -1, False, False, outs=(kind,))
    calls.check(firmware)


def test_elements(firmware: Firmware) -> None:
    calls = Comparison()
    for kind in KINDS:
        for shape, index, dim in (
            ((5,), (3,), 0),
            ((4, 5, 3), (2, 7, 3), 1),
            ((4, 3, 5), (4, 3, 1), -1),
            ((5, 2), (0, 2), 0),
        ):
            where = pick(index, 5)
            calls.add("aten::gather.out", draw(shape, kind), dim, where, False, outs=(kind,))
            # Elements that are put at one place more than once: the last one stays.
            source = draw(index, kind, 1)
            calls.add("aten::scatter.src_out", draw(shape, kind), dim, where, source, outs=(kind,))
            calls.add("aten::scatter.value_out", draw(shape, kind), dim, where, 1, outs=(kind,))
            if kind != BOOL:
                calls.add("aten::scatter_add.out", draw(shape, kind), dim, where, source, outs=(kind,))
        calls.add("aten::scatter.value_out", draw((5, 2)), 0, pick((3, 2), 5), 2.5)
    calls.check(firmware)


def test_advanced_indices(firmware: Firmware) -> None:
    """Indices of x[2, 4, 3, 5], for reading and for writing."""
    x = draw((2, 4, 3, 5))
    mask = draw((4, 3), BOOL, 3)
    two, four, three = pick((3,), 2) - 2, pick((3,), 4), pick((2, 1), 3, np.int32)
    one = np.zeros((4,), bool)
    one[2] = True
    calls = Comparison()
    for items in (
        [None, four],
        [two],
        [two, four],
        [None, four, three],
        [four % 2, None, three],
        [None, None, pick((), 3), pick((2, 3), 5)],
        [None, mask],
        [two % 2, None, None, four],
        [None, one, three],
        [None, np.zeros((4, 3), bool)],
        [None, None, None, pick((0,), 5)],
        [mask[:2, 0].copy(), None],
    ):
        indices = Optionals(items)
        calls.add("aten::index.Tensor_out", x, indices)
        shape = torch.from_numpy(x)[tuple(slice(None) if i is None else torch.from_numpy(i) for i in indices)].shape
        for size in {tuple(shape), tuple(shape[-1:]), ()}:
            calls.add("aten::index_put.out", x, indices, draw(size, seed=4), True)
        values = np.asarray(np.full((), 7), np.float32)
        calls.add("aten::index_put.out", x, indices, values, False)
    for kind in (CHAR, LONG, INT):
        pair = Optionals([pick((2, 2), 4), pick((2,), 3)])
        calls.add("aten::index.Tensor_out", draw((4, 3), kind), pair, outs=(kind,))
        args = (pair, draw((2, 1), kind, 1), True)
        calls.add("aten::index_put.out", draw((4, 3), kind), *args, outs=(kind,))
    calls.check(firmware)


def test_in_place(firmware: Firmware) -> None:
    """The tensor that is written is the program's input."""
    x, index, values = draw((4, 3)), pick((2,), 4), draw((2, 3), seed=1)
    for adds in (False, True):
        args = (Spec((4, 3)), Optionals([Spec((2,), LONG)]), Spec((2, 3)), adds)
        data = make_program(Step("aten::index_put_", "", args, (Same(0),)))
        ended = firmware.run(data, [x, index, values])
        expected = torch.from_numpy(x).index_put([torch.from_numpy(index)], torch.from_numpy(values), adds)
        assert find_difference(ended.outputs[0], expected.numpy()) == "", adds


def test_masks(firmware: Firmware) -> None:
    calls = Comparison()
    for kind in KINDS:
        for shape in ((3, 4), (2, 4, 3), (1, 1), (0, 3)):
            for diagonal in (0, 1, -2, 2**62, -(2**62)):
                calls.add("aten::tril.out", draw(shape, kind), diagonal, outs=(kind,))
        mask = draw((3, 4), BOOL, 3)
        calls.add("aten::masked_scatter.out", draw((3, 4), kind), mask, draw((12,), kind, 1), outs=(kind,))
        calls.add("aten::masked_scatter.out", draw((2, 3, 1), kind), mask, draw((5, 5), kind, 1), outs=(kind,))
    calls.check(firmware)


def test_results_of_any_size(firmware: Firmware) -> None:
    for kind in KINDS:
        for array in (draw((3, 4), kind) * draw((3, 4), BOOL), draw((0, 2), kind), np.asarray(draw((), kind))):
            found = np.argwhere(array)
            out = Spec((found.shape[0], array.ndim), LONG)
            status, ended = run(firmware, "aten::nonzero.out", (array,), (out,))
            assert status == "OK"
            assert find_difference(ended.outputs[0].reshape(found.shape), found) == "", array
    for dtype, kind in ((np.int32, INT), (np.int64, LONG)):
        repeats = np.array([2, 0, 3, 1], dtype)
        for size in (None, 6):
            status, ended = run(firmware, "aten::repeat_interleave.Tensor_out", (repeats, size), (Spec((6,), kind),))
            assert status == "OK"
            assert ended.outputs[0].tolist() == [0, 0, 2, 2, 2, 3]


def test_indices_outside(firmware: Firmware) -> None:
    x = draw((4, 3))
    for wrong in (4, -5, 2**31, 2**32, 2**62, -(2**63)):
        bad = np.array([1, wrong])
        table = np.array([[0, wrong, 1]])
        for operator, args, outs in (
            ("aten::index_select.out", (x, 0, bad), (Spec((2, 3)),)),
            ("aten::embedding.out", (x, bad, -1, False, False), (Spec((2, 3)),)),
            ("aten::gather.out", (x, 0, table, False), (Spec((1, 3)),)),
            ("aten::scatter.src_out", (x, 0, table, x), (Spec((4, 3)),)),
            ("aten::scatter.value_out", (x, 0, table, 1), (Spec((4, 3)),)),
            ("aten::scatter_add.out", (x, 0, table, x), (Spec((4, 3)),)),
            ("aten::index.Tensor_out", (x, [bad]), (Spec((2, 3)),)),
            ("aten::index_put.out", (x, [bad], draw((3,)), False), (Spec((4, 3)),)),
        ):
            assert run(firmware, operator, args, outs)[0] == "BAD_INDEX", (operator, wrong)


def test_refusals(firmware: Firmware) -> None:
    x, index = draw((4, 3)), np.array([1, 2])
    mask = np.ones((3, 4), bool)
    for operator, args, outs, status in (
        ("aten::index_select.out", (x, 2, index), (Spec((2, 3)),), "BAD_SHAPE"),
        ("aten::index_select.out", (x, 0, x), (Spec((2, 3)),), "BAD_TYPE"),
        ("aten::embedding.out", (x, index, -1, False, False), (Spec((2, 4)),), "BAD_SHAPE"),
        ("aten::gather.out", (x, 0, index, False), (Spec((2,)),), "BAD_SHAPE"),
        ("aten::gather.out", (x, 0, np.zeros((1, 4), np.int64), False), (Spec((1, 4)),), "BAD_SHAPE"),
        ("aten::scatter.src_out", (x, 0, np.zeros((2, 3), np.int64), x[:1]), (Spec((4, 3)),), "BAD_SHAPE"),
        ("aten::index.Tensor_out", (x, [index, index, index]), (Spec((2,)),), "BAD_SHAPE"),
        ("aten::index.Tensor_out", (x, [index, np.array([0, 1, 2])]), (Spec((2,)),), "BAD_SHAPE"),
        ("aten::index.Tensor_out", (x, [mask]), (Spec((12,)),), "BAD_SHAPE"),
        ("aten::index.Tensor_out", (x, [x]), (Spec((4, 3, 3)),), "BAD_TYPE"),
        ("aten::index_put.out", (x, [index], draw((4,)), False), (Spec((4, 3)),), "BAD_SHAPE"),
        ("aten::masked_scatter.out", (x, np.ones((4, 3), bool), draw((11,))), (Spec((4, 3)),), "BAD_SHAPE"),
        ("aten::repeat_interleave.Tensor_out", (np.array([2**62, 2**62]), None), (Spec((2,), LONG),), "BAD_INDEX"),
        ("aten::repeat_interleave.Tensor_out", (np.array([2, -1]), None), (Spec((1,), LONG),), "BAD_INDEX"),
        ("aten::repeat_interleave.Tensor_out", (np.array([2, 1]), 4), (Spec((4,), LONG),), "BAD_SHAPE"),
        ("aten::nonzero.out", (x,), (Spec((3, 2), LONG),), "BAD_SHAPE"),
        ("aten::tril.out", (draw((3,)), 0), (Spec((3,)),), "BAD_SHAPE"),
    ):
        assert run(firmware, operator, args, outs)[0] == status, (operator, args)
