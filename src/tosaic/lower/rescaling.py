"""RESCALE and CLAMP of quantized values, within the bounds in which TOSA defines them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import RANGES, DType, Value
from tosaic.ir.qparams import QParams, multiplier, quantize

#: the largest factors with which RESCALE is defined for all numbers of a type
_MOST = {DType.I8: 2.0**22 * (1.0 - 2.0**-31), DType.I16: 2.0**15 * (1.0 - 2.0**-31)}


def rescale(b: Builder, value: Value, dtype: DType, factors: Sequence[float], in_zp: int = 0, out_zp: int = 0) -> Value:
    """Emit RESCALE by one factor, or by one per element of the last axis. 48-bit accumulators use 16-bit ones."""
    scale32 = value.dtype is not DType.I48
    pairs = [multiplier(_bound_factor(f, value.dtype, dtype), 31 if scale32 else 15) for f in factors]
    return tosa.rescale(
        b,
        value,
        dtype,
        multiplier=[m for m, _ in pairs],
        shift=[s for _, s in pairs],
        in_zp=in_zp,
        out_zp=out_zp,
        scale32=scale32,
        per_channel=len(pairs) > 1,
    )


def _bound_factor(factor: float, before: DType, after: DType) -> float:
    """Bound a factor to what RESCALE can apply to all numbers of a type; 8 and 16 bits saturate beyond that anyway."""
    most = _MOST.get(before, math.inf)
    if factor > most and after not in (DType.I8, DType.I16):
        raise Unsupported(f"a rescale by {factor:g} is out of range ({most:g} at most)", "check the calibration data")
    return min(factor, most)


def clamp(
    b: Builder, value: Value, q: QParams, bounds: tuple[float, float] | None = None, known: QParams | None = None
) -> Value:
    """Emit CLAMP to the range of `q` and to real bounds, if that is tighter than saturation and than a known range."""
    least, most = RANGES[q.dtype]
    low, high = q.qmin, q.qmax
    if bounds is not None:
        codes = quantize(np.asarray(bounds, np.float32), q)
        low, high = max(low, int(codes[0])), min(high, int(codes[1]))
    if known is not None and known.qmin >= low and known.qmax <= high:
        return value
    if low <= least and high >= most:
        return value
    return tosa.clamp(b, value, low, high)
