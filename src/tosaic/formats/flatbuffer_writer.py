"""Writes flatbuffers: tables are written from the root on, each before what it refers to."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

#: A number in `struct` notation and its value, a text, bytes, integers of 32 bits, a table, texts, or tables.
Field: TypeAlias = "tuple[str, int] | str | bytes | Integers | TableData | list[str] | list[TableData]"

#: Tables and the contents of vectors begin at a multiple of the largest number.
_ALIGNMENT = 8
_OFFSET = "I"
_UINT32 = struct.Struct("<I")


@dataclass(slots=True)
class TableData:
    """A table to write: its fields by slot, in ascending order. A field that is left out has its default."""

    fields: Mapping[int, Field]


@dataclass(slots=True)
class Integers:
    """A vector of signed integers of 32 bits."""

    numbers: Sequence[int]


def write_flatbuffer(root: TableData, identifier: bytes, *, size_prefixed: bool = False) -> bytes:
    """Return the bytes of a file; with a size prefix, they begin with the number of bytes that follow."""
    writer = _Writer()
    start = 4 if size_prefixed else 0
    writer.data += bytes(start + 4) + identifier
    writer.refer(start, writer.add_table(root))
    if size_prefixed:
        struct.pack_into("<I", writer.data, 0, len(writer.data) - start)
    return bytes(writer.data)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where tables with the same kinds of fields have each field, and where the list of these positions is written."""

    form: struct.Struct
    positions: tuple[int, ...]
    listed: int


class _Writer:
    """The bytes so far; a reference is filled in when its target is written."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.layouts: dict[tuple[tuple[int, str], ...], _Layout] = {}

    def refer(self, at: int, target: int) -> None:
        _UINT32.pack_into(self.data, at, target - at)

    def add_table(self, table: TableData) -> int:
        """Write the table, then what it refers to; return the table's position."""
        fields = table.fields
        numbers = [one if isinstance(one, tuple) else (_OFFSET, 0) for one in fields.values()]
        key = tuple([(slot, form) for slot, (form, _) in zip(fields, numbers, strict=True)])
        layout = self.layouts.get(key) or self._add_layout(key)
        self._align(_ALIGNMENT)
        start = len(self.data)
        self.data += layout.form.pack(start - layout.listed, *[value for _, value in numbers])
        for position, one in zip(layout.positions, fields.values(), strict=True):
            if not isinstance(one, tuple):
                self.refer(start + position, self._add(one))
        return start

    def _add_layout(self, key: tuple[tuple[int, str], ...]) -> _Layout:
        """Place the fields of a kind of table, and write the list of their positions, which such tables share."""
        form, positions, size = "<i", list[int](), 4
        for _, number in key:
            width = struct.calcsize(f"<{number}")
            gap = -size % width
            form += f"{gap}x{number}"
            positions.append(size + gap)
            size += gap + width
        slots = dict(zip((slot for slot, _ in key), positions, strict=True))
        listing = [slots.get(slot, 0) for slot in range(max(slots, default=-1) + 1)]
        self._align(2)
        layout = _Layout(struct.Struct(form), tuple(positions), len(self.data))
        self.data += struct.pack(f"<{2 + len(listing)}H", 4 + 2 * len(listing), size, *listing)
        self.layouts[key] = layout
        return layout

    def _add(self, one: str | bytes | Integers | TableData | list[str] | list[TableData]) -> int:
        if isinstance(one, str):
            # A text ends with a NUL that its length does not count.
            content = one.encode()
            return self._add_vector(len(content), content + b"\0", 4)
        if isinstance(one, TableData):
            return self.add_table(one)
        if isinstance(one, bytes):
            return self._add_vector(len(one), one, _ALIGNMENT)
        if isinstance(one, Integers):
            return self._add_vector(len(one.numbers), struct.pack(f"<{len(one.numbers)}i", *one.numbers), 4)
        start = self._add_vector(len(one), bytes(4 * len(one)), 4)
        for index, item in enumerate(one):
            self.refer(start + 4 + 4 * index, self._add(item))
        return start

    def _add_vector(self, count: int, content: bytes, alignment: int) -> int:
        """Write a vector whose content begins at a multiple of the alignment."""
        self.data += bytes(-(len(self.data) + 4) % alignment) + _UINT32.pack(count) + content
        return len(self.data) - len(content) - 4

    def _align(self, width: int) -> None:
        self.data += bytes(-len(self.data) % width)
