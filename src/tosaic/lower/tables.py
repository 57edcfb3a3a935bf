"""Functions of quantized values as TABLE: one table for 8 bits, and sums of interpolated ones for 16 and 32 bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import RANGES, DType, Value
from tosaic.ir.qparams import QParams, quantize
from tosaic.lower import interpolation
from tosaic.lower.rescaling import clamp, rescale
from tosaic.lower.tensor import Stored, fill_gaps, with_value


class Tables:
    """Emits the tables of one graph. Those of a function are found once, however many nodes compute it."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self._fitted: dict[bytes, Sequence[interpolation.Table]] = {}

    def emit(self, value: Value, lut: npt.NDArray[np.float32], q: QParams) -> Value:
        """Emit a function of 8 or 16 bits, quantized to 8 or 16 bits."""
        if not {value.dtype, q.dtype} <= {DType.I8, DType.I16}:
            raise Unsupported(
                f"there is no lookup table from {value.dtype.torch_name} to {q.dtype.torch_name}", "quantize to int8"
            )
        if value.dtype is DType.I16 or q.dtype is DType.I16:
            return self._interpolate(value, lut, q)
        codes = quantize(fill_gaps(lut), q)
        low, high = int(codes.min()), int(codes.max())
        if np.array_equal(codes, np.clip(np.arange(-128, 128), low, high)):
            return value if (low, high) == (-128, 127) else tosa.clamp(self.b, value, low, high)
        return tosa.table(self.b, value, codes.astype(np.int8))

    def emit_int32(self, value: Value, lut: npt.NDArray[np.float32], q: QParams) -> Value:
        """Emit a function of 8 or 16 bits, quantized to 32 bits: the sum of its tables has all bits of TABLE."""
        tables = self.fit(lut, q)
        if value.dtype is DType.I8:
            value = rescale(self.b, value, DType.I16, [256.0])
        total, *others = (tosa.table(self.b, self._approach(value, table), table.entries) for table in tables)
        for other in others:
            total = tosa.add(self.b, total, other)
        return rescale(self.b, total, DType.I32, [_find_finest(lut).s * 2.0**-interpolation.FRACTION / q.s])

    def fit(self, lut: npt.NDArray[np.float32], q: QParams) -> Sequence[interpolation.Table]:
        """Find the tables for a function of 16-bit values; their sum has finer steps if the result has 8 bits."""
        q = _find_finest(lut) if q.dtype is DType.I32 else q
        with np.errstate(over="ignore"):
            steps = np.clip(fill_gaps(lut).astype(np.float64) / q.s, q.qmin - q.zp, q.qmax - q.zp) * _refine(q)
        key = steps.tobytes()
        if key not in self._fitted:
            self._fitted[key] = interpolation.fit(steps) if len(steps) > 256 else [interpolation.exact(steps)]
        return self._fitted[key]

    def _interpolate(self, value: Value, lut: npt.NDArray[np.float32], q: QParams) -> Value:
        """Emit tables of 16 bits, and their sum."""
        tables = self.fit(lut, q)
        if value.dtype is DType.I8:
            value = rescale(self.b, value, DType.I16, [256.0])
        return self._sum_up([self._look_up(self._approach(value, table), table.entries) for table in tables], q)

    def apply_to_sum(
        self, t: Stored, function: Callable[[interpolation.Steps], interpolation.Steps], q: QParams
    ) -> Stored:
        """Emit tables for a function of a sum of 32 bits, which is not negative, and quantize its result."""
        assert t.reach is not None

        def count_steps(numbers: interpolation.Steps) -> interpolation.Steps:
            return function(numbers * t.qparams.s) * (_refine(q) / q.s)

        bounds = ((q.qmin - q.zp) * _refine(q), (q.qmax - q.zp) * _refine(q))
        parts = interpolation.fit_parts(count_steps, t.reach, bounds)
        found = [self._look_up(self._enter(t.value, part, t.reach), part.entries) for part in parts]
        return replace(with_value(t, self._sum_up(found, q), q), reach=None)

    def _enter(self, value: Value, part: interpolation.Part, most: float) -> Value:
        """Emit numbers of 32 bits in the steps of a part: RESCALE is not defined for all that would saturate."""
        if part.end < most:
            end = self.b.number(math.ceil(part.end), value, DType.I32)
            value = tosa.minimum(self.b, value, end)
        return rescale(self.b, value, DType.I16, [2.0**15 / part.end])

    def _sum_up(self, found: Sequence[Value], q: QParams) -> Value:
        """Emit the sum of what was found in tables, in the steps of the result."""
        first, *others = found
        if not others and q.dtype is DType.I16:
            return first
        total = rescale(self.b, first, DType.I32, [1.0])
        for other in others:
            total = tosa.add(self.b, total, rescale(self.b, other, DType.I32, [1.0]))
        return clamp(self.b, rescale(self.b, total, q.dtype, [1.0 / _refine(q)], 0, q.zp), q)

    def _look_up(self, value: Value, entries: npt.NDArray[np.int16]) -> Value:
        """Emit TABLE and the rounding of its result to 16 bits."""
        return rescale(self.b, tosa.table(self.b, value, entries), DType.I16, [2.0**-interpolation.FRACTION])

    def _approach(self, value: Value, table: interpolation.Table) -> Value:
        """Emit the distance of numbers from the center of a table, in its steps."""
        if table.center:
            # Vela makes one command of a difference of two rescaled operands.
            center = self.b.number(table.center, value, DType.I16)
            operands = (rescale(self.b, v, DType.I32, [1.0]) for v in (value, center))
            return rescale(self.b, tosa.sub(self.b, *operands), DType.I16, [2.0**table.zoom])
        return rescale(self.b, value, DType.I16, [2.0**table.zoom]) if table.zoom else value


def _find_finest(lut: npt.NDArray[np.float32]) -> QParams:
    """Find the qparams of 16 bits that hold all results of a function."""
    least, most = RANGES[DType.I16]
    largest = float(np.abs(fill_gaps(lut)).max()) or 1.0
    return QParams((largest / most,), (0,), DType.I16, least, most)


def _refine(q: QParams) -> float:
    """Return how much finer the steps of 16-bit tables are than those of their result."""
    return 1.0 if q.dtype is DType.I16 else 128.0
