"""The devices inside a Cortex-M: interrupt controller, system timer, cycle counter and control registers.

Time is virtual. It passes while the CPU sleeps, by a fixed step with every look at a clock, and by counted
instructions; so a firmware that waits for a time limit reaches it, and every run takes the same virtual time.
"""

from __future__ import annotations

from enum import IntEnum

from tosaic.core.errors import ToolFailed

#: Virtual cycles that pass with each look at a clock.
LOOK_CYCLES = 256
#: The number of the system timer among the exceptions; those of the board's interrupts begin after it.
SYSTICK, FIRST_INTERRUPT = 15, 16
INTERRUPTS = 480
_MASK_24 = 0xFFFFFF
_CPUID_M33 = 0x410FD213


class Scs(IntEnum):
    """Registers of the System Control Space, by their offset."""

    SYST_CSR = 0x010
    SYST_RVR = 0x014
    SYST_CVR = 0x018
    SYST_CALIB = 0x01C
    ISER = 0x100
    ICER = 0x180
    ISPR = 0x200
    ICPR = 0x280
    IABR = 0x300
    IPR = 0x400
    CPUID = 0xD00
    ICSR = 0xD04
    VTOR = 0xD08
    AIRCR = 0xD0C
    STIR = 0xF00


#: Registers that only keep what is written: control, priorities, fault status, MPU, FPU, debug, caches.
_PLAIN = frozenset(
    {0x004, 0x008, *range(0x380, 0x3C0, 4), *range(0xD10, 0xD40, 4), *range(0xD78, 0xDD4, 4), 0xDD0, 0xDD4, 0xDD8}
    | {*range(0xDDC, 0xE04, 4), *range(0xF34, 0xF40, 4), *range(0xF40, 0xF4C, 4), *range(0xF50, 0xF7C, 4)}
)
#: The bits of SYST_CSR: enabled, interrupts, counted to zero since the last read.
_ENABLED, _INTERRUPTS, _COUNTED = 1 << 0, 1 << 1, 1 << 16


class Clock:
    """Virtual time, in CPU cycles, `hertz` in a second."""

    def __init__(self, hertz: int = 25_000_000) -> None:
        self._hertz = hertz
        self.now = 0

    def find_time(self, seconds: float) -> int:
        """Return the time that many seconds from now."""
        return self.now + round(seconds * self._hertz)

    def look(self) -> int:
        """Return the time; looking takes time."""
        self.now += LOOK_CYCLES
        return self.now


