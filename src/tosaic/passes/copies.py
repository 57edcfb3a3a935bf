"""A copy of a value, by an operator that Vela neither removes nor fuses with what reads it."""

from __future__ import annotations

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import RANGES, DType, Value

_IDENTITY = np.arange(-128, 128, dtype=np.int8)


def copy_value(b: Builder, value: Value) -> Value:
    """Copy a value by an identity operator."""
    if value.dtype is DType.I8:
        return tosa.table(b, value, _IDENTITY)
    if value.dtype is DType.I16:
        # Ethos-U55 has no bits, and after a maximum Ethos-U85 loses the limits of 16 bits.
        return tosa.clamp(b, value, *RANGES[DType.I16])
    return (tosa.logical_or if value.dtype is DType.BOOL else tosa.maximum)(b, value, value)
