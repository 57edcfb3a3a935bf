"""Searches the options of a compile for programs that fit into the memories of a board."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tosaic.api.program import Program
from tosaic.api.variants import Variants
from tosaic.board.profile import Profile
from tosaic.core.errors import Invalid
from tosaic.core.targets import find
from tosaic.report.choices import Choice, FitReport, Limits, Options, find_front
from tosaic.report.obstacles import Held, list_peak_tensors, list_weights
from tosaic.tools.vela_options import BUNDLED_INI, VelaOptions, check_options, place_regions

#: compiles of one search, and random inputs per delegate when a row is verified
MAX_COMPILES, ROUNDS = 20, 1
#: of the largest obstacles
_MOST_OBSTACLES = 8
#: Vela aligns tensors to this.
_ALIGNMENT = 16
#: How often the size of the arena is lowered until the program fits.
_ARENA_STEPS = 3


@dataclass(frozen=True, slots=True)
class Space:
    """What may be varied; an empty tuple means all that the target has.

    precisions  int8 alone unless others are named; the others are tried where they may help
    """

    targets: tuple[str, ...]
    ios: tuple[str, ...] = ("float", "int8")
    layouts: tuple[str, ...] = ("nchw", "nhwc")
    precisions: tuple[str, ...] = ()
    memory_modes: tuple[str, ...] = ()
    system_config: str = ""
    config_ini: str | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The report of a search, and the program of its best choice; None if nothing fits."""

    report: FitReport
    best: Program | None


def fit(
    model: Any,
    example_inputs: Sequence[Any] | None,
    space: Space,
    limits: Limits,
    *,
    board: Profile | None = None,
    calibration: Iterable[Any] | str | Path | None = None,
    precision_for: Mapping[str, str] | None = None,
    per_channel: bool = True,
    name: str = "",
    max_compiles: int = MAX_COMPILES,
    verify: bool = True,
    progress: Callable[[str], None] | None = None,
    max_memory: int | None = None,
) -> Fit:
    """Search for programs that fit into the limits; return those that no other beats, the fastest first.

    verify  run every program that is returned on the simulator, and compare it with TOSA and with torch
    """
    for target in space.targets:
        if not find(target).is_npu:
            raise Invalid(f"`{target}` has no memories to fit into", fix="use an Ethos-U: `tosaic targets` lists them")
    if max_compiles < 1:
        raise Invalid(f"cannot search with {max_compiles} compiles", fix="allow at least one")
    variants = Variants(
        model,
        example_inputs,
        calibration,
        precision_for,
        per_channel,
        cpu_in_dram=board is not None and board.cpu_tensors == "dram",
        clock=board.clock if board is not None else 0,
        max_memory=max_memory,
        progress=progress,
        config_ini=space.config_ini,
    )
    search = _Search(variants, space, limits, max_compiles)
    search.run()
    choices = tuple(variants.choices.values())
    front = find_front([choice for choice in choices if not limits.list_excesses(choice)])
    nearest = min(choices, key=lambda choice: _rank_excess(limits, choice), default=None)
    if verify:
        front = [_verify(variants, choice, progress) for choice in front]
    obstacles = _find_obstacles(variants, nearest, limits) if nearest is not None and not front else {}
    report = FitReport(
        model=name,
        limits=limits,
        board="" if board is None else board.name,
        base=variants.choices.get(search.base),
        front=tuple(front),
        choices=choices,
        nearest=nearest,
        obstacles=obstacles,
        failed=tuple((options.describe(), why) for options, why in variants.failed.items()),
        compiles=variants.compiles,
        notes=tuple(variants.notes),
    )
    return Fit(report, variants.programs[front[0].options] if front else None)


def _rank_excess(limits: Limits, choice: Choice) -> tuple[float, ...]:
    """Rank a choice by how much more than the limits it needs."""
    excesses = limits.list_excesses(choice)
    bounds = {"SRAM": limits.sram, "flash": limits.flash, "DRAM": limits.dram}
    return sum(excess / max(1, bounds[memory] or 0) for memory, excess in excesses.items()), *choice.cost


def _verify(variants: Variants, choice: Choice, progress: Callable[[str], None] | None) -> Choice:
    if progress is not None:
        progress(f"verify: {choice.options.target} {choice.options.describe()}")
    return choice.with_verdict(variants.programs[choice.options].verify(rounds=ROUNDS).ok)


