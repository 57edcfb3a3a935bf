"""Measures the CPU kernels of the firmware: `python bench/kernel_sizes.py` prints a table in Markdown.

For each kernel: its own code, and all code and constants that it brings into a firmware which has no other kernel.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tosaic.board.kernels import FIRMWARE, list_kernels
from tosaic.board.toolchain import find_toolchain

ALLOCATED, RELOCATIONS, SYMBOLS = 2, 9, 2


@dataclass(frozen=True)
class Object:
    """Sections of an object file: their sizes, those that each refers to, and those where symbols are."""

    sizes: dict[int, int]
    needs: dict[int, set[int]]
    places: dict[str, int]

    def find_all(self, starts: Iterable[int]) -> set[int]:
        """The sections that these need, with themselves."""
        found, open_ = set[int](), list(starts)
        while open_:
            section = open_.pop()
            if section not in found:
                found.add(section)
                open_ += self.needs.get(section, ())
        return found

    def count(self, sections: Iterable[int]) -> int:
        return sum(self.sizes.get(section, 0) for section in sections)


def read_object(data: bytes) -> Object:
    """Read an object file of 32-bit Arm."""
    offset, size, count = struct.unpack_from("<I", data, 32)[0], *struct.unpack_from("<HH", data, 46)
    rows = [struct.unpack_from("<10I", data, offset + size * index) for index in range(count)]
    table = next(row for row in rows if row[1] == SYMBOLS)
    names = rows[table[6]][4]
    symbols = [struct.unpack_from("<IIIBBH", data, table[4] + at) for at in range(0, table[5], 16)]
    places: dict[str, int] = {}
    for name, *_, section in symbols:
        start = names + name
        places[data[start : data.index(0, start)].decode()] = section
    needs: dict[int, set[int]] = {}
    for row in rows:
        if row[1] == RELOCATIONS:
            used = (struct.unpack_from("<II", data, row[4] + at)[1] >> 8 for at in range(0, row[5], 8))
            needs.setdefault(row[7], set()).update(symbols[index][5] for index in used)
    sizes = {index: row[5] for index, row in enumerate(rows) if row[2] & ALLOCATED and row[1] == 1}
    return Object(sizes, needs, places)


def measure() -> list[tuple[str, str, int, int]]:
    """The operator, file, own bytes and bytes alone of every kernel."""
    zig = find_toolchain("zig")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "kernels.o"
        sources = [str(path) for path in sorted((FIRMWARE / "kernels").glob("*.c"))]
        subprocess.run([*zig.command, *zig.flags, f"-I{FIRMWARE}", "-r", *sources, "-o", str(output)], check=True)
        found = read_object(output.read_bytes())
    rows: list[tuple[str, str, int, int]] = []
    for operator, kernel in sorted(list_kernels().items()):
        place = found.places[kernel.function]
        rows.append((operator, kernel.path.name, found.sizes[place], found.count(found.find_all([place]))))
    everything = found.count(found.find_all(found.places[kernel.function] for kernel in list_kernels().values()))
    return [*rows, (f"all {len(rows)} kernels", "", sum(row[2] for row in rows), everything)]


def main() -> int:
    rows = measure()
    print("| operator | file | own bytes | alone |\n|---|---|---:|---:|")
    for operator, file, own, alone in rows:
        print(f"| {operator} | {file} | {own:,} | {alone:,} |")
    print(f"\nOn average {rows[-1][3] / (len(rows) - 1):,.0f} bytes for each kernel.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
