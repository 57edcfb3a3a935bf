"""The performance counters of an Ethos-U. Their values are estimates from the commands of a job."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from types import MappingProxyType

from tosaic.core.errors import ToolFailed
from tosaic.npu.accelerator import Accelerator
from tosaic.npu.perf import Estimate
from tosaic.npu.pmu import count_events

#: Where the counters are in the registers of a U85; they are lower elsewhere.
_U85_SHIFT = 0x1000
_CYCLE_BIT = 1 << 31


class Reg(IntEnum):
    """Offsets on U55 and U65."""

    PMCR = 0x180
    PMCNTENSET = 0x184
    PMCNTENCLR = 0x188
    PMOVSSET = 0x18C
    PMOVSCLR = 0x190
    PMINTSET = 0x194
    PMINTCLR = 0x198
    PMCCNTR = 0x1A0
    PMCCNTR_HI = 0x1A4
    PMCCNTR_CFG = 0x1A8
    PMCAXI_CHAN = 0x1AC


_OFFSETS = frozenset(Reg)
_COUNTERS, _TYPES = 0x300, 0x380
_ENABLE, _RESET_EVENTS, _RESET_CYCLES = 1 << 0, 1 << 1, 1 << 2

#: Events that the estimate covers, by number, with their name on U55 and U65, and on U85.
_EVENTS = MappingProxyType(
    {
        0x30: ("MAC_ACTIVE", "MAC_ACTIVE"),
        0x82: ("AXI0_RD_DATA_BEAT_RECEIVED", "SRAM_RD_DATA_BEAT_RECEIVED"),
        0x87: ("AXI0_WR_DATA_BEAT_WRITTEN", "SRAM_WR_DATA_BEAT_WRITTEN"),
        0x182: ("AXI1_RD_DATA_BEAT_RECEIVED", "EXT_RD_DATA_BEAT_RECEIVED"),
        0x187: ("AXI1_WR_DATA_BEAT_WRITTEN", "EXT_WR_DATA_BEAT_WRITTEN"),
    }
)
_CYCLE, _ACTIVE = 0x11, 0x23


class Pmu:
    """The counters of one NPU."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._is_u85 = accelerator.family.has_u85_units
        self._number = 8 if self._is_u85 else 4
        self._shift = _U85_SHIFT if self._is_u85 else 0
        self.reset()

    def reset(self) -> None:
        """Clear all registers."""
        self._control = self._enabled = 0
        self._others: dict[int, int] = {}
        self._cycles = 0
        self._counts = [0] * self._number
        self._types = [0] * self._number

    def has(self, offset: int) -> bool:
        """Tell whether an offset is a register of the counters."""
        at = offset - self._shift
        return at in _OFFSETS or self._find(at, _COUNTERS) is not None or self._find(at, _TYPES) is not None

    def _find(self, at: int, first: int) -> int | None:
        index, rest = divmod(at - first, 4)
        return index if 0 <= index < self._number and rest == 0 else None

    def read(self, offset: int) -> int:
        at = offset - self._shift
        if (index := self._find(at, _COUNTERS)) is not None:
            return self._counts[index] & 0xFFFFFFFF
        if (index := self._find(at, _TYPES)) is not None:
            return self._types[index]
        match at:
            case Reg.PMCR:
                return self._control | self._number << 11
            case Reg.PMCNTENSET | Reg.PMCNTENCLR:
                return self._enabled
            case Reg.PMCCNTR:
                return self._cycles & 0xFFFFFFFF
            case Reg.PMCCNTR_HI:
                return self._cycles >> 32 & 0xFFFF
            case _:
                return self._others.get(at, 0)

    def write(self, offset: int, value: int) -> None:
        at = offset - self._shift
        if (index := self._find(at, _COUNTERS)) is not None:
            self._counts[index] = value
        elif (index := self._find(at, _TYPES)) is not None:
            self._types[index] = value
        elif at == Reg.PMCR:
            self._control = value & (_ENABLE | 1 << 3)
            if value & _RESET_EVENTS:
                self._counts = [0] * self._number
            if value & _RESET_CYCLES:
                self._cycles = 0
        elif at in (Reg.PMCNTENSET, Reg.PMCNTENCLR):
            if value & ~(_CYCLE_BIT | (1 << self._number) - 1):
                why = f"this NPU has {self._number} counters and a cycle counter (bit 31)"
                raise ToolFailed(f"wrong use of the NPU's registers: {Reg(at).name} is 0x{value:x}", why=why)
            self._enabled = self._enabled | value if at == Reg.PMCNTENSET else self._enabled & ~value
        elif at == Reg.PMCCNTR:
            self._cycles = self._cycles >> 32 << 32 | value
        elif at == Reg.PMCCNTR_HI:
            self._cycles = self._cycles & 0xFFFFFFFF | (value & 0xFFFF) << 32
        else:
            self._others[at] = value

    def count(self, estimate: Callable[[], Estimate | None]) -> float:
        """Count a job, if counters are enabled; return the seconds that it takes on a device, 0 if not known."""
        found = estimate() if self._control & _ENABLE and self._enabled else None
        if found is None:
            return 0.0
        events = {name.removeprefix("ETHOSU_PMU_"): count for name, count in count_events(found).items()}
        if self._enabled & _CYCLE_BIT:
            self._cycles += found.cycles
        for index, kind in enumerate(self._types):
            if not self._enabled >> index & 1:
                continue
            if kind in (_CYCLE, _ACTIVE):
                self._counts[index] += found.cycles
            elif kind in _EVENTS:
                self._counts[index] += events.get(_EVENTS[kind][self._is_u85], 0)
        return found.seconds
