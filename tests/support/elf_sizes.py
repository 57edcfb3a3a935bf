"""The sizes of object files."""

from __future__ import annotations

import struct
from pathlib import Path


def count_bytes(path: Path, *, writable: bool) -> int:
    """The bytes of variables in an object file, or those of code and constants."""
    data = path.read_bytes()
    offset, size, count = struct.unpack_from("<I", data, 32)[0], *struct.unpack_from("<HH", data, 46)
    sections = (struct.unpack_from("<10I", data, offset + size * index) for index in range(count))
    # Allocated; with content (1) or without (8): the tables for unwinding have another type.
    return sum(row[5] for row in sections if row[2] & 2 and row[1] in (1, 8) and bool(row[2] & 1) == writable)
