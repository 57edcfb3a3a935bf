"""Hand-made files that try to harm whoever reads them, built from scratch so that every byte is as wanted."""

import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Files = Mapping[str, bytes]
DATE = (1980, 1, 1, 0, 0, 0)


class Danger:
    """An object whose pickle makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def local(name: str, data: bytes, *, size: int | None = None) -> bytes:
    """A part with the header before it."""
    sizes = struct.pack("<3L", zlib.crc32(data), len(data), len(data) if size is None else size)
    return (
        b"PK\3\4"
        + struct.pack("<5H", 20, 0, 0, 0, 33)
        + sizes
        + struct.pack("<2H", len(name), 0)
        + name.encode()
        + data
    )


def central(name: str, data: bytes, offset: int, *, size: int | None = None) -> bytes:
    """An entry of the directory."""
    sizes = struct.pack("<3L", zlib.crc32(data), len(data), len(data) if size is None else size)
    head = b"PK\1\2" + struct.pack("<6H", 20, 20, 0, 0, 0, 33) + sizes
    return head + struct.pack("<5H2L", len(name), 0, 0, 0, 0, 0, offset) + name.encode()


def end(count: int, size: int, offset: int, comment: bytes = b"") -> bytes:
    """The end record."""
    return b"PK\5\6" + struct.pack("<4H2LH", 0, 0, count, count, size, offset, len(comment)) + comment


def pack(files: Files) -> tuple[bytes, bytes]:
    """The parts and the directory of a plain zip."""
    parts, entries = b"", b""
    for name, data in files.items():
        entries += central(name, data, len(parts))
        parts += local(name, data)
    return parts, entries


def plain(files: Files) -> bytes:
    """A zip as it should be."""
    parts, entries = pack(files)
    return parts + entries + end(len(files), len(entries), len(parts))


def two_directories(shown: Files, hidden: Files) -> bytes:
    """A zip that Python's reader opens as `shown` and torch's as `hidden`; both need names of the same lengths.

    Torch follows the offset in the end record. Python looks right before the end record, and takes the distance
    between the two places off every offset that it finds there.
    """
    parts, entries = pack(hidden)
    start = len(parts) + len(entries)
    more = b"".join(local(name, data) for name, data in shown.items())
    distance = start + len(more) - len(parts)
    second, at = b"", start
    for name, data in shown.items():
        second += central(name, data, (at - distance) % (1 << 32))
        at += len(local(name, data))
    assert len(second) == len(entries)
    return parts + entries + more + second + end(len(shown), len(second), len(parts))


def overlapping(name: str, data: bytes) -> bytes:
    """Two entries on the same bytes."""
    parts = local(name, data)
    entries = central(name, data, 0) + central(name, data, 0).replace(name.encode(), name.encode()[:-1] + b"2")
    return parts + entries + end(2, len(entries), len(parts))


def lying_header(name: str, other: str, data: bytes) -> bytes:
    """A header that says another name than the directory."""
    parts, entries = local(other, data), central(name, data, 0)
    return parts + entries + end(1, len(entries), len(parts))


def bomb(name: str, size: int, declared: int | None = None) -> bytes:
    """A deflated part of zeros, of which the directory says `declared` bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(bytes(size)) + packer.flush()
    crc, says = zlib.crc32(bytes(size)), size if declared is None else declared
    sizes = struct.pack("<3L", crc, len(packed), says)
    parts = b"PK\3\4" + struct.pack("<5H", 20, 0, 8, 0, 33) + sizes + struct.pack("<2H", len(name), 0)
    parts += name.encode() + packed
    entry = b"PK\1\2" + struct.pack("<6H", 20, 20, 0, 8, 0, 33) + sizes
    entry += struct.pack("<5H2L", len(name), 0, 0, 0, 0, 0, 0) + name.encode()
    return parts + entry + end(1, len(entry), len(parts))


