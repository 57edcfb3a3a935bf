"""RESIZE of a U85: bilinear and nearest interpolation with TOSA's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tosaic.npu.errors import UnknownField
from tosaic.npu.memory import Memory, Numbers
from tosaic.npu.output import read_output
from tosaic.npu.record import Op, Shape, read_map

#: The accumulator holds the result above this many bits.
_RAISED = 16


@dataclass(frozen=True, slots=True)
class _Axis:
    """For every output place along an axis: the input places on both sides and the weight of the second."""

    low: npt.NDArray[np.int64]
    high: npt.NDArray[np.int64]
    fraction: npt.NDArray[np.int64]
    scale: int

    @property
    def nearest(self) -> npt.NDArray[np.int64]:
        return np.where(2 * self.fraction >= self.scale, self.high, self.low)


def _read_axis(op: Op, name: str, size: int, outputs: int) -> _Axis:
    scale = op.get(f"RESIZE_{name}_SCALE_N_M1") + 1
    step = op.get(f"RESIZE_{name}", "one_step_int") * scale + op.get(f"RESIZE_{name}", "one_step_mod")
    place = np.arange(outputs, dtype=np.int64) * step + op.get(f"RESIZE_{name}_OFFSET")
    low = place // scale
    return _Axis(np.clip(low, 0, size - 1), np.clip(low + 1, 0, size - 1), place - low * scale, scale)


def run_resize(op: Op, memory: Memory) -> None:
    """Execute RESIZE."""
    output, source = read_output(op, memory, None), read_map(op, "IFM")
    height, width = op.get("KERNEL_HEIGHT_M1") + 1, op.get("KERNEL_WIDTH_M1") + 1
    values = memory.load(source, Shape(height, width, output.shape.depth)).astype(np.int64) - source.zero_point
    rows, columns = _read_axis(op, "Y", height, output.shape.height), _read_axis(op, "X", width, output.shape.width)
    match op.mode:
        case "BILINEAR":
            result = _interpolate(values, rows, columns)
        case "NEAREST":
            result = values[rows.nearest][:, columns.nearest]
        case _:
            raise UnknownField("resize_mode", op.mode, offset=op.offset)
    output.finish(memory, result << _RAISED)


def _interpolate(values: Numbers, rows: _Axis, columns: _Axis) -> Numbers:
    right = columns.fraction[:, None]
    left = columns.scale - right
    across = values[:, columns.low] * left + values[:, columns.high] * right
    below = rows.fraction[:, None, None]
    above = rows.scale - below
    return across[rows.low] * above + across[rows.high] * below
