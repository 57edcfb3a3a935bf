"""Reads the ELF file of a firmware: what is loaded, which memory it uses, and its symbols."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tosaic.core.errors import Invalid

_HEADER = struct.Struct("<16sHHIIIIIHHHHHH")
_SEGMENT = struct.Struct("<8I")
_SECTION = struct.Struct("<10I")
_SYMBOL = struct.Struct("<IIIBBH")
_ARM, _LOAD, _SYMBOLS, _NO_BITS = 40, 1, 2, 8
_WRITE, _ALLOCATE, _EXECUTE = 1, 2, 4
_FUNCTION = 2
#: A firmware has a few dozen segments and sections, and some hundred symbols.
_MOST_ROWS, _MOST_SYMBOLS = 1024, 1 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """A range of memory that the firmware uses."""

    name: str
    base: int
    size: int
    writable: bool
    executable: bool


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name in the program. Bit 0 of a function's address is cleared."""

    name: str
    address: int
    size: int
    is_function: bool


@dataclass(frozen=True, slots=True)
class Elf:
    """A program for a Cortex-M.

    loads    bytes by the address at which a loader puts them
    content  the same by the address at which the program has them, to which it may copy them
    """

    loads: tuple[tuple[int, bytes], ...]
    content: tuple[tuple[int, bytes], ...]
    ranges: tuple[Range, ...]
    symbols: dict[str, Symbol]

    def describe(self, address: int) -> str:
        """Describe an address in the code, with the function that it is in."""
        for symbol in self.symbols.values():
            if symbol.is_function and symbol.address <= address < symbol.address + max(2, symbol.size):
                return f"`{symbol.name}`, address 0x{address:08x}"
        return f"address 0x{address:08x}"

    def read_symbol(self, name: str) -> bytes:
        """Return the bytes of a symbol in the file; raise Invalid if there is none of this name."""
        symbol = self.symbols.get(name)
        if symbol is not None:
            for base, data in self.content:
                if base <= symbol.address and symbol.address + symbol.size <= base + len(data):
                    return data[symbol.address - base :][: symbol.size]
        raise Invalid(f"the ELF file has no `{name}`", fix="use a file that `tosaic build` has written")


def read_elf(data: bytes) -> Elf:
    """Read an untrusted ELF file."""
    return _Reader(data).read()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> Elf:
        if self._data[:6] != b"\x7fELF\x01\x01":
            raise Invalid("this is not an ELF file for a Cortex-M", why="its header is not that of a 32-bit ELF file")
        header = self._unpack(_HEADER, 0)
        _, _, machine, _, _, segments, sections, _, _, _, segment_count, _, section_count, names = header
        if machine != _ARM:
            raise Invalid("this is not an ELF file for a Cortex-M", why=f"it is for machine {machine}, not for Arm")
        ranges: list[Range] = []
        loads: list[tuple[int, bytes]] = []
        content: list[tuple[int, bytes]] = []
        for kind, offset, place, address, size, _, _, _ in self._list(_SEGMENT, segments, segment_count):
            if kind == _LOAD and size:
                data = self._cut(offset, size)
                loads.append((address, data))
                content.append((place, data))
                # Initial values of variables are loaded elsewhere, for the firmware to copy.
                ranges.append(Range("loaded", address, size, False, False))
        symbols: dict[str, Symbol] = {}
        rows = list(self._list(_SECTION, sections, section_count))
        titles = self._cut(rows[names][4], rows[names][5]) if names < len(rows) else b""
        for name, kind, flags, address, offset, size, link, _, _, _ in rows:
            if flags & _ALLOCATE and size:
                # Linkers do not mark a section as writable if no variable is in it, such as that of the stack.
                writable = bool(flags & _WRITE) or kind == _NO_BITS
                ranges.append(Range(_read_name(titles, name), address, size, writable, bool(flags & _EXECUTE)))
            if kind == _SYMBOLS and link < len(rows) and not symbols:
                strings = rows[link]
                symbols |= {symbol.name: symbol for symbol in self._read_symbols(offset, size, strings[4], strings[5])}
        return Elf(tuple(loads), tuple(content), tuple(ranges), symbols)

    def _read_symbols(self, offset: int, size: int, names: int, names_size: int) -> Iterator[Symbol]:
        strings = self._cut(names, names_size)
        for name, value, length, info, _, _ in self._list(_SYMBOL, offset, size // _SYMBOL.size, _MOST_SYMBOLS):
            text = _read_name(strings, name)
            is_function = info & 0xF == _FUNCTION
            # Names that begin with `$` mark code and data for disassemblers.
            if text and not text.startswith("$"):
                yield Symbol(text, value & ~1 if is_function else value, length, is_function)

    def _list(self, row: struct.Struct, offset: int, count: int, most: int = _MOST_ROWS) -> Iterator[tuple[int, ...]]:
        if count > most:
            raise Invalid("the ELF file is damaged", why=f"a table has {count} rows; the maximum is {most}")
        return (self._unpack(row, offset + index * row.size) for index in range(count))

    def _unpack(self, row: struct.Struct, offset: int) -> tuple[int, ...]:
        return row.unpack(self._cut(offset, row.size))

    def _cut(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._data):
            raise Invalid("the ELF file is damaged", why=f"{size} bytes at offset {offset} are outside the file")
        return self._data[offset : offset + size]


def _read_name(strings: bytes, at: int) -> str:
    return strings[at : strings.find(b"\0", at)].decode("ascii", "replace")
