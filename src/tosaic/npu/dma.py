"""DMA: copies of bytes in up to three dimensions, gathers and scatters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tosaic.npu.errors import Fault, TooMuch
from tosaic.npu.memory import INTERNAL, Access, Memory, Numbers
from tosaic.npu.operation import Op

_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Transfer:
    """`planes` x `rows` x `length` bytes; strides are those of rows and planes."""

    source: int
    source_start: int
    source_strides: tuple[int, int]
    target: int
    target_start: int
    target_strides: tuple[int, int]
    planes: int
    rows: int
    length: int
    gathers: bool
    scatters: bool

    @property
    def size(self) -> int:
        return self.planes * self.rows * self.length


def read_transfer(op: Op) -> Transfer:
    """Read the transfer that the DMA registers describe."""
    mode = op.name("DMA0_SRC_REGION", "stride_mode")
    u85, strided, deep = op.family.has_u85_units, mode != "D1", mode == "D3"
    if strided and not u85:
        raise op.unknown("DMA0_SRC_REGION", "stride_mode", "strided DMA is not supported")
    gathers = bool(u85 and op.get("DMA0_SRC_REGION", "idx_mode"))
    scatters = bool(u85 and op.get("DMA0_DST_REGION", "idx_mode"))
    found = Transfer(
        source=_read_region(op, "SRC"),
        source_start=op.get("DMA0_SRC"),
        source_strides=_read_strides(op, "SRC", strided or gathers, deep),
        target=_read_region(op, "DST"),
        target_start=op.get("DMA0_DST"),
        target_strides=_read_strides(op, "DST", strided or scatters, deep),
        planes=op.get("DMA0_SIZE1") if deep else 1,
        rows=op.get("DMA0_SIZE0") if strided or gathers or scatters else 1,
        length=op.get("DMA0_LEN"),
        gathers=gathers,
        scatters=scatters,
    )
    if found.size > _MAX_BYTES:
        raise TooMuch(f"a DMA of {found.size} bytes", offset=op.offset)
    return found


def _read_region(op: Op, side: str) -> int:
    internal = op.name(f"DMA0_{side}_REGION", "region_mode") == "INTERNAL"
    return INTERNAL if internal else op.get(f"DMA0_{side}_REGION", "region")


def _read_strides(op: Op, side: str, strided: bool, deep: bool) -> tuple[int, int]:
    row, plane = (f"DMA0_{side}_STRIDE{axis}" for axis in "01")
    return op.get(row) if strided else 0, op.get(plane) if deep else 0


def run_dma(op: Op, memory: Memory) -> None:
    """Execute DMA_START."""
    transfer = read_transfer(op)
    if not transfer.size:
        return
    if transfer.gathers or transfer.scatters:
        _move_rows(op, memory, transfer)
        return
    shape = (transfer.planes, transfer.rows, transfer.length)
    rows, planes = transfer.source_strides
    source = Access(transfer.source, transfer.source_start, shape, (planes, rows, 1), writes=False)
    rows, planes = transfer.target_strides
    target = Access(transfer.target, transfer.target_start, shape, (planes, rows, 1), writes=True)
    memory.copy(source, target, op.offset)


def _move_rows(op: Op, memory: Memory, transfer: Transfer) -> None:
    """Copy rows whose position in the source or in the target is given by 32-bit indices."""
    if transfer.gathers and transfer.scatters:
        raise op.unknown("DMA0_DST_REGION", "idx_mode", "indices on both sides are not supported")
    if transfer.planes > 1 and op.get("DMA0_IDX_SKIP1"):
        raise op.unknown("DMA0_IDX_SKIP1", why="gaps between indices are not supported")
    shape = (transfer.planes, transfer.rows)
    region, start = op.get("DMA0_IDX_REGION"), op.get("DMA0_IDX")
    index = memory.view(region, start, shape, (4 * transfer.rows, 4), "<i4", op.offset, write=False).astype(np.int64)
    limit = op.get("DMA0_IDX_MAX")
    if index.min() < 0 or index.max() > limit:
        raise Fault(f"a DMA index is outside 0 to {limit}", offset=op.offset)
    if (limit + 1) * transfer.planes * transfer.length > _MAX_BYTES:
        raise TooMuch(f"a DMA over {limit + 1} rows of {transfer.length} bytes", offset=op.offset)

    def view_rows(source: bool, count: int) -> Numbers:
        sides = (transfer.source, transfer.source_start, transfer.source_strides)
        if not source:
            sides = (transfer.target, transfer.target_start, transfer.target_strides)
        region, start, (row, plane) = sides
        shape = (transfer.planes, count, transfer.length)
        return memory.view(region, start, shape, (plane, row, 1), "u1", op.offset, write=not source)

    table = view_rows(transfer.gathers, limit + 1)
    rows = view_rows(transfer.scatters, transfer.rows)
    planes = np.arange(transfer.planes)[:, None]
    if transfer.gathers:
        rows[...] = table[planes, index]
    else:
        table[planes, index] = rows
