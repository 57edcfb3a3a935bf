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


FACTORS = [2.0**-20, 0.0123456, 0.1, 1 / 3, 0.5, 0.999999999, 1 - 2.0**-40, 1.0, 1.5, 3.7, 7.7, 1000.1, 2.0**12 + 0.3]


@pytest.mark.parametrize("bits", [15, 31])
@pytest.mark.parametrize("factor", FACTORS)
def test_multiplier_is_the_nearest(factor: float, bits: int) -> None:
    number, shift = multiplier(factor, bits)
    assert 1 << (bits - 1) <= number < 1 << bits
    assert 2 <= shift <= 62
    assert abs(number * 2.0**-shift - factor) <= 2.0 ** -(shift + 1)


def test_multiplier_loses_bits_only_below_the_largest_shift() -> None:
    assert multiplier(2.0**-40) == (1 << 22, 62)
    assert multiplier(2.0**-50) == (1 << 12, 62)
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


def test_quantize_rounds_half_to_even_and_clips() -> None:
    q = QParams((0.5,), (10,), DType.I8, -100, 100)
    reals = np.float32([0.25, 0.75, 1.25, -0.25, -0.75, 1e9, -1e9, np.inf, -np.inf])
    assert quantize(reals, q).tolist() == [10, 12, 12, 10, 8, 100, -100, 100, -100]


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
