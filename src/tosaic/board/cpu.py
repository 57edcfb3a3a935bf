"""The CPU of the virtual board: a Cortex-M33 of `unicorn`, with exceptions taken while it sleeps.

Unicorn has the instructions, but neither interrupts nor devices: `wfi` ends its run, and what hardware does when an
interrupt arrives is done here.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Mapping
from enum import Enum, auto
from types import ModuleType
from typing import Any, Protocol

from tosaic.board.memory import Block, Memory
from tosaic.core.errors import ToolFailed, TosaicError

INSTALL = "pip install 'tosaic[board]'"
#: Where a handler returns to: thread mode, main stack, a frame with floating-point registers.
_RETURN = 0xFFFF_FFE8
#: The emulator's number for a return from a handler.
_EXIT = 8
_FRAME = struct.Struct("<26I")
_WAITS = (0xBF30, 0xBF20)  # wfi, wfe
_HOST_CALL = 0xBEAB  # bkpt 0xab


class Device(Protocol):
    """Registers at some addresses."""

    def read(self, offset: int, size: int) -> int: ...

    def write(self, offset: int, size: int, value: int) -> None: ...


class Stop(Enum):
    """Why the CPU stopped: it sleeps, calls its host, returns from a handler, or `stop` was called."""

    SLEEP = auto()
    BREAK = auto()
    HOST_CALL = auto()
    RETURN = auto()


def import_unicorn() -> ModuleType:
    """Import the emulator; raise ToolFailed where it is not installed."""
    try:
        return importlib.import_module("unicorn")
    except ImportError as error:
        raise ToolFailed("the virtual board needs the package `unicorn`", why=str(error), fix=INSTALL) from None


class Cpu:
    """A Cortex-M33 with memory and devices (base, size). `describe` names an address of the code in messages.

    Instructions are counted, which is slow, if `on_instructions` is there: it is called with the number of each block,
    and says whether the CPU must stop.
    """

    def __init__(
        self,
        memory: Memory,
        devices: Mapping[tuple[int, int], Device],
        describe: Callable[[int], str],
        *,
        on_instructions: Callable[[int], bool] | None = None,
    ) -> None:
        self._memory, self._describe = memory, describe
        self._unicorn, self._arm = import_unicorn(), importlib.import_module("unicorn.arm_const")
        #: Instructions so far, where they are counted.
        self.instructions = 0
        self._lengths: dict[tuple[int, int], int] = {}
        self._fault = ""
        self._called = False
        unicorn = self._unicorn
        self._uc: Any = unicorn.Uc(unicorn.UC_ARCH_ARM, unicorn.UC_MODE_THUMB | unicorn.UC_MODE_MCLASS)
        self._uc.ctl_set_cpu_model(self._arm.UC_CPU_ARM_CORTEX_M33)
        for block in memory.blocks:
            self._map(block)
        for (base, size), device in devices.items():
            self._attach(base, size, device)
        self._uc.hook_add(unicorn.UC_HOOK_INTR, self._take_interrupt)
        self._uc.hook_add(unicorn.UC_HOOK_MEM_INVALID, self._take_wrong_access)
        self._on_instructions = on_instructions
        if on_instructions is not None:
            self._uc.hook_add(unicorn.UC_HOOK_BLOCK, self._count)

    def _map(self, block: Block) -> None:
        unicorn = self._unicorn
        rights = unicorn.UC_PROT_READ
        rights |= unicorn.UC_PROT_WRITE if block.writable else 0
        rights |= unicorn.UC_PROT_EXEC if block.executable else 0
        self._uc.mem_map_ptr(block.base, len(block.data), rights, block.data.ctypes.data)

    def _attach(self, base: int, size: int, device: Device) -> None:
        get, put = device.read, device.write

        def read(_uc: object, offset: int, width: int, _data: object) -> int:
            return get(offset, width)

        def write(_uc: object, offset: int, width: int, value: int, _data: object) -> None:
            put(offset, width, value)

        # An error stops the emulator, which then raises it.
        self._uc.mmio_map(base, size, read, None, write, None)

    def _take_interrupt(self, _uc: object, number: int, _data: object) -> None:
        if self._read_code(self.pc) == _HOST_CALL:
            self._called = True
        elif number != _EXIT or self.pc != _RETURN:
            self._fault = f"it executes an instruction that raises exception {number} of the emulator"
        self._uc.emu_stop()

    def _take_wrong_access(self, _uc: object, access: int, address: int, size: int, value: int, _data: object) -> bool:
        unicorn = self._unicorn
        where = f"0x{address:08x}"
        match access:
            case unicorn.UC_MEM_WRITE_UNMAPPED | unicorn.UC_MEM_WRITE_PROT:
                what = f"it writes {size} bytes to {where}"
            case unicorn.UC_MEM_FETCH_UNMAPPED | unicorn.UC_MEM_FETCH_PROT:
                what = f"it jumps to {where}"
            case _:
                what = f"it reads {size} bytes at {where}"
        found = self._memory.find(address)
        why = "no section of the program is there" if found is None else "its section does not allow that"
        self._fault = f"{what}, but {why}"
        return False

    def _count(self, _uc: object, address: int, size: int, _data: object) -> None:
        key = (address, size)
        length = self._lengths.get(key)
        if length is None:
            length = self._lengths[key] = self._count_block(address, size)
        self.instructions += length
        if self._on_instructions is not None and self._on_instructions(length):
            self._uc.emu_stop()

    def _count_block(self, address: int, size: int) -> int:
        data = self._memory.read(address, size)
        if data is None:
            return 1
        at = count = 0
        while at < size:
            # A halfword that begins with 0b11101 or more has a second one.
            at += 4 if int(data[at + 1]) >> 3 >= 0b11101 else 2
            count += 1
        return count

    @property
    def pc(self) -> int:
        return self._uc.reg_read(self._arm.UC_ARM_REG_PC)

    @property
    def masked(self) -> bool:
        """Whether interrupts are disabled."""
        return bool(self._uc.reg_read(self._arm.UC_ARM_REG_PRIMASK) & 1)

    def get(self, number: int) -> int:
        """Return one of the registers R0 to R12."""
        return self._uc.reg_read(self._arm.UC_ARM_REG_R0 + number)

    def reset(self, vectors: int) -> None:
        """Start from a vector table: the stack pointer, then the address of the first instruction."""
        table = self._memory.read(vectors, 8)
        assert table is not None
        stack, start = struct.unpack("<II", table.tobytes())
        self._uc.reg_write(self._arm.UC_ARM_REG_SP, stack)
        self._uc.reg_write(self._arm.UC_ARM_REG_LR, 0xFFFF_FFFF)
        self._uc.reg_write(self._arm.UC_ARM_REG_PC, start)

    def run(self) -> Stop:
        """Run until the CPU stops by itself; raise ToolFailed if it does something that hardware refuses."""
        try:
            self._emulate()
        except TosaicError as error:
            error.where = error.where or self._describe(self.pc)
            raise
        if self._fault:
            raise ToolFailed("the firmware crashed", where=self._describe(self.pc), why=self._fault)
        if self._called:
            self._called = False
            return Stop.HOST_CALL
        if self.pc == _RETURN:
            return Stop.RETURN
        if self._read_code(self.pc - 2) in _WAITS:
            return Stop.SLEEP
        return Stop.BREAK

    def _emulate(self) -> None:
        try:
            self._uc.emu_start(self.pc | 1, _RETURN)
        except self._unicorn.UcError as error:
            self._fault = self._fault or f"the CPU rejects an access ({error})"

    def stop(self) -> None:
        """Stop the CPU, from another thread."""
        self._uc.emu_stop()

    def describe_place(self) -> str:
        """Describe where the program is."""
        return self._describe(self.pc)

    def _read_code(self, address: int) -> int:
        data = self._memory.read(address, 2)
        return 0 if data is None else int(data[0]) | int(data[1]) << 8

    def answer(self, result: int) -> None:
        """Continue after a call of the host."""
        self._uc.reg_write(self._arm.UC_ARM_REG_R0, result)
        self._uc.reg_write(self._arm.UC_ARM_REG_PC, self.pc + 2 | 1)

    def enter(self, vectors: int, exception: int) -> None:
        """Enter the handler of an exception as hardware does, with the floating-point registers on the stack."""
        entry = self._memory.read(vectors + 4 * exception, 4)
        handler = 0 if entry is None else int.from_bytes(entry.tobytes(), "little")
        code = self._memory.find(handler)
        if code is None or not code.executable:
            raise ToolFailed(
                f"the firmware has no handler for exception {exception}",
                why=f"entry {exception} of its vector table is 0x{handler:08x}",
            )
        stack = self._uc.reg_read(self._arm.UC_ARM_REG_SP)
        frame = (stack - _FRAME.size) & ~7
        room = self._memory.read(frame, _FRAME.size)
        if room is None:
            raise ToolFailed("the stack is too small", where=self._describe(self.pc), why=f"SP is 0x{stack:08x}")
        room.data[:] = _FRAME.pack(*self._read_frame(aligned=bool(stack & 4)))
        self._uc.reg_write(self._arm.UC_ARM_REG_SP, frame)
        self._uc.reg_write(self._arm.UC_ARM_REG_LR, _RETURN | 1)
        self._uc.reg_write(self._arm.UC_ARM_REG_PC, handler | 1)

    def leave(self) -> None:
        """Return from a handler: restore what `enter` has saved."""
        arm, uc = self._arm, self._uc
        frame = uc.reg_read(arm.UC_ARM_REG_SP)
        saved = self._memory.read(frame, _FRAME.size)
        if saved is None:
            raise ToolFailed("the firmware crashed", why=f"a handler returns with the stack pointer 0x{frame:08x}")
        words = _FRAME.unpack(saved.tobytes())
        for register, word in zip(self._list_frame(), words, strict=False):
            uc.reg_write(register, word)
        uc.reg_write(arm.UC_ARM_REG_SP, frame + _FRAME.size + (4 if words[7] & 1 << 9 else 0))
        uc.reg_write(arm.UC_ARM_REG_PC, words[6] | 1)

    def _list_frame(self) -> list[int]:
        """List the registers of an exception frame, in their order in memory, but for a reserved word at its end."""
        arm = self._arm
        names = ("R0", "R1", "R2", "R3", "R12", "LR", "PC", "XPSR", *(f"S{i}" for i in range(16)), "FPSCR")
        return [getattr(arm, f"UC_ARM_REG_{name}") for name in names]

    def _read_frame(self, *, aligned: bool) -> list[int]:
        words: list[int] = [self._uc.reg_read(register) & 0xFFFFFFFF for register in self._list_frame()]
        words[7] = words[7] & ~(1 << 9) | (1 << 9 if aligned else 0)
        return [*words, 0]
