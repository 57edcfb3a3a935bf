"""The description of a board, `board.toml` in its folder: memories, devices, and the simulators that know it.

The build reads it for the linker script and the addresses in the C code, the virtual board for its memory map.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from tosaic.board.profile import list_profiles
from tosaic.core.errors import Invalid
from tosaic.npu.accelerator import ACCELERATORS

FILE = "board.toml"
#: The folders of the boards that come with Tosaic.
_BOARDS = Path(__file__).parent / "boards"
_MOST = 1 << 32
#: Bytes of registers that each device has at most.
UART_BYTES, NPU_BYTES = 0x1000, 0x2000

Toml: TypeAlias = "Mapping[str, Toml] | Sequence[Toml] | str | int | float | bool"
Wanted = TypeVar("Wanted", int, str)


@dataclass(frozen=True, slots=True)
class Area:
    """A memory. `port` is `axi0` or `axi1`, the port through which the NPU accesses it; empty if it cannot."""

    name: str
    base: int
    size: int
    port: str = ""

    @property
    def end(self) -> int:
        return self.base + self.size


@dataclass(frozen=True, slots=True)
class Npu:
    """The NPU: the addresses of its registers, its interrupt, and the accelerators that the board exists with."""

    bases: tuple[int, ...]
    interrupt: int
    accelerators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Qemu:
    """QEMU's name of the board, and the address at which the memory begins that it can share."""

    machine: str
    ddr: int


