"""Damages files where it matters: in tables, headers, commands and directories, seldom in plain data."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

Rng = np.random.Generator
Damage = Callable[[bytearray, Rng], None]
WILD = (0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x00010000, 0xFFFF, 0)
BLOB_HEADER, IO_WORDS = 32, 9
_DIRECTORY, _LOCAL, _END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"


def set_word(data: bytearray, rng: Rng, at: int) -> None:
    """A number of 32 bits: a wild one, a random one, or a little more or less than it was."""
    if at + 4 > len(data):
        return
    old = struct.unpack_from("<I", data, at)[0]
    near = old + int(rng.integers(-64, 65))
    choices = (int(rng.choice(WILD)), int(rng.integers(1 << 32)), near, near)
    struct.pack_into("<I", data, at, choices[int(rng.integers(4))] & 0xFFFFFFFF)


def cut_off(data: bytearray, rng: Rng) -> None:
    del data[int(rng.integers(len(data))) :]


def flip_anywhere(data: bytearray, rng: Rng) -> None:
    for _ in range(int(rng.choice([1, 16]))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))


class Tables:
    """The places of a flatbuffer: field lists, fields, offsets and lengths of vectors, found without a schema."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self.data, self.start = data, start
        self.lists: set[int] = set()
        self.fields: set[int] = set()
        self.lengths: set[int] = set()
        self._seen: set[int] = set()
        if start + 8 <= len(data):
            self._walk(start + self._read("<I", start))

    def _read(self, form: str, at: int) -> int:
        if at < 0 or at + struct.calcsize(form) > len(self.data):
            return 0
        return int(struct.unpack_from(form, self.data, at)[0])

    def _walk(self, first: int) -> None:
        waiting = [first]
        while waiting and len(self._seen) < 5000:
            at = waiting.pop()
            if at in self._seen:
                continue
            self._seen.add(at)
            entries = self._open(at)
            for slot in entries:
                field = at + self._read("<H", slot)
                self.lists.add(slot)
                self.fields.add(field)
                waiting += self._follow(field)

    def _open(self, at: int) -> list[int]:
        """The entries of a table's field list; nothing if this is no table."""
        place = at - self._read("<i", at)
        size = self._read("<H", place)
        if not self.start <= place < len(self.data) - 4 or not 4 <= size <= 64 or size % 2:
            return []
        self.lists |= {place, place + 2}
        return [slot for slot in range(place + 4, place + size, 2) if self._read("<H", slot)]

    def _follow(self, field: int) -> list[int]:
        """What a field may point to: a table, or a vector of tables."""
        target = field + self._read("<I", field)
        if not field < target < len(self.data) - 4:
            return []
        found = [target]
        count = self._read("<I", target)
        if 0 < count <= 4096 and target + 4 + count <= len(self.data):
            self.lengths.add(target)
            inner = [target + 4 + 4 * i for i in range(min(count, 256))]
            tables = [at + self._read("<I", at) for at in inner if at + 8 < len(self.data)]
            if tables and all(at < len(self.data) for at in tables):
                self.fields |= set(inner)
                found += tables
        return found


def damage_tables(start: int = 0) -> Damage:
    """An entry of a field list, a field, or the length of a vector."""

    def damage(data: bytearray, rng: Rng) -> None:
        places = Tables(bytes(data), start)
        kind = int(rng.integers(8))
        found = places.lists if kind < 2 else places.lengths if kind < 4 else places.fields
        chosen = sorted(at for at in found if at + 4 <= len(data))
        if not chosen:
            flip_anywhere(data, rng)
            return
        at = int(rng.choice(chosen))
        if kind < 2:
            struct.pack_into("<H", data, at, int(rng.choice([0, 4, 0xFFFF, int(rng.integers(64))])))
        elif rng.integers(3):
            set_word(data, rng, at)
        else:
            data[at] = int(rng.integers(256))

    return damage


