"""The registers of an Ethos-U: takes the accesses that a driver makes on hardware, and refuses all others.

Hardware ignores most wrong accesses, or hangs; here each is an error that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from tosaic.board.core_devices import Clock
from tosaic.board.job import FAULTS, Npu, Outcome, Queue, Status
from tosaic.board.pmu import Pmu
from tosaic.board.stopwatch import Stopwatch
from tosaic.core.errors import ToolFailed
from tosaic.npu.accelerator import Accelerator
from tosaic.npu.registers import Family

#: Bits of CMD: start the queue, clear the interrupt, leave clock and power on, stop; those that can be read back.
_RUN, _CLEAR_IRQ, _STOP, _CMD_KEPT = 1 << 0, 1 << 1, 1 << 4, 0xC
_CLEAR_HISTORY = 0xFFFF << 16
#: Bits of RESET and PROT: privileged, and non-secure.
_LEVELS = 0b11
REGIONS = 8
#: The largest command stream in bytes.
_MAX_QUEUE = 16 << 20
_ALIGNMENT = 16
#: The ports of U85's SRAM and external memory, its weight decoders: bits 8 to 15 of its CONFIG, by its MACs.
_U85_PORTS = {128: 0x01, 256: 0x01, 512: 0x11, 1024: 0x25, 2048: 0x26}


class Reg(IntEnum):
    """Registers that all families have, by their offset."""

    ID = 0x00
    STATUS = 0x04
    CMD = 0x08
    RESET = 0x0C
    QBASE = 0x10
    QBASE_HI = 0x14
    QREAD = 0x18
    QCONFIG = 0x1C
    QSIZE = 0x20
    PROT = 0x24
    CONFIG = 0x28
    LOCK = 0x2C
    POWER_CTRL = 0x38
    REGIONCFG = 0x3C
    LIMIT0 = 0x40
    LIMIT1 = 0x44
    LIMIT2 = 0x48
    LIMIT3 = 0x4C
    AXI_SRAM = 0x50
    AXI_EXT = 0x54


_BASEP, _BASEP_END = 0x80, 0x80 + 8 * REGIONS
_OFFSETS = frozenset(Reg)
_READ_ONLY = {Reg.ID, Reg.STATUS, Reg.QREAD, Reg.PROT, Reg.CONFIG}
_ONLY_U85 = {Reg.POWER_CTRL, Reg.AXI_SRAM, Reg.AXI_EXT}


class WrongAccess(ToolFailed):
    """An access to a device that hardware would not take."""


def make_id(family: Family) -> int:
    """Return the register ID: the architecture's version, as the command streams of a family name it."""
    return 0x20007000 if family.has_u85_units else 0x10066001


def make_config(accelerator: Accelerator) -> int:
    """Return the register CONFIG: product, internal RAM, version of the command stream, and MACs."""
    family, log_macs = accelerator.family, accelerator.macs.bit_length() - 1
    if family.has_u85_units:
        return family << 28 | _U85_PORTS[accelerator.macs] << 8 | 1 << 4 | log_macs
    return family << 28 | (accelerator.ram_bytes >> 10) * accelerator.cores << 8 | log_macs


