"""Unpacks untrusted zip files, in memory and within bounds.

A zip file can be read in more than one way: by its directory, by the headers before its parts, from either end. This
reader accepts only files that look the same either way: one directory right before the end, parts that fill the rest
without a gap, and headers that agree. Its result is checked, so no other reader may open the file again.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid

#: The maximum number of parts in a file, and the overhead of each in bytes.
MAX_FILES = 1 << 16
ENTRY_COST = 1024

_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END64, _LOCATOR, _DESCRIPTOR = b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08"
_STORED, _DEFLATED = 0, 8
_FOLLOWS = 1 << 3
#: deflate's levels, sizes that follow the data, names in UTF-8
_FLAGS = 0b110 | _FOLLOWS | 1 << 11
_ZIP64, _MAX16, _MAX32 = 1, 0xFFFF, 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the file as the directory describes it."""

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int


def unpack(
    data: bytes | bytearray | memoryview, names: re.Pattern[str], what: str, budget: Budget
) -> dict[str, memoryview]:
    """Return the files of a zip in its order; reject one that `names` does not know. `what` is the zip in errors."""
    view = memoryview(data)
    name = "the directory"
    try:
        start, entries = _read_directory(view, budget)
        _check_names(entries, names)
        files: dict[str, memoryview] = {}
        for entry, content in zip(entries, _find_contents(view, entries, start), strict=True):
            name = entry.name
            files[name] = _inflate(entry, content, budget)
            if zlib.crc32(files[name]) != entry.crc:
                _fail("its checksum is wrong")
        return files
    except _DamagedError as error:
        raise Invalid(f"{what} is damaged", where=f"`{error.name or name}`", why=str(error)) from None
    except (struct.error, zlib.error) as error:
        raise Invalid(f"{what} is damaged", where=f"`{name}`", why=str(error)) from None


class _DamagedError(Exception):
    """Why a file is rejected, and the invalid part if it is not the current one."""

    name = ""


def _fail(why: str, name: str = "") -> NoReturn:
    error = _DamagedError(why)
    error.name = name[:80]
    raise error


def _read_directory(view: memoryview, budget: Budget) -> tuple[int, list[_Entry]]:
    """Read the directory; return its offset and its entries."""
    end = len(view) - 22
    if end < 0 or bytes(view[end : end + 4]) != _END:
        _fail("it does not end with the end record of a zip file, or a comment follows")
    disk, first, here, count, size, start, comment = struct.unpack("<4H2LH", view[end + 4 :])
    stop = end
    if end >= 20 and bytes(view[end - 20 : end - 16]) == _LOCATOR:
        stop, count, size, start = _read_end64(view, end - 20, (here, count, size, start))
    elif here != count:
        _fail("its end record has two different counts")
    if disk or first or comment or start + size != stop:
        _fail("its directory does not end at its end record")
    if count > MAX_FILES:
        _fail(f"it has {count} files; at most {MAX_FILES} are unpacked")
    budget.take(count * ENTRY_COST, "the directory of a zip file")
    entries: list[_Entry] = []
    at = start
    for _ in range(count):
        entry, at = _read_entry(view[:stop], at)
        entries.append(entry)
    if at != stop:
        _fail("its directory does not have the length in its end record")
    return start, entries


