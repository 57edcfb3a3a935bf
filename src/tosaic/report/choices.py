"""Ways to compile one model, with their figures: what a search compares, as plain data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tosaic.board.profile import Profile
from tosaic.core.targets import find
from tosaic.report.obstacles import Held

SCHEMA = "tosaic-fit/1"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a compile that a search varies; empty where the target has a default."""

    target: str
    memory_mode: str = ""
    optimize: str = ""
    arena_cache_size: int | None = None
    io: str = "float"
    layout: str = "nchw"
    precision: str = "int8"
    system_config: str = ""

    def list_flags(self) -> list[str]:
        """List Vela's flags."""
        flags = [f"--optimise={self.optimize.capitalize()}"] if self.optimize else []
        return flags + ([] if self.arena_cache_size is None else [f"--arena-cache-size={self.arena_cache_size}"])

    def list_words(self) -> list[str]:
        """List the words of the command line; defaults are left out."""
        target = find(self.target)
        pairs = (
            ("--memory-mode", self.memory_mode if self.memory_mode != target.memory_mode else ""),
            ("--system-config", self.system_config if self.system_config != target.system_config else ""),
            ("--optimize", self.optimize),
            ("--arena-cache-size", "" if self.arena_cache_size is None else str(self.arena_cache_size)),
            ("--io", self.io if self.io != "float" else ""),
            ("--layout", self.layout if self.layout != "nchw" else ""),
            ("--precision", self.precision if self.precision != "int8" else ""),
        )
        return ["-t", self.target, *(word for name, value in pairs if value for word in (name, value))]

    def name_command(self, model: str, given: Sequence[str]) -> str:
        """Return the command line that compiles a model; `given` are words that every command needs."""
        return shlex.join(["tosaic", "compile", model, *self.list_words(), *given])

    def describe(self) -> str:
        """Describe what differs from the defaults, on one line."""
        return " ".join(self.list_words()[2:]) or "defaults"


@dataclass(frozen=True, slots=True)
class Limits:
    """The bytes that a program may use; None where there is no limit. DRAM counts only what is written there."""

    sram: int | None = None
    flash: int | None = None
    dram: int | None = None

    @staticmethod
    def of(board: Profile | None, sram: int | None, flash: int | None, dram: int | None) -> Limits:
        """Make the limits of a board; a size that is given has priority. A board without DRAM holds nothing there."""
        if board is None:
            return Limits(sram, flash, dram)
        return Limits(
            board.sram if sram is None else sram,
            board.flash if flash is None else flash,
            (board.dram or 0) if dram is None else dram,
        )

    def list_excesses(self, choice: Choice) -> dict[str, int]:
        """List the bytes by which a choice exceeds each memory."""
        pairs = (
            ("SRAM", choice.sram, self.sram),
            ("flash", choice.flash, self.flash),
            ("DRAM", choice.dram, self.dram),
        )
        return {name: used - limit for name, used, limit in pairs if limit is not None and used > limit}


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to compile a model.

    flash     the bytes of the .pte, wherever it is read from
    fallback  nodes on the CPU, whose time is in no figure; those that convert inputs and outputs do not count
    sqnr      the distance of torch's quantized graph from float in dB, the worst output; None without samples
    sha256    of the .pte
    verified  whether the simulator computes what TOSA and torch do; None if that was not checked
    """

    options: Options
    cycles: int
    seconds: float
    sram: int
    dram: int
    flash: int
    fallback: int
    sqnr: float | None
    sha256: str
    verified: bool | None = None

    @property
    def cost(self) -> tuple[float, ...]:
        """What should be small."""
        return self.fallback, self.cycles, self.sram, self.dram, self.flash, -(self.sqnr or 0.0)

    def beats(self, other: Choice) -> bool:
        """Tell whether nothing is worse than in another choice, and something is better."""
        pairs = list(zip(self.cost, other.cost, strict=True))
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)

    def with_verdict(self, verified: bool) -> Choice:
        return replace(self, verified=verified)


def find_front(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices that no other beats, the fastest first; of equal ones only that with the fewest options."""
    ordered = sorted(choices, key=lambda choice: (choice.cost, len(choice.options.list_words())))
    front: list[Choice] = []
    for choice in ordered:
        if not any(other.beats(choice) or other.cost == choice.cost for other in front):
            front.append(choice)
    return front


@dataclass(frozen=True, slots=True)
class FitReport:
    """The result of a search.

    base       the default options, for comparison; None if they cannot be compiled
    front      the choices that fit and that no other choice beats, the fastest first; empty if none fits
    nearest    the choice that comes nearest to the limits
    obstacles  what is in the memory that is too small, by memory; empty if a choice fits
    failed     options that could not be compiled, with the reason
    given      words that every command needs besides its options, such as `--calibration samples.npz`
    """

    model: str
    limits: Limits
    board: str
    base: Choice | None
    front: tuple[Choice, ...]
    choices: tuple[Choice, ...]
    nearest: Choice | None
    obstacles: dict[str, tuple[Held, ...]]
    failed: tuple[tuple[str, str], ...]
    compiles: int
    notes: tuple[str, ...] = ()
    given: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report under its schema name, ready for json.dumps."""
        return {"schema": SCHEMA, "fits": bool(self.front), **asdict(self)}