class _Search:
    """Goes from the options that change most to those that change little, and leaves out what cannot help."""

    def __init__(self, variants: Variants, space: Space, limits: Limits, max_compiles: int) -> None:
        self.variants, self.space, self.limits, self.left = variants, space, limits, max_compiles
        self.base = self._make_base(space.targets[0])

    def _make_base(self, target: str) -> Options:
        modes = self.space.memory_modes
        return Options(
            target,
            memory_mode=modes[0] if modes else find(target).memory_mode,
            io=self.space.ios[0],
            layout=self.space.layouts[0],
            precision=(self.space.precisions or ("int8",))[0],
            system_config=self.space.system_config,
        )

    def run(self) -> None:
        for number, target in enumerate(self.space.targets):
            interface = self._search_interfaces(self._make_base(target), wide=number == 0)
            if interface is not None:
                self._search_memory(interface)
        best = self._find_best()
        if best is not None:
            self._search_precisions(best)

    def _compile(self, options: Options) -> Choice | None:
        """Compile within the allowed number; None also if that is used up."""
        known = options in self.variants.choices or options in self.variants.failed
        if not known and self.variants.compiles >= self.left:
            return None
        choice = self.variants.compile(options)
        fitting = [one for one in self.variants.choices.values() if not self.limits.list_excesses(one)]
        nearest = sorted(self.variants.choices.values(), key=lambda one: _rank_excess(self.limits, one))[:1]
        self.variants.forget(one.options for one in (*find_front(fitting), *nearest))
        return choice

    def _search_interfaces(self, base: Options, *, wide: bool) -> Choice | None:
        """Find the type and layout of inputs and outputs with the fewest cycles; SRAM decides between equals."""
        known = [choice.options for choice in self.variants.choices.values()]
        if not wide and known:
            # Inputs and outputs cost the same on the next accelerator.
            best = min(self.variants.choices.values(), key=lambda choice: choice.cost).options
            return self._compile(replace(base, io=best.io, layout=best.layout))
        found = self._compile(base)
        for io in self.space.ios[1:]:
            found = _take_better(found, self._compile(replace(_get_options(found, base), io=io)))
        for layout in self.space.layouts[1:]:
            found = _take_better(found, self._compile(replace(_get_options(found, base), layout=layout)))
        return found

    def _search_memory(self, start: Choice) -> None:
        """Vary memory mode, goal and arena of one interface."""
        shared = start
        for mode in self._list_modes(start.options.target):
            options = replace(start.options, memory_mode=mode)
            if mode == "Sram_Only":
                if self._may_hold_program(start):
                    fast = self._compile(options)
                    if fast is not None and not self._allows_sram(fast.sram):
                        self._search_arena(fast, self._compile(replace(options, optimize="size")))
            elif mode == "Dedicated_Sram":
                if self.limits.dram != 0:
                    self._compile(replace(options, arena_cache_size=self._find_room(shared)))
            else:
                fast = self._compile(options)
                small = self._compile(replace(options, optimize="size"))
                if fast is not None:
                    shared = fast
                    self._search_arena(fast, small)

    def _may_hold_program(self, start: Choice) -> bool:
        """Tell whether the SRAM can hold the program and the smallest set of tensors that was found."""
        same = [one for one in self.variants.choices.values() if one.options.target == start.options.target]
        tensors = min(_find_scratch(self.variants, choice) for choice in same)
        return self._allows_sram(start.flash + tensors)

    def _search_arena(self, fast: Choice, small: Choice | None) -> None:
        """Limit the arena of the fast schedule: to what is left of the SRAM, or to sizes between fast and small."""
        room = self._find_room(fast)
        if room is None or self._allows_sram(fast.sram):
            low = fast.sram if small is None else small.sram
            if low >= fast.sram:
                return
            scratch = _find_scratch(self.variants, fast)
            for part in (0.5, 0.25):
                size = int(scratch - (fast.sram - low) * (1.0 - part))
                self._compile(replace(fast.options, arena_cache_size=_align(size)))
            return
        if small is not None and not self._allows_sram(small.sram):
            # No limit of the arena makes the program smaller than the goal `size` does.
            return
        for _ in range(_ARENA_STEPS):
            found = self._compile(replace(fast.options, arena_cache_size=_align(room)))
            if found is None or self._allows_sram(found.sram) or self.limits.sram is None:
                return
            room -= found.sram - self.limits.sram
            if room <= 0:
                return

    def _search_precisions(self, best: Choice) -> None:
        """Try other precisions where they may help: fewer bits of weights for flash, and any if accuracy is known."""
        wanted = self.space.precisions[1:] if self.space.precisions else ()
        if not self.space.precisions:
            short = self.limits.flash is not None and best.flash > self.limits.flash
            known = best.sqnr is not None
            wanted = (*(("a8w4",) if short or known else ()), *(("a16w8",) if known else ()))
        for precision in wanted:
            io = best.options.io
            if precision == "a16w8" and io == "int8":
                io = "int16" if "int16" in self.space.ios else "float"
            self._compile(replace(best.options, precision=precision, io=io))

    def _find_best(self) -> Choice | None:
        choices = self.variants.choices.values()
        return min(choices, key=lambda choice: _rank_excess(self.limits, choice), default=None)

    def _allows_sram(self, size: int) -> bool:
        return self.limits.sram is None or size <= self.limits.sram

    def _find_room(self, choice: Choice) -> int | None:
        """Find the SRAM that is left for the NPU's tensors; None if there is no limit."""
        if self.limits.sram is None:
            return None
        return max(_ALIGNMENT, _align(self.limits.sram - self.variants.fixed[choice.options]))

    def _list_modes(self, target: str) -> list[str]:
        """List the memory modes that the target and its system configuration have."""
        if self.space.memory_modes:
            # Those that a user names are not left out quietly: the compile says why one cannot be used.
            return list(self.space.memory_modes)
        wanted = ("Shared_Sram", "Sram_Only", "Dedicated_Sram")
        return [mode for mode in wanted if _has_mode(target, mode, self.space)]