def _read_end64(view: memoryview, at: int, short: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Read the end record for large files: its offset, and the count, size and start of the directory."""
    disk, place, disks = struct.unpack("<LQL", view[at + 4 : at + 20])
    if disk or disks != 1 or place + 56 != at or bytes(view[place : place + 4]) != _END64:
        _fail("its two end records are not next to each other")
    length, _, _, number, first, here, count, size, start = struct.unpack("<Q2H2L4Q", view[place + 4 : at])
    if length != 44 or number or first or here != count:
        _fail("its large end record is not usable")
    limits = (_MAX16, _MAX16, _MAX32, _MAX32)
    for small, large, limit in zip(short, (here, count, size, start), limits, strict=True):
        if small not in (large, limit):
            _fail("its two end records disagree")
    return place, count, size, start


def _read_entry(view: memoryview, at: int) -> tuple[_Entry, int]:
    if bytes(view[at : at + 4]) != _CENTRAL:
        _fail(f"there is no entry at {at}")
    fields = struct.unpack("<6H3L5H2L", view[at + 4 : at + 46])
    flags, method, crc, packed, size = fields[2], fields[3], *fields[6:9]
    name_size, extra_size, comment_size, disk, offset = *fields[9:13], fields[15]
    extra_at = at + 46 + name_size
    raw_name, extra = bytes(view[at + 46 : extra_at]), view[extra_at : extra_at + extra_size]
    end = extra_at + extra_size + comment_size
    if end > len(view) or len(raw_name) != name_size:
        _fail(f"the entry at {at} is cut off")
    name = _decode(raw_name)
    if disk or flags & ~_FLAGS or method not in (_STORED, _DEFLATED):
        _fail("it is encrypted, or not compressed with deflate", name)
    size, packed, offset = _widen((size, packed, offset), extra, name)
    if method == _STORED and size != packed:
        _fail("it is not compressed, but has two sizes", name)
    return _Entry(name, raw_name, flags, method, crc, packed, size, offset), end


def _decode(raw_name: bytes) -> str:
    try:
        return raw_name.decode()
    except UnicodeDecodeError:
        _fail("its name is not UTF-8 text", raw_name.decode("latin-1"))


def _widen(short: tuple[int, ...], extra: memoryview, name: str) -> tuple[int, ...]:
    """Return sizes and offset, taking those that did not fit into 32 bits from the extra field."""
    found: memoryview | None = None
    at = 0
    while at < len(extra):
        kind, size = struct.unpack("<2H", extra[at : at + 4])
        if kind == _ZIP64:
            if found is not None or at + 4 + size > len(extra):
                _fail("its sizes are given twice or cut off", name)
            found = extra[at + 4 : at + 4 + size]
        at += 4 + size
    values: list[int] = []
    at = 0
    for value in short:
        if value == _MAX32 and found is not None:
            values.append(struct.unpack("<Q", found[at : at + 8])[0])
            at += 8
        else:
            values.append(value)
    if found is not None and at != len(found):
        _fail("it has both 64-bit and 32-bit sizes", name)
    return tuple(values)


def _check_names(entries: Sequence[_Entry], names: re.Pattern[str]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if not names.fullmatch(entry.name):
            _fail("unexpected file name", entry.name)
        # Some readers ignore case in file names.
        if entry.name.casefold() in seen:
            _fail("the name occurs twice", entry.name)
        seen.add(entry.name.casefold())


def _find_contents(view: memoryview, entries: Sequence[_Entry], end: int) -> Iterator[memoryview]:
    """Yield the packed bytes of every entry; together with their headers they fill the file up to the directory."""
    places = sorted(entry.offset for entry in entries)
    next_place = dict(zip(places, [*places[1:], end], strict=True))
    if len(next_place) != len(places) or places[:1] != ([0] if entries else []) or (not entries and end):
        _fail("its parts overlap, or there is something before them")
    for entry in entries:
        yield _find_content(view[: next_place[entry.offset]], entry)


def _find_content(view: memoryview, entry: _Entry) -> memoryview:
    """Return the packed bytes of one entry, which must end where `view` ends."""
    at = entry.offset
    if bytes(view[at : at + 4]) != _LOCAL or len(view) < at + 30:
        _fail(f"there is no header at {at}", entry.name)
    fields = struct.unpack("<5H3L2H", view[at + 4 : at + 30])
    flags, method, crc, packed, size, name_size, extra_size = fields[1], fields[2], *fields[5:]
    extra_at = at + 30 + name_size
    start = extra_at + extra_size
    if bytes(view[at + 30 : extra_at]) != entry.raw_name or (flags, method) != (entry.flags, entry.method):
        _fail("its header and the directory disagree", entry.name)
    if start + entry.packed > len(view):
        _fail("its data overlap what follows", entry.name)
    size, packed = _widen((size, packed), view[extra_at:start], entry.name)
    claimed = (crc, packed, size)
    after = view[start + entry.packed :]
    if flags & _FOLLOWS:
        if claimed not in ((0, 0, 0), (entry.crc, entry.packed, entry.size)):
            _fail("its header and the directory disagree", entry.name)
        if bytes(after[:4]) == _DESCRIPTOR:
            after = after[4:]
        claimed = struct.unpack("<L2Q" if len(after) == 20 else "<3L", after)
    elif len(after):
        _fail("there is something between it and what follows", entry.name)
    if claimed != (entry.crc, entry.packed, entry.size):
        _fail("its header and the directory disagree", entry.name)
    return view[start : start + entry.packed]


def _inflate(entry: _Entry, content: memoryview, budget: Budget) -> memoryview:
    if entry.method == _STORED:
        return content
    budget.take(entry.size, f"`{entry.name[:80]}`")
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    # One byte more than was counted, to detect excess data.
    made = inflater.decompress(content, entry.size + 1)
    if len(made) != entry.size or not inflater.eof or inflater.unused_data:
        _fail("it does not unpack to its declared size")
    return memoryview(made)