def damage_header(size: int) -> Damage:
    """A word among the first bytes of a file."""
    return lambda data, rng: set_word(data, rng, 4 * int(rng.integers(max(1, min(size, len(data) - 4) // 4))))


def find_blocks(data: bytes | bytearray) -> dict[str, tuple[int, int]]:
    """Begin and end of the data of each block in a blob."""
    blocks: dict[str, tuple[int, int]] = {}
    at = 0
    while at < len(data):
        name, size = struct.unpack_from("<16sI", data, at)
        blocks[name.partition(b"\0")[0].decode()] = (at + BLOB_HEADER, at + BLOB_HEADER + size)
        at += BLOB_HEADER + size + -size % 16
    return blocks


def damage_block_header(data: bytearray, rng: Rng) -> None:
    begin, _ = find_blocks(data)[str(rng.choice(list(find_blocks(data))))]
    set_word(data, rng, begin - BLOB_HEADER + 4 * int(rng.integers(6)))


def flip_command(data: bytearray, rng: Rng) -> None:
    begin, end = find_blocks(data)["cmd_data"]
    for _ in range(int(rng.integers(1, 4))):
        data[int(rng.integers(begin + BLOB_HEADER, end))] ^= 1 << int(rng.integers(8))


def set_parameter(data: bytearray, rng: Rng) -> None:
    """The upper half of a command word: sizes, strides, regions, modes."""
    begin, end = find_blocks(data)["cmd_data"]
    at = int(rng.integers((begin + BLOB_HEADER) // 4, end // 4)) * 4
    struct.pack_into("<H", data, at + 2, int(rng.choice([0, 1, 0x7FFF, 0xFFFF, int(rng.integers(1 << 16))])))


def set_payload(data: bytearray, rng: Rng) -> None:
    """The word after a command with a payload: addresses, strides, scales, lengths."""
    begin, end = find_blocks(data)["cmd_data"]
    words = [at for at in range(begin + BLOB_HEADER, end - 4, 4) if data[at + 1] & 0xC0 == 0x40]
    set_word(data, rng, int(rng.choice(words)) + 4)


def copy_commands(data: bytearray, rng: Rng) -> None:
    begin, end = find_blocks(data)["cmd_data"]
    size = 4 * int(rng.integers(1, 16))
    source, target = (
        begin + BLOB_HEADER + 4 * int(rng.integers((end - begin - BLOB_HEADER - size) // 4)) for _ in "ab"
    )
    data[target : target + size] = data[source : source + size]


def flip_weights(data: bytearray, rng: Rng) -> None:
    begin, end = find_blocks(data)["weight_data"]
    for _ in range(int(rng.integers(1, 9))):
        data[int(rng.integers(begin, max(end, begin + 1)))] ^= 1 << int(rng.integers(8))


def set_border(data: bytearray, rng: Rng) -> None:
    """Shape, element size, offset or region of an input or output."""
    begin, _ = find_blocks(data)[str(rng.choice(["inputs", "outputs"]))]
    set_word(data, rng, begin + 4 * int(rng.integers(1 + IO_WORDS)))


def set_scratch(data: bytearray, rng: Rng) -> None:
    set_word(data, rng, find_blocks(data)["scratch_size"][0])


def damage_directory(data: bytearray, rng: Rng) -> None:
    """A field of a zip's directory, of a member's own header, or of the end record."""
    mark, size = [(_DIRECTORY, 46), (_LOCAL, 30), (_END, 22)][int(rng.integers(3))]
    places = [at for at in range(len(data) - 3) if data.startswith(mark, at)]
    at = int(rng.choice(places)) + int(rng.integers(4, size)) if places else 0
    if rng.integers(2):
        set_word(data, rng, at)
    elif at < len(data):
        data[at] = int(rng.integers(256))


def damage_section(data: bytearray, rng: Rng) -> None:
    """The tables of one of a .vgf file's first three sections."""
    start = struct.unpack_from("<Q", data, 16 + 16 * int(rng.integers(3)))[0]
    damage_tables(int(start))(data, rng)


_IN_BLOB: tuple[Damage, ...] = (
    damage_block_header,
    flip_command,
    set_parameter,
    set_payload,
    copy_commands,
    set_border,
    set_scratch,
)
_ZIP: tuple[Damage, ...] = (damage_directory,) * 4
#: What is damaged, by the kind of file; about one in ten is damage anywhere.
DAMAGES: dict[str, tuple[Damage, ...]] = {
    "pte": (damage_tables(),) * 7 + (damage_header(32),),
    "blob": (*_IN_BLOB, flip_weights),
    "tosa": (damage_tables(),) * 7 + (damage_header(16),),
    "ptd": (damage_tables(),) * 6 + (damage_header(48),) * 2,
    "vgf": (damage_section,) * 6 + (damage_header(128),) * 2,
    "tosaic": _ZIP,
    "pt2": _ZIP,
    "npz": _ZIP,
    "pt": _ZIP,
}


def damage(data: bytes, kind: str, number: int, inner: list[bytes]) -> tuple[str, bytes]:
    """What is damaged, and the file. `inner` are the blobs inside a .pte, whose commands are damaged in place."""
    rng = np.random.default_rng(number)
    if rng.integers(10) == 0:
        chosen = (cut_off, flip_anywhere)[int(rng.integers(2))]
    elif inner and rng.integers(2):
        part = inner[int(rng.integers(len(inner)))]
        hurt = bytearray(part)
        chosen = _IN_BLOB[int(rng.integers(len(_IN_BLOB)))]
        chosen(hurt, rng)
        return f"{chosen.__qualname__.partition('.')[0]} inside", data.replace(part, bytes(hurt))
    else:
        chosen = DAMAGES[kind][int(rng.integers(len(DAMAGES[kind])))]
    changed = bytearray(data)
    chosen(changed, rng)
    return chosen.__qualname__.partition(".")[0], bytes(changed)