def _has_mode(target: str, mode: str, space: Space) -> bool:
    system = space.system_config or find(target).system_config
    options = VelaOptions(target, system, mode, space.config_ini or BUNDLED_INI).with_config()
    try:
        check_options(options)
    except Invalid:
        return False
    # With a scratch that is in SRAM anyway there is nothing to dedicate.
    return mode != "Dedicated_Sram" or bool(place_regions(options).fast_scratch)


def _get_options(choice: Choice | None, base: Options) -> Options:
    return base if choice is None else choice.options


def _take_better(one: Choice | None, other: Choice | None) -> Choice | None:
    """Return the choice with fewer cycles and less memory."""
    found = [choice for choice in (one, other) if choice is not None]
    return min(found, key=lambda choice: choice.cost, default=None)


def _find_scratch(variants: Variants, choice: Choice) -> int:
    """Find the SRAM of the NPU's tensors."""
    return choice.sram - variants.fixed[choice.options]


def _align(size: int) -> int:
    return size // _ALIGNMENT * _ALIGNMENT


def _find_obstacles(variants: Variants, nearest: Choice, limits: Limits) -> dict[str, tuple[Held, ...]]:
    """List what fills each memory that is too small, the largest first."""
    program = variants.programs[nearest.options]
    profile = program.profile()
    excesses = limits.list_excesses(nearest)
    found: dict[str, tuple[Held, ...]] = {}
    if "SRAM" in excesses:
        in_sram = nearest.options.memory_mode == "Sram_Only"
        cpu = variants.fixed[nearest.options] - (nearest.flash if in_sram else 0)
        on_cpu = [Held("", "tensors of the CPU", cpu)] if cpu else []
        stored = [Held("", "the program", nearest.flash)] if in_sram else []
        found["SRAM"] = tuple(_take_largest((*list_peak_tensors(profile), *on_cpu, *stored)))
    if "flash" in excesses:
        found["flash"] = tuple(_take_largest(list_weights(profile)))
    if "DRAM" in excesses:
        found["DRAM"] = (Held("", "scratch and tensors of the CPU", nearest.dram),)
    return found


def _take_largest(held: Iterable[Held]) -> Iterator[Held]:
    yield from sorted(held, key=lambda one: -one.bytes)[:_MOST_OBSTACLES]
