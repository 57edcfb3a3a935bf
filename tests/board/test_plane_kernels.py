"""Kernels over planes and matrices, against ExecuTorch's own."""

from __future__ import annotations

import numpy as np
import pytest

from support.firmware import GCC, Firmware
from support.handmade import Spec
from support.kernel_calls import CHAR, FLOAT, INT, LAST, LONG, NUMPY, Comparison, Ordered, draw, run

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
CONVOLUTION = "aten::convolution.out"


def test_convolutions(firmware: Firmware) -> None:
    """Input, weight, stride, padding, dilation, groups; in two dimensions and in one."""
    calls = Comparison()
    for x, w, stride, padding, dilation, groups in (
        ((1, 3, 8, 8), (4, 3, 3, 3), [1, 1], [0, 0], [1, 1], 1),
        ((3, 4, 7, 5), (6, 2, 3, 2), [2, 1], [1, 1], [1, 2], 2),
        ((1, 17, 6, 6), (17, 1, 3, 3), [1, 2], [1, 1], [1, 1], 17),
        ((2, 4, 5, 5), (8, 1, 1, 1), [3, 3], [0, 0], [1, 1], 4),
        ((1, 2, 3, 3), (1, 2, 3, 3), [1, 1], [1, 0], [1, 1], 1),
        ((0, 2, 3, 3), (1, 2, 2, 2), [1, 1], [0, 0], [1, 1], 1),
        ((2, 3, 10), (4, 3, 3), [2], [1], [2], 1),
        ((1, 4, 9), (4, 1, 5), [1], [2], [1], 4),
    ):
        for bias in (None, draw((w[0],))):
            calls.add(CONVOLUTION, draw(x), draw(w), bias, stride, padding, dilation, False, [0], groups)
    calls.check(firmware)


def test_transposed_convolutions(firmware: Firmware) -> None:
    calls = Comparison()
    for x, w, stride, padding, dilation, extra, groups in (
        ((1, 3, 4, 4), (3, 2, 3, 3), [1, 1], [0, 0], [1, 1], [0, 0], 1),
        ((2, 4, 3, 5), (4, 3, 2, 3), [2, 3], [1, 1], [1, 1], [1, 0], 2),
        ((1, 4, 3, 3), (4, 1, 3, 3), [2, 2], [1, 1], [2, 1], [1, 1], 4),
        ((1, 3, 6), (3, 2, 4), [2], [1], [1], [1], 1),
    ):
        for bias in (None, draw((w[1] * groups,))):
            calls.add(CONVOLUTION, draw(x), draw(w), bias, stride, padding, dilation, True, extra, groups)
    calls.check(firmware)


def test_channels_last(firmware: Firmware) -> None:
    calls = Comparison()
    x, w = Ordered(draw((2, 3, 6, 5))), Ordered(draw((4, 3, 3, 2)))
    calls.add(CONVOLUTION, x, w, draw((4,)), [1, 2], [1, 1], [1, 1], False, [0, 0], 1, order=LAST)
    calls.add(CONVOLUTION, x, draw((3, 2, 2, 2)), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1, order=LAST)
    outs = (FLOAT, LONG)
    calls.add("aten::max_pool2d_with_indices.out", x, [2, 3], [], [0, 1], [1, 1], False, outs=outs, order=LAST)
    for size, scales in (([3, 9], None), (None, [2.5, 0.7])):
        calls.add("aten::upsample_nearest2d.vec_out", x, size, scales, order=LAST)
        calls.add("aten::upsample_bilinear2d.vec_out", x, size, False, scales, order=LAST)
    calls.check(firmware)


def test_convolutions_of_other_ranks_and_types(firmware: Firmware) -> None:
    """Three dimensions, which ExecuTorch's kernel does not have; integers, which its builds round differently."""
    calls = Comparison()
    x, w = draw((2, 4, 4, 5, 6)), draw((6, 2, 2, 3, 3))
    calls.add(CONVOLUTION, x, w, draw((6,)), [1, 2, 1], [1, 0, 1], [1, 1, 2], False, [0, 0, 0], 2)
    w = draw((4, 3, 2, 3, 3))
    calls.add(CONVOLUTION, x, w, None, [2, 1, 1], [0, 1, 0], [1, 1, 1], True, [1, 0, 0], 2)
    calls.check(firmware, against_torch=True)


def test_convolution_of_integers(firmware: Firmware) -> None:
    calls = Comparison()
    for kind in (CHAR, INT, LONG):
        x, w = draw((1, 2, 5, 5), kind) % 100, draw((3, 2, 3, 3), kind) % 50
        calls.add(CONVOLUTION, x, w, draw((3,), kind), [1, 1], [1, 1], [1, 1], False, [0, 0], 1, outs=(kind,))
    calls.check(firmware)


