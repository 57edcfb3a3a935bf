"""Whole numbers near 16-bit quantized values, in 32 bits: a table that is interpolated does not have their steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType, Value
from tosaic.ir.qparams import accumulator, multiplier
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Stored, with_value

#: what roundings must fulfill
SENTENCE = "a rounding of 16-bit values gives the same whole numbers in 32 bits as in float32"
#: how many bits of a number are tried in turn; float32 has 24
_BITS = (24, 26, 22, 28, 20)


def round_down(lo: Lowering, x: Stored) -> Stored:
    """Return the largest whole numbers that are not larger."""
    value, bits = _fix_point(lo, x, np.floor)
    return _whole(x, _floor(lo, value, bits))


def round_up(lo: Lowering, x: Stored) -> Stored:
    """Return the smallest whole numbers that are not smaller."""
    value, bits = _fix_point(lo, x, np.ceil)
    return _whole(x, _ceil(lo, value, bits))


def round_to_zero(lo: Lowering, x: Stored) -> Stored:
    """Return numbers without their fractions."""
    return _whole(x, _trunc(lo, *_fix_point(lo, x, np.trunc)))


def round_to_even(lo: Lowering, x: Stored, parts: float = 1.0) -> Stored:
    """Return the nearest whole numbers, or multiples of a part of one; the even ones of two."""
    value, bits = _fix_point(lo, x, np.rint, parts)
    half = 1 << (bits - 1)
    # They differ only at a half, where one of them is even.
    up, down = _floor(lo, _add(lo, value, half), bits), _ceil(lo, _add(lo, value, -half), bits)
    even = tosa.mul(lo.b, _floor(lo, up, 1), lo.b.number(2, up, DType.I32))
    return with_value(x, tosa.maximum(lo.b, down, even), accumulator((1.0 / parts,)))


def take_fraction(lo: Lowering, x: Stored) -> Stored:
    """Return what is left of numbers without their whole part."""
    value, bits = _fix_point(lo, x, np.trunc)
    whole = tosa.mul(lo.b, _trunc(lo, value, bits), lo.b.number(1 << bits, value, DType.I32))
    return with_value(x, tosa.sub(lo.b, value, whole), accumulator((2.0**-bits,)))


def _whole(x: Stored, value: Value) -> Stored:
    return with_value(x, value, accumulator((1.0,)))


def _fix_point(
    lo: Lowering,
    x: Stored,
    function: Callable[[npt.NDArray[np.floating[Any]]], npt.NDArray[np.floating[Any]]],
    parts: float = 1.0,
) -> tuple[Value, int]:
    """Multiply numbers by a power of two and round them to int32, so that a function is what it is of the numbers."""
    q = lo.require_quantized(x).qparams
    codes = np.arange(q.qmin, q.qmax + 1) - q.zp
    wanted = function(codes.astype(np.float32) * np.float32(q.s) * np.float32(parts))
    for total in _BITS:
        bits = total - math.ceil(math.log2(q.s * parts) + 15)
        factor = q.s * parts * 2.0**bits
        if 1 <= bits <= 30 and np.array_equal(function(_rescale(codes, factor) / 2.0**bits), wanted):
            return lo.rescale(x.value, DType.I32, [factor], q.zp), bits
    raise Unsupported(f"{SENTENCE}; here the scale is {q.s:g}", "quantize this part of the model to int8")


def _rescale(codes: npt.NDArray[np.int64], factor: float) -> npt.NDArray[np.int64]:
    number, shift = multiplier(factor)
    return (codes * number + (1 << (shift - 1))) >> shift


def _add(lo: Lowering, value: Value, number: int) -> Value:
    return tosa.add(lo.b, value, lo.b.number(number, value, DType.I32))


def _floor(lo: Lowering, value: Value, bits: int) -> Value:
    """Divide by a power of two and round down; RESCALE rounds a half up."""
    return lo.rescale(_add(lo, value, -(1 << (bits - 1))), DType.I32, [2.0**-bits])


def _ceil(lo: Lowering, value: Value, bits: int) -> Value:
    return lo.rescale(_add(lo, value, (1 << (bits - 1)) - 1), DType.I32, [2.0**-bits])


def _trunc(lo: Lowering, value: Value, bits: int) -> Value:
    zero = lo.b.number(0, value, DType.I32)
    below = _ceil(lo, tosa.minimum(lo.b, value, zero), bits)
    return tosa.add(lo.b, _floor(lo, tosa.maximum(lo.b, value, zero), bits), below)
