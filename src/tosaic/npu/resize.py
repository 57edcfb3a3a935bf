"""RESIZE of a U85: bilinear and nearest interpolation with TOSA's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tosaic.npu.errors import UnknownField
from tosaic.npu.memory import Memory, Numbers
from tosaic.npu.operation import Op, Shape, read_map
from tosaic.npu.output import read_output

#: The accumulator holds the result above this many bits.
_RAISED = 16


@dataclass(frozen=True, slots=True)
class _Axis:
    """For every output position along an axis: the input positions on both sides and the weight of the second."""

    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    fraction: npt.NDArray[np.int64]
    scale: int

    @property
    def nearest(self) -> npt.NDArray[np.int64]:
        return np.where(2 * self.fraction >= self.scale, self.high, self.low)


def _read_axis(op: Op, name: str, size: int, outputs: int, first: int = 0) -> _Axis:
    scale = op.get(f"RESIZE_{name}_SCALE_N_M1") + 1
    step = op.get(f"RESIZE_{name}_STEP", "one_step_int") * scale + op.get(f"RESIZE_{name}_STEP", "one_step_mod")
    place = np.arange(first, first + outputs, dtype=np.int64) * step + op.get(f"RESIZE_{name}_OFFSET")
    low = place // scale
    return _Axis(np.clip(low, 0, size - 1), np.clip(low + 1, 0, size - 1), place - low * scale, scale)


def run_resize(op: Op, memory: Memory) -> None:
    """Execute RESIZE."""
    if op.mode not in ("BILINEAR", "NEAREST"):
        raise UnknownField("resize_mode", op.mode, offset=op.offset)
    output, source = read_output(op, memory, None), read_map(op, "IFM")
    height, width = op.get("KERNEL_HEIGHT_M1") + 1, op.get("KERNEL_WIDTH_M1") + 1
    values = memory.load(source, Shape(height, width, output.shape.depth))
    across = _read_axis(op, "X", width, output.shape.width)
    for first, count in output.pieces():
        down = _read_axis(op, "Y", height, count, first)
        if op.mode == "NEAREST":
            result = _take(values, down.nearest, across.nearest, source.zero_point)
        else:
            result = _interpolate(values, down, across, source.zero_point)
        output.finish(memory, result << _RAISED, first)


def _take(values: Numbers, rows: Numbers, columns: Numbers, zero: int) -> Numbers:
    return values[rows[:, None], columns].astype(np.int64) - zero


def _interpolate(values: Numbers, down: _Axis, across: _Axis, zero: int) -> Numbers:
    """Interpolate between the four neighbors of each position, weighted by distance."""
    total = np.zeros((len(down.low), len(across.low), values.shape[2]), np.int64)
    for rows, vertical in ((down.low, down.scale - down.fraction), (down.high, down.fraction)):
        for columns, horizontal in ((across.low, across.scale - across.fraction), (across.high, across.fraction)):
            total += _take(values, rows, columns, zero) * (vertical[:, None] * horizontal)[..., None]
    return total