class NpuRegisters:
    """The registers of one NPU. `raise_irq` is called when its interrupt is raised, `note` with the reason of a fault.

    A job takes virtual time if its cycles are counted. A silent NPU never ends one: for tests of time limits.
    """

    def __init__(
        self,
        npu: Npu,
        clock: Clock,
        raise_irq: Callable[[bool], None],
        note: Callable[[str], None],
        *,
        silent: bool = False,
    ) -> None:
        self._npu, self._clock, self._raise_irq, self._note, self._silent = npu, clock, raise_irq, note, silent
        self._family = npu.accelerator.family
        self.pmu = Pmu(npu.accelerator)
        #: Jobs that were run.
        self.jobs = 0
        #: The time of this machine that they took.
        self.stopwatch = Stopwatch()
        self._protection: int | None = None
        self._values: dict[int, int] = {}
        self._status, self._read, self._power = Status(0), 0, 0
        #: The time at which the present job ends, and how.
        self._ending: tuple[int, Outcome] | None = None

    def read(self, offset: int, size: int) -> int:
        self._check(offset, size, "read")
        if self.pmu.has(offset):
            return self.pmu.read(offset)
        match offset:
            case Reg.ID:
                return make_id(self._family)
            case Reg.CONFIG:
                return make_config(self._npu.accelerator)
            case Reg.STATUS:
                self._clock.look()
                self.update()
                return self._status
            case Reg.CMD:
                return self._power
            case Reg.QREAD:
                return self._read
            case Reg.PROT:
                return self._protection or 0
            case Reg.RESET:
                return 0
            case _:
                return self._values.get(offset, 0)

    def write(self, offset: int, size: int, value: int) -> None:
        self._check(offset, size, "written")
        if offset in _READ_ONLY:
            raise _refuse(f"{_name(offset)} is written", "it can only be read")
        if self._protection is None and offset not in (Reg.RESET, Reg.CMD):
            raise _refuse(f"{_name(offset)} is written before the NPU is reset", "its state is still undefined")
        if self.pmu.has(offset):
            self.pmu.write(offset, value)
        elif offset == Reg.CMD:
            self._command(value)
        elif offset == Reg.RESET:
            self._reset(value)
        elif self._status & Status.RUNNING:
            raise _refuse(f"{_name(offset)} is written while the NPU runs", "it reads this register during a job")
        else:
            _check_value(offset, value, wide=self._family is not Family.U55)
            self._values[offset] = value

    def _check(self, offset: int, size: int, verb: str) -> None:
        if size != 4 or offset % 4:
            raise _refuse(f"{size} bytes at offset 0x{offset:x} are {verb}", "registers are words of 4 bytes")
        if self.pmu.has(offset) or _BASEP <= offset < _BASEP_END:
            return
        if offset not in _OFFSETS or (offset in _ONLY_U85 and not self._family.has_u85_units):
            raise _refuse(f"offset 0x{offset:x} is {verb}", f"an Ethos-{self._family.name} has no register there")

    def _reset(self, value: int) -> None:
        if value & ~_LEVELS:
            raise _refuse(f"RESET is 0x{value:x}", "only the bits 0 (privileged) and 1 (non-secure) exist")
        self._protection, self._values = value, {}
        self._status, self._read, self._power, self._ending = Status(0), 0, 0, None
        self.pmu.reset()
        self._raise_irq(False)

    def _command(self, value: int) -> None:
        if value & ~(_RUN | _CLEAR_IRQ | _CMD_KEPT | _STOP | _CLEAR_HISTORY):
            raise _refuse(f"CMD is 0x{value:x}", "some of these bits do not exist")
        self._power = value & _CMD_KEPT
        if value & _CLEAR_IRQ:
            self._status &= ~Status.IRQ_RAISED
            self._raise_irq(False)
        if value & _STOP:
            self._status, self._ending = self._status & ~Status.RUNNING, None
        if value & _RUN:
            self._start()

    def _start(self) -> None:
        if self._protection is None:
            raise _refuse("the NPU is started before it is reset", "its state is still undefined")
        if self._status & Status.RUNNING:
            raise _refuse("the NPU is started while it runs", "a job must end before the next one")
        if self._status & FAULTS:
            raise _refuse(f"the NPU is started after a fault (STATUS 0x{self._status:x})", "only a reset clears it")
        if self._status & Status.IRQ_RAISED:
            raise _refuse("the NPU is started before its last interrupt was cleared", "CMD bit 1 clears it")
        for needed in (Reg.QBASE, Reg.QSIZE):
            if needed not in self._values:
                raise _refuse(
                    f"the NPU is started without {_name(needed)}", "nothing was written to it since the reset"
                )
        self.jobs += 1
        self._status = Status.RUNNING
        queue = self._read_queue()
        if self._silent:
            return
        with self.stopwatch:
            outcome = self._npu.run(queue)
        if outcome.status & Status.RUNNING:
            self._note(outcome.reason)
            return
        seconds = self.pmu.count(lambda: self._npu.estimate(queue, self._npu.find_ports(queue)))
        self._ending = self._clock.find_time(seconds), outcome
        self.update()

    def find_next(self) -> int | None:
        """Return the time at which the present job ends; None if there is none."""
        return None if self._ending is None else self._ending[0]

    def update(self) -> None:
        """End the present job if it is time."""
        if self._ending is None or self._clock.now < self._ending[0]:
            return
        outcome, self._ending = self._ending[1], None
        self._status, self._read = outcome.status | Status.IRQ_RAISED, outcome.read
        if outcome.reason:
            self._note(outcome.reason)
        self._raise_irq(True)

    def _read_queue(self) -> Queue:
        values = self._values
        regions = {
            number: values[low] | values.get(low + 4, 0) << 32
            for number in range(REGIONS)
            if (low := _BASEP + 8 * number) in values
        }
        base = values[Reg.QBASE] | values.get(Reg.QBASE_HI, 0) << 32
        return Queue(base, values[Reg.QSIZE], regions)


def _check_value(offset: int, value: int, *, wide: bool) -> None:
    is_base = _BASEP <= offset < _BASEP_END
    is_high = offset == Reg.QBASE_HI or (is_base and offset % 8 == 4)
    if is_high and value and not wide:
        raise _refuse(f"{_name(offset)} is 0x{value:x}", "addresses of an Ethos-U55 have 32 bits")
    if (is_base or offset == Reg.QBASE) and not is_high and value % _ALIGNMENT:
        raise _refuse(f"{_name(offset)} is 0x{value:x}", f"it must be a multiple of {_ALIGNMENT}")
    if offset == Reg.QSIZE and (value % 4 or not 0 < value <= _MAX_QUEUE):
        raise _refuse(f"QSIZE is {value}", f"it must be a multiple of 4, above 0 and at most {_MAX_QUEUE}")
    if offset == Reg.QCONFIG and value > 3:
        raise _refuse(f"QCONFIG is 0x{value:x}", "it must be the number of a port, 0 to 3")
    if offset == Reg.REGIONCFG and value >> 2 * REGIONS:
        raise _refuse(f"REGIONCFG is 0x{value:x}", f"it has two bits for each of {REGIONS} regions")


def _name(offset: int) -> str:
    if _BASEP <= offset < _BASEP_END:
        number, half = divmod(offset - _BASEP, 8)
        return f"BASEP{number}{'_HI' if half else ''}"
    return Reg(offset).name if offset in _OFFSETS else f"offset 0x{offset:x}"


def _refuse(what: str, why: str) -> WrongAccess:
    return WrongAccess(f"wrong use of the NPU's registers: {what}", why=why)