def test_average_pools(firmware: Firmware) -> None:
    """Input, window, stride, padding, whether sizes are rounded up."""
    calls = Comparison()
    for shape, size, stride, padding, ceil in (
        ((1, 3, 8, 8), [2, 2], [2, 2], [0, 0], False),
        ((3, 17, 7, 5), [3, 2], [2, 1], [1, 1], False),
        ((2, 7, 9), [3], [], [1], True),
        ((1, 1, 6, 7), [4, 3], [3, 3], [2, 1], True),
        ((0, 3, 4, 4), [2, 2], [], [0, 0], False),
    ):
        for counts_padding in (False, True):
            for divisor in (None, 5, -3):
                for kind in (FLOAT, LONG):
                    array = draw(shape, kind) % 1000 if kind == LONG else draw(shape)
                    args = (size, stride, padding, ceil, counts_padding, divisor)
                    calls.add("aten::avg_pool2d.out", array, *args, outs=(kind,))
    calls.check(firmware)


def test_maximum_pools(firmware: Firmware) -> None:
    calls = Comparison()
    for shape, size, stride, padding, dilation, ceil in (
        ((1, 3, 8, 8), [2, 2], [2, 2], [0, 0], [1, 1], False),
        ((3, 17, 7, 5), [3, 2], [2, 1], [1, 1], [1, 2], False),
        ((2, 7, 9), [3], [], [1], [2], True),
        ((1, 1, 6, 7), [4, 3], [3, 3], [2, 1], [1, 1], True),
    ):
        for kind in (FLOAT, CHAR, INT, LONG):
            args = (size, stride, padding, dilation, ceil)
            calls.add("aten::max_pool2d_with_indices.out", draw(shape, kind), *args, outs=(kind, LONG))
    calls.check(firmware)


def test_adaptive_pools(firmware: Firmware) -> None:
    calls = Comparison()
    for shape, size in (((2, 3, 7, 5), [1, 1]), ((1, 3, 7, 5), [3, 2]), ((3, 8, 8), [4, 4]), ((1, 2, 2, 3), [5, 7])):
        calls.add("aten::_adaptive_avg_pool2d.out", draw(shape), size)
    calls.check(firmware)


def test_products(firmware: Firmware) -> None:
    calls = Comparison()
    for rows, shared, columns in ((1, 1, 1), (3, 5, 4), (2, 64, 17), (0, 3, 2), (2, 0, 3)):
        for kind in (FLOAT, INT, LONG, CHAR):
            a, b = draw((rows, shared), kind), draw((shared, columns), kind, 1)
            calls.add("aten::mm.out", a, b, outs=(kind,))
            calls.add("aten::bmm.out", np.stack([a, a + a]), np.stack([b, b]), outs=(kind,))
            for shape in ((rows, columns), (columns,), (1, columns), (rows, 1), ()):
                calls.add("aten::addmm.out", draw(shape, kind, 2), a, b, 2, -3, outs=(kind,))
        calls.add("aten::addmm.out", draw((columns,)), draw((rows, shared)), draw((shared, columns)), 0.5, 1.25)
    calls.check(firmware)


def test_linear(firmware: Firmware) -> None:
    calls = Comparison()
    for shape in ((3, 5), (2, 3, 5), (1, 2, 2, 5), (0, 5)):
        for bias in (None, draw((4,))):
            calls.add("aten::linear.out", draw(shape), draw((4, 5)), bias)
    calls.check(firmware)


def test_norms(firmware: Firmware) -> None:
    calls = Comparison()
    outs = (FLOAT,) * 3
    for shape, count in (((4, 6), 1), ((2, 3, 5), 2), ((7,), 1), ((1, 2, 3, 4), 3), ((0, 4), 1)):
        normal = list(shape[-count:])
        for weight, bias in (
            (None, None),
            (draw(tuple(normal)), draw(tuple(normal), seed=1)),
            (draw(tuple(normal)), None),
        ):
            calls.add("aten::native_layer_norm.out", draw(shape), normal, weight, bias, 1e-5, outs=outs)
    for shape, groups in (((2, 6, 3, 3), 3), ((1, 4, 5), 1), ((3, 17, 2, 2), 17), ((2, 4), 2)):
        size, channels, area = shape[0], shape[1], int(np.prod(shape[2:]))
        for weight, bias in ((None, None), (draw((channels,)), draw((channels,), seed=1))):
            args = (weight, bias, size, channels, area, groups, 1e-3)
            calls.add("aten::native_group_norm.out", draw(shape), *args, outs=outs)
    for shape in ((2, 3, 4, 4), (4, 5), (1, 17, 3)):
        mean, variance = draw((shape[1],)), np.abs(draw((shape[1],), seed=1))
        for weight, bias in ((None, None), (draw((shape[1],)), draw((shape[1],), seed=2))):
            args = (weight, bias, mean, variance, 0.1, 1e-5)
            calls.add("aten::_native_batch_norm_legit_no_training.out", draw(shape), *args, outs=outs)
            args = (weight, bias, True, 0.1, 1e-5)
            calls.add("aten::_native_batch_norm_legit.no_stats_out", draw(shape), *args, outs=outs)
    calls.check(firmware)


