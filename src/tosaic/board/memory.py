"""The memory of a board as arrays that the CPU and the NPU share."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tosaic.board.description import Board
from tosaic.board.elf import Elf, Range
from tosaic.core.errors import Invalid
from tosaic.npu.memory import Bytes, Region

#: The granularity of the map.
PAGE = 1024


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive bytes. `port` is the NPU's port to them; empty if it has none."""

    base: int
    data: Bytes
    writable: bool
    executable: bool
    port: str

    @property
    def end(self) -> int:
        return self.base + len(self.data)


@dataclass(frozen=True, slots=True)
class Memory:
    """All memory that a firmware may access, in blocks by address."""

    blocks: tuple[Block, ...]

    def find(self, address: int) -> Block | None:
        """Find the block that has an address."""
        return next((block for block in self.blocks if block.base <= address < block.end), None)

    def read(self, address: int, size: int) -> Bytes | None:
        """Return a view of bytes within one block; None if they are not."""
        block = self.find(address)
        if block is None or address + size > block.end:
            return None
        return block.data[address - block.base :][:size]

    def open_region(self, number: int, address: int) -> Region | None:
        """Return the memory from an address on as a region of the NPU; None if the NPU has no access to it."""
        block = self.find(address)
        if block is None or not block.port:
            return None
        return Region(f"region {number} at 0x{address:08x}", block.data[address - block.base :], block.writable)


def make_memory(board: Board, elf: Elf) -> Memory:
    """Make the memory that a firmware's sections take, and load it; all else on the board is not accessible."""
    for used in elf.ranges:
        area = board.find_area(used.base)
        if area is None or used.base + used.size > area.end:
            why = "is in none of its memories" if area is None else f"ends after the memory `{area.name}`"
            raise Invalid(
                f"the firmware is not for {board.title}",
                why=f"section `{used.name}` (0x{used.base:08x}, {used.size:,} bytes) {why}",
                fix="build it for this board, or choose the board that it was built for",
            )
    memory = Memory(tuple(_list_blocks(board, _list_pages(elf.ranges))))
    if memory.read(board.vectors, 8) is None:
        raise Invalid(
            f"the firmware is not for {board.title}",
            why=f"the CPU looks for a vector table at 0x{board.vectors:08x}, where nothing is loaded",
            fix="build it for this board, or choose the board that it was built for",
        )
    for address, data in elf.loads:
        target = memory.read(address, len(data))
        # A segment may cover sections with different rights, which are separate blocks.
        if target is None:
            _load_pieces(memory, address, data)
        else:
            target[:] = np.frombuffer(data, np.uint8)
    return memory


def _load_pieces(memory: Memory, address: int, data: bytes) -> None:
    at = 0
    while at < len(data):
        block = memory.find(address + at)
        if block is None:
            raise Invalid("the ELF file is damaged", why=f"nothing says what 0x{address + at:08x} is for")
        size = min(len(data) - at, block.end - address - at)
        block.data[address + at - block.base :][:size] = np.frombuffer(data, np.uint8, size, at)
        at += size


def _list_pages(ranges: Sequence[Range]) -> Iterator[tuple[int, int, bool, bool]]:
    """Yield base, end and rights of pages in use, as long as the rights are the same."""
    edges = sorted({edge for used in ranges for edge in _round(used)})
    runs: list[tuple[int, int, bool, bool]] = []
    for base, end in itertools.pairwise(edges):
        users = [used for used in ranges if _round(used)[0] <= base and end <= _round(used)[1]]
        if not users:
            continue
        rights = any(used.writable for used in users), any(used.executable for used in users)
        if runs and runs[-1][1] == base and runs[-1][2:] == rights:
            runs[-1] = (runs[-1][0], end, *rights)
        else:
            runs.append((base, end, *rights))
    return iter(runs)


def _round(used: Range) -> tuple[int, int]:
    """Return the first page of a range, and the one after its last."""
    return used.base // PAGE * PAGE, -(-(used.base + used.size) // PAGE) * PAGE


def _list_blocks(board: Board, runs: Iterator[tuple[int, int, bool, bool]]) -> Iterator[Block]:
    for base, end, writable, executable in runs:
        area = board.find_area(base)
        assert area is not None
        # Memory from the system begins at a page of the host, and takes nothing until it is used.
        data = np.frombuffer(mmap.mmap(-1, end - base), np.uint8)
        yield Block(base, data, writable, executable, area.port)
