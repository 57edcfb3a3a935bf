"""Semihosting: the calls by which a firmware reads and writes files of its host and ends the run.

The files are in memory here: a firmware has no access to files of this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from tosaic.board.memory import Memory
from tosaic.core.errors import ToolFailed

_FAILED = 0xFFFFFFFF
_APPLICATION_EXIT = 0x20026
#: Files may not be longer than this together.
_MOST = 256 << 20


class Call(IntEnum):
    """Numbers of calls."""

    OPEN = 0x01
    CLOSE = 0x02
    WRITEC = 0x03
    WRITE0 = 0x04
    WRITE = 0x05
    READ = 0x06
    ISTTY = 0x09
    SEEK = 0x0A
    FLEN = 0x0C
    CLOCK = 0x10
    TIME = 0x11
    ERRNO = 0x13
    GET_CMDLINE = 0x15
    EXIT = 0x18
    EXIT_EXTENDED = 0x20


@dataclass(slots=True)
class _Handle:
    name: str
    position: int = 0


@dataclass(slots=True)
class Semihosting:
    """The host of one run. `exit_code` is set when the firmware ends it; `files` are by name."""

    memory: Memory
    command_line: str
    files: dict[str, bytearray]
    exit_code: int | None = None
    text: bytearray = field(default_factory=bytearray)
    _handles: dict[int, _Handle] = field(default_factory=dict[int, _Handle])

    def call(self, number: int, argument: int) -> int:
        """Handle a call and return its result."""
        match number:
            case Call.EXIT:
                # A 32-bit program passes only the reason.
                self.exit_code = 0 if argument == _APPLICATION_EXIT else 1
                return 0
            case Call.EXIT_EXTENDED:
                reason, code = self._words(argument, 2)
                self.exit_code = code if reason == _APPLICATION_EXIT else 1
                return 0
            case Call.WRITEC:
                self.text += self._bytes(argument, 1)
                return 0
            case Call.WRITE0:
                self.text += self._read_text(argument)
                return 0
            case Call.ERRNO | Call.CLOCK | Call.TIME:
                return 0
            case _:
                function = self._find(number)
                return function(argument)

    def _find(self, number: int) -> Callable[[int], int]:
        table: dict[int, Callable[[int], int]] = {
            Call.OPEN: self._open,
            Call.CLOSE: self._close,
            Call.READ: self._read,
            Call.WRITE: self._write,
            Call.SEEK: self._seek,
            Call.FLEN: self._measure,
            Call.ISTTY: lambda argument: 0,
            Call.GET_CMDLINE: self._get_command_line,
        }
        if number not in table:
            raise ToolFailed(f"the firmware makes the semihosting call 0x{number:x}", why="there is no such call here")
        return table[number]

    def _open(self, argument: int) -> int:
        pointer, mode, length = self._words(argument, 3)
        name = bytes(self._bytes(pointer, length)).decode("utf-8", "replace")
        if mode >= 4:
            self.files[name] = self.files.get(name, bytearray()) if mode >= 8 else bytearray()
        elif name not in self.files:
            return _FAILED
        handle = max(self._handles, default=0) + 1
        self._handles[handle] = _Handle(name, len(self.files[name]) if mode >= 8 else 0)
        return handle

    def _close(self, argument: int) -> int:
        return 0 if self._handles.pop(self._words(argument, 1)[0], None) is not None else _FAILED

    def _read(self, argument: int) -> int:
        number, pointer, size = self._words(argument, 3)
        handle = self._handles.get(number)
        if handle is None:
            return size
        data = self.files[handle.name][handle.position : handle.position + size]
        self._bytes(pointer, size)[: len(data)] = data
        handle.position += len(data)
        return size - len(data)

    def _write(self, argument: int) -> int:
        number, pointer, size = self._words(argument, 3)
        handle = self._handles.get(number)
        if handle is None:
            return size
        if sum(map(len, self.files.values())) + size > _MOST:
            raise ToolFailed("the firmware writes too much", why=f"more than {_MOST:,} bytes of files")
        file = self.files[handle.name]
        file[handle.position : handle.position + size] = bytes(self._bytes(pointer, size))
        handle.position += size
        return 0

    def _seek(self, argument: int) -> int:
        number, position = self._words(argument, 2)
        handle = self._handles.get(number)
        if handle is None or position > len(self.files[handle.name]):
            return _FAILED
        handle.position = position
        return 0

    def _measure(self, argument: int) -> int:
        handle = self._handles.get(self._words(argument, 1)[0])
        return _FAILED if handle is None else len(self.files[handle.name])

    def _get_command_line(self, argument: int) -> int:
        pointer, size = self._words(argument, 2)
        text = self.command_line.encode() + b"\0"
        if len(text) > size:
            return _FAILED
        self._bytes(pointer, len(text))[:] = text
        self._bytes(argument, 8)[4:] = (len(text) - 1).to_bytes(4, "little")
        return 0

    def _read_text(self, pointer: int) -> bytes:
        block = self.memory.find(pointer)
        if block is None:
            self._bytes(pointer, 1)
            return b""
        return bytes(block.data[pointer - block.base :]).partition(b"\0")[0]

    def _words(self, address: int, count: int) -> tuple[int, ...]:
        data = self._bytes(address, 4 * count)
        return tuple(int.from_bytes(data[4 * i : 4 * i + 4], "little") for i in range(count))

    def _bytes(self, address: int, size: int) -> memoryview:
        """Return a view of the firmware's memory."""
        if size == 0:
            return memoryview(bytearray())
        found = self.memory.read(address, size)
        if found is None:
            raise ToolFailed(
                f"the firmware passes {size} bytes at 0x{address:08x} to its host",
                why="this is not within one part of its memory",
            )
        return found.data