def test_resizing(firmware: Firmware) -> None:
    calls = Comparison()
    sizes = ([10, 14], [3, 4], [5, 7], [1, 1], None, None)
    scales = (None, None, None, None, [2.0, 3.0], [1.7, 1.3])
    for shape in ((1, 2, 5, 7), (2, 3, 1, 4)):
        for size, scale in zip(sizes, scales, strict=True):
            calls.add("aten::upsample_nearest2d.vec_out", draw(shape), size, scale)
            for align in (False, True):
                calls.add("aten::upsample_bilinear2d.vec_out", draw(shape), size, align, scale)
    calls.check(firmware)


def test_resizing_of_integers(firmware: Firmware) -> None:
    """Torch does not have it; elements are copied, whatever they are."""
    results: list[list[float]] = []
    for kind in (FLOAT, CHAR, INT, LONG):
        array = np.arange(35).reshape(1, 1, 5, 7).astype(NUMPY[kind])
        status, ended = run(
            firmware, "aten::upsample_nearest2d.vec_out", (array, [8, 3], None), (Spec((1, 1, 8, 3), kind),)
        )
        assert status == "OK"
        results.append(ended.outputs[0].tolist())
    assert results[1:] == results[:1] * 3


def test_grids(firmware: Firmware) -> None:
    """Bilinear, nearest and bicubic; zeros, the border or a reflection outside."""
    calls = Comparison()
    grid = draw((2, 3, 4, 2), seed=1)
    grid[0, 0] = [[-1, -1], [1, 1], [-3.5, 2.25], [40, -1000]]
    for shape in ((2, 3, 5, 4), (2, 1, 1, 1)):
        for mode in range(3):
            for padding in range(3):
                for align in (False, True):
                    calls.add("aten::grid_sampler_2d.out", draw(shape), grid, mode, padding, align)
    calls.check(firmware)


def test_distances(firmware: Firmware) -> None:
    calls = Comparison()
    for p in (0.0, 1.0, 2.0, 3.0, 0.5, float("inf")):
        for a, b in (((3, 5), (4, 5)), ((2, 3, 5), (2, 1, 5)), ((3, 5), (2, 2, 5)), ((2, 1, 3, 2), (1, 2, 2, 2))):
            calls.add("aten::_cdist_forward.out", draw(a), draw(b, seed=1), p, None)
        calls.add("aten::_cdist_forward.out", draw((2, 0)), draw((3, 0)), p, 1)
        calls.add("aten::_cdist_forward.out", draw((0, 2)), draw((3, 2)), p, 2)
    calls.check(firmware)


def test_shuffles(firmware: Firmware) -> None:
    calls = Comparison()
    for kind in (FLOAT, CHAR, LONG):
        for shape, factor in (((1, 8, 2, 3), 2), ((9, 2, 1), 3), ((2, 3, 16, 1, 2), 4), ((2, 3, 4), 1)):
            calls.add("aten::pixel_shuffle.out", draw(shape, kind), factor, outs=(kind,))
        for shape, factor in (((1, 2, 4, 6), 2), ((1, 6, 3), 3), ((2, 3, 4), 1)):
            calls.add("aten::pixel_unshuffle.out", draw(shape, kind), factor, outs=(kind,))
    calls.check(firmware)


