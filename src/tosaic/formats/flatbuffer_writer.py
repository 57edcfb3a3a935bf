"""Writes flatbuffers: tables are written from the root on, each before what it refers to."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

#: A number in `struct` notation and its value, a text, bytes, a table, or tables.
Field: TypeAlias = "tuple[str, int] | str | bytes | TableData | Sequence[TableData]"

#: Tables begin at a multiple of the largest number.
_ALIGNMENT = 8
_OFFSET = "I"


@dataclass(frozen=True, slots=True)
class TableData:
    """A table to write: its fields by slot. A field that is left out has its default."""

    fields: Mapping[int, Field]


def write_flatbuffer(root: TableData, identifier: bytes, *, size_prefixed: bool = False) -> bytes:
    """Return the bytes of a file; with a size prefix, they begin with the number of bytes that follow."""
    writer = _Writer()
    start = 4 if size_prefixed else 0
    writer.data += bytes(start + 4) + identifier
    writer.refer(start, writer.add_table(root))
    if size_prefixed:
        struct.pack_into("<I", writer.data, 0, len(writer.data) - start)
    return bytes(writer.data)


class _Writer:
    """The bytes so far; a reference is filled in when its target is written."""

    def __init__(self) -> None:
        self.data = bytearray()

    def refer(self, at: int, target: int) -> None:
        struct.pack_into("<I", self.data, at, target - at)

    def add_table(self, table: TableData) -> int:
        """Write the list of field positions, the table, then what it refers to; return the table's position."""
        numbers = {slot: one if isinstance(one, tuple) else (_OFFSET, 0) for slot, one in table.fields.items()}
        positions, size = [0] * (max(numbers, default=-1) + 1), 4
        for slot, (form, _) in numbers.items():
            width = struct.calcsize(f"<{form}")
            positions[slot] = size = size + -size % width
            size += width
        self._align(2)
        listed = len(self.data)
        self.data += struct.pack(f"<{2 + len(positions)}H", 4 + 2 * len(positions), size, *positions)
        self._align(_ALIGNMENT)
        start = len(self.data)
        self.data += struct.pack("<i", start - listed) + bytes(size - 4)
        for slot, (form, value) in numbers.items():
            struct.pack_into(f"<{form}", self.data, start + positions[slot], value)
        for slot, one in table.fields.items():
            if not isinstance(one, tuple):
                self.refer(start + positions[slot], self._add(one))
        return start

    def _add(self, one: str | bytes | TableData | Sequence[TableData]) -> int:
        if isinstance(one, TableData):
            return self.add_table(one)
        self._align(4)
        start = len(self.data)
        if isinstance(one, str | bytes):
            content = one.encode() if isinstance(one, str) else one
            # A text ends with a NUL that its length does not count; it does no harm after other bytes.
            self.data += struct.pack("<I", len(content)) + content + b"\0"
            return start
        self.data += struct.pack("<I", len(one)) + bytes(4 * len(one))
        for index, table in enumerate(one):
            self.refer(start + 4 + 4 * index, self.add_table(table))
        return start

    def _align(self, width: int) -> None:
        self.data += bytes(-len(self.data) % width)