@dataclass(frozen=True, slots=True)
class Fvp:
    """Arm's simulator: its program (with `{family}` for the NPU's), the settings of NPU and CPU, and all others."""

    program: str
    macs: str
    cpu: str
    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A board. `folder` holds its files; `vectors` is where the CPU finds its vector table after reset."""

    name: str
    folder: Path
    title: str
    clock: int
    vectors: int
    areas: tuple[Area, ...]
    uarts: tuple[int, ...]
    npu: Npu
    qemu: Qemu | None = None
    fvp: Fvp | None = None

    def find_area(self, address: int) -> Area | None:
        """Find the memory that has an address."""
        return next((area for area in self.areas if area.base <= address < area.end), None)


def list_boards() -> list[str]:
    """List the boards that come with Tosaic."""
    return sorted(path.parent.name for path in _BOARDS.glob(f"*/{FILE}"))


def find_board(name: str) -> Board:
    """Return the board of that name, or of a folder with a `board.toml`."""
    if name in list_boards():
        return read_board(_BOARDS / name)
    folder = Path(name)
    if (folder / FILE).is_file():
        return read_board(folder)
    yours = f"A board of yours is a folder with a `{FILE}`: see docs/porting.md"
    boards = [board for board in list_boards() if board != "template"]
    if name in list_profiles():
        raise Invalid(
            f"there is no firmware for the board `{name}`",
            why="only its memories are known, for `tosaic fit`",
            fix=f"use {' or '.join(f'`{board}`' for board in boards)}. {yours}",
        )
    near = difflib.get_close_matches(name, boards, n=1, cutoff=0.5) or boards
    quoted = " or ".join(f"`{board}`" for board in near)
    raise Invalid(f"unknown board `{name}`", fix=f"did you mean {quoted}? {yours}")


def list_suited(accelerator: str) -> list[str]:
    """List the boards that exist with an accelerator."""
    return [name for name in list_boards() if accelerator in find_board(name).npu.accelerators]


def suit_board(accelerator: str) -> Board:
    """Return the first board that exists with an accelerator."""
    for name in list_suited(accelerator):
        return find_board(name)
    raise Invalid(f"no board has the NPU `{accelerator}`", fix="pass the folder of a board that has one")


def read_board(folder: Path) -> Board:
    """Read the description of a board in its folder."""
    path = folder / FILE
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"cannot read the board `{folder}`", where=str(path), why=str(error)) from None
    return _Reader(path, table).read()


class _Reader:
    """Reads the tables of one file. Errors name the field."""

    def __init__(self, path: Path, table: Mapping[str, Toml]) -> None:
        self._path, self._table = path, table

    def read(self) -> Board:
        table = self._table
        self._check_names(table, "", ("title", "clock", "vectors", "memory", "uart", "npu"), ("qemu", "fvp"))
        areas = self._read_areas()
        return Board(
            name=self._path.parent.resolve().name,
            folder=self._path.parent,
            title=self._get(table, "title", str),
            clock=self._get(table, "clock", int),
            vectors=self._get(table, "vectors", int),
            areas=areas,
            uarts=self._get_list(self._open("uart", ("bases",)), "uart.bases", int),
            npu=self._read_npu(),
            qemu=self._read_qemu() if "qemu" in table else None,
            fvp=self._read_fvp() if "fvp" in table else None,
        )

    def _read_areas(self) -> tuple[Area, ...]:
        memory = self._table["memory"]
        if not isinstance(memory, Mapping) or not memory:
            raise self._fail("memory", "it must have a table for each memory")
        areas: list[Area] = []
        for name in memory:
            table = self._open(f"memory.{name}", ("base", "size"), ("port",))
            port = self._get(table, f"memory.{name}.port", str) if "port" in table else ""
            if port not in ("", "axi0", "axi1"):
                raise self._fail(f"memory.{name}.port", f"it is `{port}`, not `axi0` or `axi1`")
            base, size = (self._get(table, f"memory.{name}.{key}", int) for key in ("base", "size"))
            area = Area(name, base, size, port)
            if size % 1024 or base % 1024 or not 0 < area.end <= _MOST:
                raise self._fail(f"memory.{name}", "base and size must be multiples of 1024 within 32 bits")
            clash = next((other for other in areas if base < other.end and other.base < area.end), None)
            if clash is not None:
                raise self._fail(f"memory.{name}", f"it overlaps memory.{clash.name}")
            areas.append(area)
        return tuple(areas)

    def _read_npu(self) -> Npu:
        table = self._open("npu", ("bases", "interrupt", "accelerators"))
        names = self._get_list(table, "npu.accelerators", str)
        unknown = [name for name in names if name not in ACCELERATORS]
        if unknown:
            raise self._fail("npu.accelerators", f"there is no `{unknown[0]}`; `tosaic targets` lists all")
        return Npu(self._get_list(table, "npu.bases", int), self._get(table, "npu.interrupt", int), names)

    def _read_qemu(self) -> Qemu:
        table = self._open("qemu", ("machine", "ddr"))
        return Qemu(self._get(table, "qemu.machine", str), self._get(table, "qemu.ddr", int))

    def _read_fvp(self) -> Fvp:
        table = self._open("fvp", ("program", "macs", "cpu", "settings"))
        program, macs, cpu = (self._get(table, f"fvp.{key}", str) for key in ("program", "macs", "cpu"))
        return Fvp(program, macs, cpu, self._get_list(table, "fvp.settings", str))

    def _open(self, path: str, needed: Sequence[str], others: Sequence[str] = ()) -> Mapping[str, Toml]:
        """Return a table by its dotted name, after checking its fields."""
        table: Toml = self._table
        for name in path.split("."):
            table = table[name] if isinstance(table, Mapping) else ""
        if not isinstance(table, Mapping):
            raise self._fail(path, "it must be a table")
        self._check_names(table, f"{path}.", needed, others)
        return table

    def _check_names(
        self, table: Mapping[str, Toml], prefix: str, needed: Sequence[str], others: Sequence[str]
    ) -> None:
        for name in needed:
            if name not in table:
                raise self._fail(f"{prefix}{name}", "it is missing")
        for name in table:
            if name not in (*needed, *others):
                raise self._fail(f"{prefix}{name}", f"use one of {', '.join((*needed, *others))}")

    def _get(self, table: Mapping[str, Toml], path: str, kind: type[Wanted]) -> Wanted:
        return self._check(table[path.rpartition(".")[2]], path, kind)

    def _get_list(self, table: Mapping[str, Toml], path: str, kind: type[Wanted]) -> tuple[Wanted, ...]:
        value = table[path.rpartition(".")[2]]
        if isinstance(value, str | int | float | Mapping) or not value:
            raise self._fail(path, "it must be a list with at least one item")
        return tuple(self._check(item, path, kind) for item in value)

    def _check(self, value: Toml, path: str, kind: type[Wanted]) -> Wanted:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self._fail(path, f"it is {value!r}, which is not {'a number' if kind is int else 'text'}")
        if isinstance(value, int) and not 0 <= value < _MOST:
            raise self._fail(path, f"{value} does not fit in 32 bits")
        return value

    def _fail(self, field: str, why: str) -> Invalid:
        return Invalid(f"`{self._path}` does not describe a board", where=f"field `{field}`", why=why)