def test_refusals(firmware: Firmware) -> None:
    x, w = draw((1, 2, 4, 4)), draw((2, 2, 3, 3))
    rest = (False, [0, 0], 1)
    big = 2**31 - 1
    for operator, args, outs, status in (
        (CONVOLUTION, (x, w, None, [0, 1], [0, 0], [1, 1], *rest), (Spec((1, 2, 2, 2)),), "BAD_SHAPE"),
        (CONVOLUTION, (x, w, None, [1, 1], [-1, 0], [1, 1], *rest), (Spec((1, 2, 2, 2)),), "BAD_SHAPE"),
        (CONVOLUTION, (x, w, None, [1, 1], [big, big], [1, 1], *rest), (Spec((1, 2, 2, 2)),), "BAD_SHAPE"),
        (CONVOLUTION, (x, w, None, [1, 1], [0, 0], [big, 2**40], *rest), (Spec((1, 2, 2, 2)),), "BAD_SHAPE"),
        (CONVOLUTION, (x, w, None, [1, 1], [0, 0], [1, 1], False, [0], 0), (Spec((1, 2, 2, 2)),), "BAD_SHAPE"),
        (CONVOLUTION, (x, w, None, [1, 1], [0, 0], [1, 1], False, [0], 2), (Spec((1, 2, 2, 2)),), "BAD_SHAPE"),
        (CONVOLUTION, (x, w, draw((3,)), [1, 1], [0, 0], [1, 1], *rest), (Spec((1, 2, 2, 2)),), "BAD_SHAPE"),
        (CONVOLUTION, (x, w, None, [1, 1], [0, 0], [1, 1], *rest), (Spec((1, 2, 2, 3)),), "BAD_SHAPE"),
        (CONVOLUTION, (x, w, None, [1, 1], [0, 0], [1, 1], *rest), (Spec((1, 2, 2, 2), INT),), "BAD_TYPE"),
        (CONVOLUTION, (x, w, None, [big, 1], [0, 0], [1, 1], True, [big, 0], 1), (Spec((1, 2, 6, 6)),), "BAD_SHAPE"),
        ("aten::avg_pool2d.out", (x, [2, 2], [2, 2], [2, 0], False, True, None), (Spec((1, 2, 2, 2)),), "BAD_SHAPE"),
        ("aten::avg_pool2d.out", (x, [2, 2], [2, 2], [0, 0], False, True, 0), (Spec((1, 2, 2, 2)),), "BAD_SHAPE"),
        ("aten::avg_pool2d.out", (x, [], [2, 2], [0, 0], False, True, 1), (Spec((1, 2, 2, 2)),), "BAD_SHAPE"),
        ("aten::mm.out", (draw((2, 3)), draw((2, 3))), (Spec((2, 3)),), "BAD_SHAPE"),
        ("aten::mm.out", (draw((2, 3)), draw((3, 2), INT)), (Spec((2, 2)),), "BAD_TYPE"),
        ("aten::addmm.out", (draw((3,)), draw((2, 3)), draw((3, 2)), 1, 1), (Spec((2, 2)),), "BAD_SHAPE"),
        ("aten::linear.out", (draw((2, 3)), draw((4, 2)), None), (Spec((2, 4)),), "BAD_SHAPE"),
        (
            "aten::native_layer_norm.out",
            (draw((2, 3)), [2], None, None, 1e-5),
            (Spec((2, 3)), Spec((2, 1)), Spec((2, 1))),
            "BAD_SHAPE",
        ),
        (
            "aten::native_layer_norm.out",
            (draw((2, 3)), [3], draw((2,)), None, 1e-5),
            (Spec((2, 3)), Spec((2, 1)), Spec((2, 1))),
            "BAD_SHAPE",
        ),
        (
            "aten::native_group_norm.out",
            (draw((2, 4)), None, None, 2, 4, 1, 3, 1e-5),
            (Spec((2, 4)), Spec((2, 3)), Spec((2, 3))),
            "BAD_SHAPE",
        ),
        ("aten::upsample_nearest2d.vec_out", (x, None, None), (Spec((1, 2, 4, 4)),), "BAD_SHAPE"),
        ("aten::upsample_nearest2d.vec_out", (x, [0, 1], None), (Spec((1, 2, 4, 4)),), "BAD_SHAPE"),
        ("aten::upsample_nearest2d.vec_out", (x, None, [float("nan"), 1.0]), (Spec((1, 2, 4, 4)),), "BAD_SHAPE"),
        ("aten::upsample_nearest2d.vec_out", (x, None, [1e30, 1.0]), (Spec((1, 2, 4, 4)),), "BAD_SHAPE"),
        ("aten::pixel_shuffle.out", (x, 2), (Spec((1, 2, 4, 4)),), "BAD_SHAPE"),
        ("aten::pixel_shuffle.out", (x, 0), (Spec((1, 2, 4, 4)),), "BAD_SHAPE"),
    ):
        assert run(firmware, operator, args, outs)[0] == status, (operator, args)
