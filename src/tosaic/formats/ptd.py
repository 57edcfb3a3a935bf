"""Reads untrusted .ptd files, the data of a program outside its .pte: returns a Ptd, or raises Invalid."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats.blob import ALIGNMENT
from tosaic.formats.flatbuffer import Buffer
from tosaic.formats.pte import Segment, read_segments
from tosaic.formats.pte_schema import Row

IDENTIFIER = b"FT01"
_VERSION = 0
_HEADER = struct.Struct("<4sIQQQQ")
_HEADER_AT = 8


@dataclass(frozen=True, slots=True)
class Ptd:
    """The data in a file by key, and the memory that reading took."""

    size: int
    named: Mapping[str, bytes]
    taken: int


class _PtdBuffer(Buffer):
    def fail(self, what: str, at: int) -> Invalid:
        return Invalid(f"the .ptd file is damaged: {what} at offset {at}")


def read(data: bytes, *, max_memory: int | None = None) -> Ptd:
    """Read the data in a .ptd file and check every offset, index and size."""
    if data[4:8] != IDENTIFIER:
        raise Invalid("not a .ptd file: the identifier FT01 is missing at offset 4", why=f"it has {data[4:8]!r} there")
    budget = Budget(len(data), max_memory)
    tables_end, base, end = _read_header(data)
    budget.take(tables_end, "the tables of the .ptd file")
    buffer = _PtdBuffer(data[:tables_end], budget)
    root = Row(buffer, buffer.follow(0, "the root"), "FlatTensor", "FlatTensor")
    version = root.get_int("version", "<I")
    if version != _VERSION:
        raise Invalid(f"the .ptd file has version {version}; only {_VERSION} is supported")
    named = _read_named(data, root, read_segments(root, base, end), budget)
    return Ptd(len(data), named, budget.limit - budget.left)


def _read_header(data: bytes) -> tuple[int, int, int]:
    """Return the end of the flatbuffer, and the start and the end of the segments."""
    if len(data) < _HEADER_AT + _HEADER.size:
        raise Invalid(f"the .ptd file is damaged: it ends inside the header at offset {len(data)}")
    magic, length, start, size, base, segment_bytes = _HEADER.unpack_from(data, _HEADER_AT)
    tables_end = start + size
    # A file without segments may leave both at zero.
    base = base if base or segment_bytes else tables_end
    end = base + segment_bytes
    sound = magic == b"FH01" and length >= _HEADER.size and start >= _HEADER.size
    if not sound or not tables_end <= base <= end <= len(data):
        raise Invalid(
            f"the .ptd file is damaged: by the header at offset {_HEADER_AT} the tables end at {tables_end} and the "
            f"data is at {base} to {end}; the file has {len(data)} bytes"
        )
    return tables_end, base, end


def _read_named(data: bytes, root: Row, segments: tuple[Segment, ...], budget: Budget) -> dict[str, bytes]:
    named: dict[str, bytes] = {}
    # One copy per segment, however many keys refer to it.
    copies: dict[int, bytes] = {}
    for row in root.get_rows("named_data", "NamedData"):
        key, index = row.get_text("key"), row.get_int("segment_index", "<I")
        if key in named:
            raise row.fail("has a key that occurs twice")
        if index >= len(segments):
            raise row.fail(f"refers to segment {index}; there are {len(segments)}")
        if index not in copies:
            segment = segments[index]
            if segment.size and segment.offset % ALIGNMENT:
                raise row.fail(f"refers to data at {segment.offset}; the runtime needs a multiple of {ALIGNMENT}")
            budget.take(segment.size, "a segment of the .ptd file")
            copies[index] = data[segment.offset : segment.offset + segment.size]
        named[key] = copies[index]
    return named
