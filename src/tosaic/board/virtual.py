"""The virtual board: boots a firmware on this machine, with the built-in simulator as its NPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tosaic.board.core_devices import Clock, CycleCounter, SystemControl
from tosaic.board.cpu import Cpu, Device, Stop
from tosaic.board.description import NPU_BYTES, UART_BYTES, Board
from tosaic.board.elf import read_elf
from tosaic.board.execution import Execution, make_command_line, name_inputs
from tosaic.board.job import Npu
from tosaic.board.memory import make_memory
from tosaic.board.npu_registers import NpuRegisters
from tosaic.board.semihosting import Semihosting
from tosaic.board.uart import Uart
from tosaic.board.watchdog import Watchdog
from tosaic.core.errors import ToolFailed, TosaicError
from tosaic.tools.process import TIMEOUT_VARIABLE

#: Counted instructions between two looks for an interrupt.
_LOOK_CYCLES = 500
_SCS, _DWT, _PAGE = 0xE000_E000, 0xE000_1000, 0x1000


@dataclass(frozen=True, slots=True)
class VirtualOptions:
    """Options of a run: the seconds it may take, whether instructions are counted, and an NPU that never answers."""

    seconds: float = 120.0
    count_instructions: bool = False
    silent_npu: bool = False


_DEFAULTS = VirtualOptions()


class VirtualBoard:
    """A board with a firmware in its memory."""

    def __init__(
        self,
        board: Board,
        elf: bytes,
        accelerator: str,
        inputs: Sequence[bytes] = (),
        options: VirtualOptions = _DEFAULTS,
    ) -> None:
        program = read_elf(elf)
        self._board, self._options = board, options
        memory = make_memory(board, program)
        self._notes: list[str] = []
        self._clock = Clock(board.clock)
        self._control = SystemControl(self._clock, board.vectors)
        self._uart = Uart()
        interrupt = board.npu.interrupt
        self._npu = NpuRegisters(
            Npu(accelerator, memory),
            self._clock,
            lambda high: self._control.set_line(interrupt, high),
            self._notes.append,
            silent=options.silent_npu,
        )
        files = {name: bytearray(data) for name, data in zip(name_inputs(inputs), inputs, strict=True)}
        self._host = Semihosting(memory, make_command_line(inputs), files)
        devices: dict[tuple[int, int], Device] = {
            (_SCS, _PAGE): self._control,
            (_DWT, _PAGE): CycleCounter(self._clock),
            **{(base, UART_BYTES): self._uart for base in board.uarts},
            **{(base, NPU_BYTES): self._npu for base in board.npu.bases},
        }
        self._cpu = Cpu(
            memory,
            devices,
            program.describe,
            on_instructions=self._count if options.count_instructions else None,
        )
        self._watchdog = Watchdog(options.seconds, self._cpu.stop, self._npu.stopwatch.read)
        self._active: int | None = None
        self._next_look = 0

    def run(self) -> Execution:
        """Run the firmware to its end. An error has the log so far."""
        try:
            self._cpu.reset(self._board.vectors)
            with self._watchdog:
                while not self._ended:
                    self._step()
        except ToolFailed as error:
            error.log = self._uart.text
            raise
        code = self._host.exit_code
        return Execution(
            exit_code=0 if code is None else code,
            log=self._uart.text + self._host.text.decode("utf-8", "replace"),
            files={name: bytes(data) for name, data in self._host.files.items()},
            notes=tuple(self._notes),
            npu_seconds=self._npu.stopwatch.cpu,
            instructions=self._cpu.instructions if self._options.count_instructions else None,
        )

    @property
    def _ended(self) -> bool:
        return self._host.exit_code is not None

    def _step(self) -> None:
        match self._cpu.run():
            case Stop.HOST_CALL:
                self._cpu.answer(self._call_host())
            case Stop.RETURN:
                self._leave()
            case Stop.SLEEP:
                self._wake()
            case Stop.BREAK:
                self._interrupt()
        if self._watchdog.expired and not self._ended:
            raise ToolFailed(
                f"the firmware was stopped: it did not end within {self._watchdog.seconds:g} s",
                where=self._cpu.describe_place(),
                fix=f"allow more seconds with the environment variable `{TIMEOUT_VARIABLE}`",
            )

    def _count(self, instructions: int) -> bool:
        """Let time pass for instructions; tell whether an interrupt may be due."""
        self._clock.now += instructions
        if self._clock.now < self._next_look or self._active is not None:
            return False
        self._next_look = self._clock.now + _LOOK_CYCLES
        return any(time <= self._clock.now for time in self._list_times())

    def _interrupt(self) -> None:
        """Enter the handler of an exception that is due while the CPU works."""
        self._npu.update()
        exception = self._control.find_exception()
        if exception is not None and self._active is None and not self._cpu.masked:
            self._enter(exception)

    def _list_times(self) -> list[int]:
        """List the times at which something happens next."""
        return [t for t in (self._control.timer.find_next(), self._npu.find_next()) if t is not None]

    def _call_host(self) -> int:
        try:
            return self._host.call(self._cpu.get(0), self._cpu.get(1))
        except TosaicError as error:
            raise ToolFailed(error.what, where=self._cpu.describe_place(), why=error.why) from None

    def _leave(self) -> None:
        if self._active is None:
            raise ToolFailed("the firmware crashed", why="it jumps to the return address of an exception")
        self._cpu.leave()
        self._control.finish(self._active)
        self._active = None
        following = self._control.find_exception()
        if following is not None and not self._cpu.masked:
            self._enter(following)

    def _wake(self) -> None:
        """Let time pass until an exception wakes the CPU."""
        exception = self._control.find_exception()
        if exception is None:
            times = self._list_times()
            if not times or self._active is not None:
                self._report_sleep()
                return
            self._clock.now = max(self._clock.now, min(times))
            self._npu.update()
            exception = self._control.find_exception()
        # With interrupts disabled, hardware enters the handler a few instructions later, when they are enabled again.
        if exception is not None and self._active is None:
            self._enter(exception)

    def _report_sleep(self) -> None:
        if not self._uart.ended:
            raise ToolFailed(
                "the firmware sleeps and nothing will wake it",
                where=self._cpu.describe_place(),
                why="no enabled interrupt is pending, and the system timer is off",
            )
        # A board without a debugger has no other way to end.
        self._host.exit_code = 0

    def _enter(self, exception: int) -> None:
        self._control.pending.discard(exception)
        self._active = exception
        self._cpu.enter(self._control.vectors, exception)


def run_virtual(
    board: Board,
    elf: bytes,
    accelerator: str,
    inputs: Sequence[bytes] = (),
    options: VirtualOptions = _DEFAULTS,
) -> Execution:
    """Run a firmware on the virtual board."""
    return VirtualBoard(board, elf, accelerator, inputs, options).run()