def large_sizes(name: str, data: bytes, claimed: int) -> bytes:
    """A zip64 entry whose 64-bit size is not that of its data."""
    extra = struct.pack("<2HQ", 1, 8, claimed)
    entry = b"PK\1\2" + struct.pack("<6H", 45, 45, 0, 0, 0, 33)
    entry += struct.pack("<3L", zlib.crc32(data), len(data), 0xFFFFFFFF)
    entry += struct.pack("<5H2L", len(name), len(extra), 0, 0, 0, 0, 0) + name.encode() + extra
    parts = local(name, data)
    return parts + entry + end(1, len(entry), len(parts))


#: Every way to make a zip ambiguous that was thought of: a name, and a function of good files.
AMBIGUOUS: dict[str, Callable[[Files], bytes]] = {
    "two directories": lambda files: two_directories(files, dict.fromkeys(files, b"other")),
    "something before": lambda files: b"MZ" + plain(files),
    "something between": lambda files: pack(files)[0] + b"gap" + _end_after(files, 3),
    "something after": lambda files: plain(files) + b"more",
    "a comment": lambda files: _with_comment(files, b"a comment"),
    "a whole zip as comment": lambda files: _with_comment(files, plain({"x": b"y"})),
    "overlapping parts": lambda files: overlapping(*next(iter(files.items()))),
    "another name in the header": lambda files: lying_header(next(iter(files)), "y" * len(next(iter(files))), b"data"),
    "another size in the header": lambda files: _lying_size(*next(iter(files.items()))),
    "one name twice": lambda files: _twice(*next(iter(files.items())), str),
    "one name in two spellings": lambda files: _twice(*next(iter(files.items())), str.upper),
    "a 64-bit size that is wrong": lambda files: large_sizes(*next(iter(files.items())), 1 << 40),
    "a part that no entry lists": lambda files: _unlisted(files),
    "fewer entries than counted": lambda files: pack(files)[0] + pack(files)[1] + _count(files, len(files) + 1),
    "more entries than counted": lambda files: pack(files)[0] + pack(files)[1] + _count(files, len(files) - 1),
    "an encrypted part": lambda files: plain(files).replace(b"\x14\0\0\0\0\0\0\0", b"\x14\0\1\0\0\0\0\0"),
}


def _end_after(files: Files, gap: int) -> bytes:
    parts, entries = pack(files)
    return entries + end(len(files), len(entries), len(parts) + gap)


def _with_comment(files: Files, comment: bytes) -> bytes:
    parts, entries = pack(files)
    return parts + entries + end(len(files), len(entries), len(parts), comment)


def _count(files: Files, count: int) -> bytes:
    parts, entries = pack(files)
    return end(count, len(entries), len(parts))


def _lying_size(name: str, data: bytes) -> bytes:
    parts, entries = local(name, data, size=len(data) + 1), central(name, data, 0)
    return parts + entries + end(1, len(entries), len(parts))


def _twice(name: str, data: bytes, spell: Callable[[str], str]) -> bytes:
    first = local(name, data)
    parts = first + local(spell(name), b"other")
    entries = central(name, data, 0) + central(spell(name), b"other", len(first))
    return parts + entries + end(2, len(entries), len(parts))


def _unlisted(files: Files) -> bytes:
    hidden = local("hidden", b"hidden")
    parts, entries = b"", b""
    for name, data in files.items():
        entries += central(name, data, len(parts))
        parts += local(name, data)
    return parts + hidden + entries + end(len(files), len(entries), len(parts) + len(hidden))


def unpack(data: bytes) -> dict[str, bytes]:
    """The files of a good zip."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def edit_json(files: dict[str, bytes], name: str, change: Callable[[Any], None]) -> dict[str, bytes]:
    """The files with one JSON part changed."""
    content = json.loads(files[name])
    change(content)
    return {**files, name: json.dumps(content).encode()}


def pickled_constant(files: dict[str, bytes], mark: Path) -> dict[str, bytes]:
    """A .pt2 whose constant is a pickled object, which torch loads without limits."""
    meta = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}

    def add(config: Any) -> None:
        config["config"]["evil"] = meta

    root = next(iter(files)).partition("/")[0]
    files = edit_json(files, f"{root}/data/constants/model_constants_config.json", add)
    return {**files, f"{root}/data/constants/opaque_obj_0": pickle.dumps(Danger(mark))}
