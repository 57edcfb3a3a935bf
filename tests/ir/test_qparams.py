"""Quantized arithmetic: the integers of a rescale, and quantized values as torch computes them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tosaic.core.errors import Unsupported
from tosaic.ir.graph import DType
from tosaic.ir.qparams import QParams, accumulator, dequantize, multiplier, quantize

I8 = QParams((0.05,), (-3,), DType.I8, -128, 127)
CHANNELS = QParams((0.5, 0.25, 2.0), (0, 0, 0), DType.I8, -127, 127, axis=1)


@pytest.mark.parametrize("bits", [15, 31])
@pytest.mark.parametrize("factor", [2.0**-20, 0.1, 0.5, 1 / 3, 0.999999999, 1.0, 1.5, 3.7, 1000.1])
def test_multiplier_is_as_exact_as_its_bits(factor: float, bits: int) -> None:
    number, shift = multiplier(factor, bits)
    assert 1 << (bits - 1) <= number < 1 << bits
    assert 2 <= shift <= 62
    assert math.isclose(number * 2.0**-shift, factor, rel_tol=2.0**-bits)


def test_multiplier_loses_bits_only_below_the_largest_shift() -> None:
    number, shift = multiplier(2.0**-40)
    assert (number, shift) == (1 << 22, 62)
    assert multiplier(2.0**-70) == (0, 62)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.inf, math.nan, 2.0**30])
def test_factors_without_a_multiplier(factor: float) -> None:
    with pytest.raises(Unsupported):
        multiplier(factor)


def test_quantize_is_that_of_torch() -> None:
    reals = np.concatenate([np.linspace(-9, 9, 1001), (np.arange(-300, 300) + 0.5) * 0.05]).astype(np.float32)
    theirs = torch.ops.quantized_decomposed.quantize_per_tensor(
        torch.from_numpy(reals), I8.s, I8.zp, I8.qmin, I8.qmax, torch.int8
    )
    assert np.array_equal(quantize(reals, I8), theirs.numpy())


def test_numbers_that_no_type_has() -> None:
    reals = np.array([np.nan, np.inf, -np.inf, 1e30], np.float32)
    assert quantize(reals, I8).tolist() == [-3, 127, -128, 127]


def test_every_quantized_value_comes_back() -> None:
    codes = np.arange(-128, 128)
    assert np.array_equal(quantize(dequantize(codes, I8), I8), codes)


def test_channels_have_scales_of_their_own() -> None:
    codes = np.array([[1, 1, 1], [-2, -2, -2]])
    reals = dequantize(codes, CHANNELS)
    assert reals.tolist() == [[0.5, 0.25, 2.0], [-1.0, -0.5, -4.0]]
    assert np.array_equal(quantize(reals, CHANNELS), codes)


def test_an_accumulator_has_no_zero_point() -> None:
    q = accumulator((0.5, 0.25), axis=0)
    assert (q.dtype, q.zero_point, q.axis) == (DType.I32, (0, 0), 0)
