"""Look-up tables in the NPU's internal RAM, which the output stage applies after the clamp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tosaic.npu.accelerator import LUT_BYTES
from tosaic.npu.errors import Fault, UnknownField
from tosaic.npu.memory import INTERNAL, Memory, Numbers
from tosaic.npu.operation import FeatureMap, Op


@dataclass(frozen=True, slots=True)
class Table:
    """A look-up table of results, or (`slopes`) of base and slope for 512 steps of 128 each.

    `widened` keeps the seven fraction bits in the result.
    """

    offset: int
    entries: Numbers
    first: int
    slopes: Numbers | None = None
    widened: bool = False

    def look_up(self, values: Numbers) -> Numbers:
        index = (values if self.slopes is None else values >> 7) - self.first
        if index.min() < 0 or index.max() >= len(self.entries):
            raise Fault("a number is too large for its lookup table", offset=self.offset)
        if self.slopes is None:
            return self.entries[index]
        base, slope = self.entries[index], self.slopes[index]
        rise = slope * (values & 127)
        return (base << 7) + rise if self.widened else base + ((rise + 64) >> 7)


def forget_tables(op: Op, memory: Memory) -> None:
    """Invalidate the tables after an operation without one, where the table RAM also holds accumulators."""
    written = memory.regions[INTERNAL].written
    if written is not None and op.accelerator.shares_table_ram and not find_function(op):
        written[...] = False


def find_function(op: Op) -> str:
    """Return the name of the table function that an operation uses; empty for a plain clamp."""
    function = op.name("ACTIVATION", "activation_function")
    return "" if function in ("RELU", "LUT_NONE") else function


def find_table(op: Op, memory: Memory, target: FeatureMap) -> Table | None:
    """Return the table that an operation's activation selects, None for a plain clamp."""
    function = find_function(op)
    if not function:
        return None
    return _find_u85(op, memory, function) if op.family.has_u85_units else _find_u55(op, memory, function, target)


def _find_u55(op: Op, memory: Memory, function: str, target: FeatureMap) -> Table:
    if not function.startswith("TABLE_"):
        raise op.unknown("ACTIVATION", "activation_function", f"{function} is not known")
    slot = int(function.removeprefix("TABLE_"))
    start = op.accelerator.ram_bytes - LUT_BYTES + slot * 256
    if target.bits == 32:
        raise op.unknown("ACTIVATION", "activation_function", "32-bit lookup tables are not supported")
    return _read_slopes(op, memory, start) if target.bits == 16 else _read_plain(op, memory, start, target.dtype)


def _find_u85(op: Op, memory: Memory, function: str) -> Table:
    slot = op.get("ACTIVATION", "table")
    match function:
        case "LUT_S8_S8":
            return _read_plain(op, memory, slot * 256, "<i1")
        case "LUT_S16_S16":
            return _read_slopes(op, memory, slot * LUT_BYTES)
        case "LUT_S16_S32":
            return _read_slopes(op, memory, slot * LUT_BYTES, widened=True)
        case _:
            raise UnknownField("ACTIVATION.activation_function", function, offset=op.offset)


def _read_plain(op: Op, memory: Memory, start: int, dtype: str) -> Table:
    entries = memory.view(INTERNAL, start, (256,), (1,), dtype, op.offset, write=False)
    return Table(op.offset, entries.astype(np.int64), np.iinfo(dtype).min)


def _read_slopes(op: Op, memory: Memory, start: int, *, widened: bool = False) -> Table:
    pairs = memory.view(INTERNAL, start, (512, 2), (4, 2), "<i2", op.offset, write=False).astype(np.int64)
    return Table(op.offset, pairs[:, 0], -256, pairs[:, 1], widened)
