"""Arithmetic of quantization parameters: the meaning of quantized values, and TOSA multipliers for real factors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported
from tosaic.ir.graph import DType

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class QParams:
    """real = (quantized - zero_point) * scale, per tensor (axis None) or per channel along `axis`."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    dtype: DType
    qmin: int
    qmax: int
    axis: int | None = None

    @property
    def per_channel(self) -> bool:
        return self.axis is not None

    @property
    def s(self) -> float:
        """The scale of a per-tensor quantization."""
        return self.scale[0]

    @property
    def zp(self) -> int:
        return self.zero_point[0]

    def same_grid(self, other: QParams) -> bool:
        """Tell whether equal quantized values mean equal numbers."""
        return (self.scale, self.zero_point, self.dtype, self.axis) == (
            other.scale,
            other.zero_point,
            other.dtype,
            other.axis,
        )


def accumulator(scale: tuple[float, ...], axis: int | None = None) -> QParams:
    """Return the qparams of an int32 accumulator: no zero point, the product of its operands' scales."""
    return QParams(scale, (0,) * len(scale), DType.I32, -(2**31), 2**31 - 1, axis)


def multiplier(factor: float, bits: int = 31) -> tuple[int, int]:
    """Compute TOSA's (multiplier, shift) for a positive real factor: factor ~ multiplier * 2**-shift."""
    if not (factor > 0.0 and math.isfinite(factor)):
        raise Unsupported(f"a rescale by {factor} is not possible", "calibrate with data that leads to finite scales")
    mantissa, exponent = math.frexp(factor)
    number = round(mantissa * (1 << bits))
    if number == 1 << bits:
        number, exponent = number >> 1, exponent + 1
    shift = bits - exponent
    if shift < 2:
        raise Unsupported(f"a rescale by {factor:g} is out of range (2**29 at most)", "check the calibration data")
    if shift > 62:
        number, shift = number >> min(shift - 62, bits), 62
    return number, shift


def along(values: tuple[float, ...] | tuple[int, ...], axis: int | None, rank: int) -> Reals:
    """Shape per-channel numbers so that they broadcast along `axis`."""
    shape = [1] * rank
    if axis is not None:
        shape[axis] = len(values)
    return np.asarray(values, np.float64).reshape(shape) if rank else np.asarray(values[0], np.float64)


def dequantize(codes: npt.NDArray[np.generic], q: QParams) -> Reals:
    """Compute the real numbers of quantized values."""
    zero, scale = along(q.zero_point, q.axis, codes.ndim), along(q.scale, q.axis, codes.ndim)
    return (codes.astype(np.float64) - zero) * scale


def quantize(reals: npt.NDArray[np.generic], q: QParams) -> npt.NDArray[np.int64]:
    """Quantize real numbers in float32 as torch's quantize_per_tensor does (half to even, then clip)."""
    scale = along(q.scale, q.axis, reals.ndim).astype(np.float32)
    zero = along(q.zero_point, q.axis, reals.ndim)
    inverse = np.float32(1.0) / scale
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.rint(reals.astype(np.float32) * inverse).astype(np.float64)
    return np.clip(np.nan_to_num(steps, nan=0.0, posinf=1e18, neginf=-1e18) + zero, q.qmin, q.qmax).astype(np.int64)