class SysTick:
    """The system timer: counts down from `reload` to 0, and then may raise its exception."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.control = 0
        self.reload = 0
        self._start = 0
        self._seen = 0

    @property
    def period(self) -> int:
        return self.reload + 1

    def _count(self) -> int:
        """Return how often it has reached 0 since it was started."""
        running = self.control & _ENABLED and self.reload
        return (self._clock.now - self._start) // self.period if running else 0

    def find_next(self) -> int | None:
        """Return the time at which it raises its exception next; None if it does not."""
        if not self.control & _ENABLED or not self.control & _INTERRUPTS or not self.reload:
            return None
        return self._start + (self._seen + 1) * self.period

    def take(self) -> bool:
        """Tell whether it has reached 0 since the last call."""
        count = self._count()
        reached, self._seen = count > self._seen, max(count, self._seen)
        return reached and bool(self.control & _INTERRUPTS)

    def read(self, register: int) -> int:
        match register:
            case Scs.SYST_CSR:
                self._clock.look()
                counted = _COUNTED if self._count() > self._seen else 0
                return self.control | 1 << 2 | counted
            case Scs.SYST_RVR:
                return self.reload
            case Scs.SYST_CVR:
                if not self.control & _ENABLED or not self.reload:
                    return 0
                return self.reload - (self._clock.look() - self._start) % self.period
            case _:
                return 0

    def write(self, register: int, value: int) -> None:
        match register:
            case Scs.SYST_CSR:
                if value & _ENABLED and not self.control & _ENABLED:
                    self._restart()
                self.control = value & 0b11
            case Scs.SYST_RVR:
                self.reload = value & _MASK_24
                self._restart()
            case Scs.SYST_CVR:
                self._restart()
            case _:
                pass

    def _restart(self) -> None:
        self._start, self._seen = self._clock.now, 0


class SystemControl:
    """The System Control Space at 0xE000E000. `pending` are exceptions that wait, `lines` inputs that are high."""

    def __init__(self, clock: Clock, vectors: int) -> None:
        self.timer = SysTick(clock)
        self.vectors = vectors
        self.enabled: set[int] = set()
        self.pending: set[int] = set()
        self.lines: set[int] = set()
        self._priorities = bytearray(INTERRUPTS)
        self._plain: dict[int, int] = {}

    def set_line(self, interrupt: int, high: bool) -> None:
        """Set the input of an interrupt; while it is high, the interrupt is pending again after its handler."""
        if high:
            self.lines.add(interrupt)
            self.pending.add(FIRST_INTERRUPT + interrupt)
        else:
            self.lines.discard(interrupt)

    def find_exception(self) -> int | None:
        """Return the exception that the CPU takes next; None if it takes none."""
        if self.timer.take():
            self.pending.add(SYSTICK)
        ready = [n for n in self.pending if n < FIRST_INTERRUPT or n - FIRST_INTERRUPT in self.enabled]
        return min(ready, key=lambda n: (self._get_priority(n), n), default=None)

    def _get_priority(self, exception: int) -> int:
        if exception >= FIRST_INTERRUPT:
            return self._priorities[exception - FIRST_INTERRUPT]
        return self._plain.get(0xD20, 0) >> 24 & 0xFF

    def finish(self, exception: int) -> None:
        """Note that the handler of an exception has ended."""
        if exception >= FIRST_INTERRUPT and exception - FIRST_INTERRUPT in self.lines:
            self.pending.add(exception)

    def read(self, offset: int, size: int) -> int:
        if Scs.SYST_CSR <= offset <= Scs.SYST_CALIB:
            return self.timer.read(offset)
        if Scs.IPR <= offset < Scs.IPR + INTERRUPTS:
            return int.from_bytes(self._priorities[offset - Scs.IPR :][:size], "little")
        base = offset & ~0x7F
        match base:
            case Scs.ISER | Scs.ICER:
                return _pack(self.enabled, offset - base)
            case Scs.ISPR | Scs.ICPR:
                return _pack({n - FIRST_INTERRUPT for n in self.pending}, offset - base)
            case Scs.IABR:
                return 0
            case _:
                pass
        match offset:
            case Scs.CPUID:
                return _CPUID_M33
            case Scs.VTOR:
                return self.vectors
            case Scs.AIRCR:
                return 0xFA050000
            case Scs.ICSR:
                return SYSTICK << 22 if SYSTICK in self.pending else 0
            case _:
                self._check(offset, "read")
                return self._plain.get(offset, 0)

    def write(self, offset: int, size: int, value: int) -> None:
        if Scs.SYST_CSR <= offset <= Scs.SYST_CALIB:
            self.timer.write(offset, value)
            return
        if Scs.IPR <= offset < Scs.IPR + INTERRUPTS:
            self._priorities[offset - Scs.IPR : offset - Scs.IPR + size] = value.to_bytes(size, "little")
            return
        base = offset & ~0x7F
        numbers = {8 * (offset - base) + bit for bit in range(32) if value >> bit & 1}
        match base:
            case Scs.ISER:
                self.enabled |= numbers
                return
            case Scs.ICER:
                self.enabled -= numbers
                return
            case Scs.ISPR:
                self.pending |= {FIRST_INTERRUPT + n for n in numbers}
                return
            case Scs.ICPR:
                self.pending -= {FIRST_INTERRUPT + n for n in numbers - self.lines}
                return
            case _:
                pass
        match offset:
            case Scs.VTOR:
                self.vectors = value
            case Scs.AIRCR:
                if value >> 16 == 0x5FA and value & 1 << 2:
                    raise ToolFailed("the firmware resets the CPU", why="the virtual board does not start again")
            case Scs.ICSR:
                self.pending |= {SYSTICK} if value & 1 << 26 else set()
                self.pending -= {SYSTICK} if value & 1 << 25 else set()
            case Scs.STIR:
                self.pending.add(FIRST_INTERRUPT + (value & 0x1FF))
            case _:
                self._check(offset, "written")
                self._plain[offset] = value

    def _check(self, offset: int, verb: str) -> None:
        if offset not in _PLAIN:
            raise ToolFailed(
                f"0x{0xE000E000 + offset:08x} is {verb}",
                why="the virtual CPU has no register there, or the virtual board does not model it",
            )


def _pack(numbers: set[int], byte: int) -> int:
    return sum(1 << bit for bit in range(32) if 8 * byte + bit in numbers)


class CycleCounter:
    """The DWT unit at 0xE0001000, of which there is the cycle counter."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._control, self._base, self._held = 0, 0, 0

    def read(self, offset: int, size: int) -> int:
        if offset == 0:
            return self._control | 0x4 << 28
        if offset == 4:
            return ((self._clock.look() - self._base) if self._control & 1 else self._held) & 0xFFFFFFFF
        return 0

    def write(self, offset: int, size: int, value: int) -> None:
        if offset == 4:
            self._base, self._held = self._clock.now - value, value
        elif offset == 0:
            if self._control & 1 and not value & 1:
                self._held = self._clock.now - self._base
            elif value & 1 and not self._control & 1:
                self._base = self._clock.now - self._held
            self._control = value & 1
