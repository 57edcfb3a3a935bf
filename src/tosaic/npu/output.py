"""The output stage that ends every operation: scale, round, zero point, clamp, table, store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tosaic.npu.errors import Fault, TooMuch, UnknownField
from tosaic.npu.lut import Table, find_table
from tosaic.npu.memory import Memory, Numbers
from tosaic.npu.operation import FeatureMap, Op, Shape, Storage, read_map, read_ofm_shape

#: Larger outputs are computed in pieces of about this many elements, to stay in the caches.
PIECE = 1 << 18
#: A larger piece would take too much memory.
_MAX_PIECE = 1 << 23


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors and shifts, one or one per channel; `bias` is added before. `rounding` is a mode of `round_shift`."""

    factor: npt.NDArray[np.int64]
    shift: npt.NDArray[np.int64]
    bias: npt.NDArray[np.int64]
    rounding: str

    @property
    def is_unit(self) -> bool:
        return bool((self.factor == 1).all() and (self.shift == 0).all() and (self.bias == 0).all())


@dataclass(frozen=True, slots=True)
class Output:
    """Conversion of an operation's results into elements of its output."""

    op: Op
    target: FeatureMap
    shape: Shape
    scale: Scale
    low: int | None
    high: int | None
    table: Table | None
    permutation: tuple[int, int, int]
    flipped: int | None

    def pieces(self) -> list[tuple[int, int]]:
        """Return the first row and number of rows of each piece in which to compute the output."""
        rows = max(1, PIECE // (self.shape.width * self.shape.depth))
        # A transposed or chained output is written as a whole.
        whole = self.permutation != (0, 1, 2) or self.flipped is not None or self.target.storage is not Storage.TILES
        rows = self.shape.height if whole else min(rows, self.shape.height)
        if rows * self.shape.width * self.shape.depth > _MAX_PIECE:
            raise TooMuch(f"an output of {list(self.shape)} elements", offset=self.op.offset)
        return [(row, min(rows, self.shape.height - row)) for row in range(0, self.shape.height, rows)]

    def finish(self, memory: Memory, values: Numbers, first_row: int = 0) -> None:
        """Convert accumulated values [rows, columns, channels] and store them in the output."""
        values = self._convert(values)
        if self.table is not None:
            values = self.table.look_up(values)
        result = values.astype(np.dtype(self.target.dtype), casting="unsafe", copy=False)
        if self.target.storage is Storage.CHAINED:
            memory.chains[self.target.region] = result
            return
        result = result.transpose(self.permutation)
        if self.flipped is not None:
            result = np.flip(result, self.flipped)
        memory.store(self.target, result, first_row)

    def _convert(self, values: Numbers) -> Numbers:
        zero = self.target.zero_point
        if self.scale.is_unit:
            values = values.astype(np.int64)
            if zero:
                values += zero
        else:
            values = apply_scale(values, self.scale, zero, self.op)
        if self.low is not None or self.high is not None:
            np.clip(values, self.low, self.high, out=values)
        return values


def apply_scale(values: Numbers, scale: Scale, zero: int, op: Op) -> Numbers:
    """Compute round((values + bias) * factor / 2**shift) + zero, as int64."""
    result = values.astype(np.int64)
    _check_product(result, scale, op)
    result *= scale.factor
    if scale.rounding == "natural":
        # Same result as below, but faster: one addition for bias and rounding.
        result += scale.bias * scale.factor + (1 << scale.shift >> 1)
        result >>= scale.shift
    else:
        result = round_shift(result + scale.bias * scale.factor, scale.shift, scale.rounding)
    result += zero
    return result


def round_shift(product: npt.NDArray[np.int64], shift: npt.NDArray[np.int64], rounding: str) -> npt.NDArray[np.int64]:
    """Compute product / 2**shift. Double rounding first rounds away from zero at bit 30, for shifts that large."""
    if rounding == "floor":
        return product >> shift
    rounded = product + (1 << shift >> 1)
    if rounding == "double":
        rounded += (shift > 31) * (np.sign(product) << 30)
    return rounded >> shift


def _check_product(values: npt.NDArray[np.int64], scale: Scale, op: Op) -> None:
    """Check that the product fits 64 bits: the NPU may hold more, so report an error instead of wrong numbers."""
    bias = int(np.abs(scale.bias).max())
    largest = max(-int(values.min()), int(values.max())) + bias
    if largest * int(np.abs(scale.factor).max()) >= 1 << 62:
        raise Fault("a product of the output stage needs more than 64 bits", offset=op.offset)


def read_output(op: Op, memory: Memory, channel_scales: Scale | None) -> Output:
    """Read the output stage of an operation; `channel_scales` are those per channel, if it has any."""
    target = read_map(op, "OFM")
    low, high = _read_clamp(op, target)
    permutation, flipped = _read_movement(op)
    return Output(
        op=op,
        target=target,
        shape=read_ofm_shape(op),
        scale=_read_scale(op, channel_scales),
        low=low,
        high=high,
        table=find_table(op, memory, target),
        permutation=permutation,
        flipped=flipped,
    )


#: U55 issues these with per-channel scaling but without any scale records: their results are not scaled.
_UNSCALED = frozenset({"MIN", "MAX", "SHR", "SHL", "CLZ"})


def _read_scale(op: Op, channel_scales: Scale | None) -> Scale:
    if op.name("OFM_PRECISION", "scale_mode") == "PER_CHANNEL":
        if channel_scales is not None:
            return channel_scales
        if op.family.has_u85_units or op.mode not in _UNSCALED:
            raise op.unknown("OFM_PRECISION", "scale_mode", f"{op.kind.name} has no scales per channel")
        return Scale(np.array(1), np.array(0), np.array(0), "natural")
    factor, shift = op.get("OFM_SCALE", "scale"), op.get("OFM_SCALE", "shift")
    return Scale(np.array(factor), np.array(shift), np.array(0), read_rounding(op))


def read_rounding(op: Op) -> str:
    """Read the rounding mode of the output stage."""
    if op.family.has_u85_units:
        if op.get("OFM_SCALE", "dbl_rnd"):
            raise op.unknown("OFM_SCALE", "dbl_rnd")
        name = op.name("OFM_SCALE", "round_mode")
        modes = {"DOUBLE_SYMMETRIC": "double", "NATURAL": "natural", "TRUNCATE_TO_LOWER": "floor"}
        field = "OFM_SCALE.round_mode"
    else:
        name = op.name("OFM_PRECISION", "round_mode")
        modes = {"DBL": "double", "NATURAL": "natural"}
        field = "OFM_PRECISION.round_mode"
    if name not in modes:
        raise UnknownField(field, name, offset=op.offset, why="this rounding is not supported")
    return modes[name]


def _read_clamp(op: Op, target: FeatureMap) -> tuple[int | None, int | None]:
    clip = op.name("ACTIVATION", "activation_clip_range")
    if op.family.has_u85_units:
        if clip == "NONE":
            return None, None
    elif clip == "OFM_PRECISION":
        if target.bits == 32:
            return -(1 << 31), (1 << 31) - 1
    elif clip != "FORCE_INT16" or target.bits != 32:
        # A 32-bit output is clamped to the registers' 16 bits only if a clamp is forced.
        raise op.unknown("ACTIVATION", "activation_clip_range")
    low, high = op.get("ACTIVATION_MIN"), op.get("ACTIVATION_MAX")
    if target.signed:
        low, high = (value - (1 << 16) if value >> 15 else value for value in (low, high))
    if low > high:
        raise Fault("the output is clamped to an empty range", offset=op.offset, why=f"{low} is above {high}")
    return low, high


#: The source axis of each axis of the stored output (rows, columns, channels).
_TRANSPOSITIONS = {
    "HWC": (0, 1, 2),
    "WHC": (1, 0, 2),
    "HCW": (0, 2, 1),
    "WCH": (1, 2, 0),
    "CHW": (2, 0, 1),
    "CWH": (2, 1, 0),
}


def _read_movement(op: Op) -> tuple[tuple[int, int, int], int | None]:
    if not op.family.has_u85_units:
        return (0, 1, 2), None
    reverse = op.name("OFM_PRECISION", "activation_reverse")
    flipped = {"NONE": None, "H": 0, "W": 1, "C": 2}[reverse]
    return _TRANSPOSITIONS[op.name("OFM_PRECISION", "activation_transpose")], flipped
