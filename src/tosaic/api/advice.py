"""Finds the changes of a compile that pay, by compiling each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tosaic.api.program import Program
from tosaic.api.variants import Variants
from tosaic.core.errors import Invalid
from tosaic.core.reason import Reason
from tosaic.core.targets import find
from tosaic.report.advice import Advice, AdviceReport, Gain, Hint
from tosaic.report.choices import Choice, Options
from tosaic.tools.vela_options import BUNDLED_INI, VelaOptions, check_options

#: the smallest gain in percent that is worth a line, and the most lines
LEAST_GAIN, MOST_ADVICE = 2.0, 5
_CONSEQUENCES = {
    "io": "the caller quantizes inputs and dequantizes outputs",
    "layout": "images are passed with channels last",
    "precision": "check the accuracy",
    "memory_mode": "the firmware places the data accordingly",
}


def advise(
    model: Any,
    example_inputs: Sequence[Any] | None,
    options: Options,
    *,
    calibration: Iterable[Any] | str | Path | None = None,
    name: str = "",
    progress: Callable[[str], None] | None = None,
    max_memory: int | None = None,
) -> AdviceReport:
    """Compile a model with these options and with single changes of them; return the changes that pay.

    A change pays if the most that it saves, in percent of cycles, SRAM or flash, is more than it adds to any other.
    """
    target = find(options.target)
    if not target.is_npu:
        raise Invalid(f"there is no advice for `{target.name}`", fix="use an Ethos-U: `tosaic targets` lists them")
    variants = Variants(model, example_inputs, calibration, max_memory=max_memory, progress=progress)
    base = variants.compile(options)
    if base is None:
        raise Invalid("the model cannot be compiled with these options", why=variants.failed[options])
    hints = _list_hints(variants.programs[options])
    found: list[Advice] = []
    for field, value in _list_changes(options):
        choice = variants.compile(replace(options, **{field: value}))
        variants.forget([options])
        if choice is not None:
            found += _judge(base, choice, field, value)
    # What may cost accuracy comes last.
    found.sort(key=lambda one: (one.choice.options.precision != options.precision, one.gains[0].percent))
    together = _combine(variants, base, found[:MOST_ADVICE])
    notes = tuple(variants.notes)
    return AdviceReport(name, base, tuple(found[:MOST_ADVICE]), together, hints, variants.compiles, notes)


def _list_changes(options: Options) -> Iterator[tuple[str, Any]]:
    """List what can be changed alone, by the name of the option."""
    if options.layout == "nchw":
        yield "layout", "nhwc"
    if options.io == "float":
        yield "io", "int8"
    if not options.optimize:
        yield "optimize", "size"
    target = find(options.target)
    for mode in ("Shared_Sram", "Sram_Only"):
        if mode != (options.memory_mode or target.memory_mode) and _has_mode(options, mode):
            yield "memory_mode", mode
    if options.precision == "int8":
        yield "precision", "a8w4"


def _has_mode(options: Options, mode: str) -> bool:
    target = find(options.target)
    try:
        system = options.system_config or target.system_config
        check_options(VelaOptions(target.name, system, mode, BUNDLED_INI).with_config())
    except Invalid:
        return False
    return True


def _judge(base: Choice, choice: Choice, field: str, value: str) -> list[Advice]:
    """Return the advice to make a change if it pays."""
    gains = _compare(base, choice)
    if choice.fallback > base.fallback or not gains:
        return []
    best, worst = gains[0].percent, max(gain.percent for gain in gains)
    if -best < LEAST_GAIN or -best <= worst:
        return []
    words, consequence = f"--{field.replace('_', '-')} {value}", _CONSEQUENCES.get(field, "")
    if field == "precision" and base.sqnr is not None and choice.sqnr is not None:
        consequence = f"SQNR {base.sqnr:.1f} to {choice.sqnr:.1f} dB"
    return [Advice(words, tuple(gains), choice, consequence)]


def _compare(base: Choice, choice: Choice) -> list[Gain]:
    """List the figures that change, the largest saving first."""
    pairs = (
        ("cycles", base.cycles, choice.cycles),
        ("SRAM", base.sram, choice.sram),
        ("flash", base.flash, choice.flash),
    )
    gains = [Gain(name, before, after) for name, before, after in pairs if before != after]
    return sorted(gains, key=lambda gain: gain.percent)


def _combine(variants: Variants, base: Choice, found: Sequence[Advice]) -> Advice | None:
    """Compile all changes that pay together, but for the precision: a command to paste must not cost accuracy.

    The result is None if there are fewer than two, or if together they do not pay.
    """
    found = [one for one in found if one.choice.options.precision == base.options.precision]
    if len(found) < 2:
        return None
    changes: dict[str, Any] = {}
    for one in reversed(found):
        for name in ("layout", "io", "optimize", "memory_mode"):
            value: Any = getattr(one.choice.options, name)
            if value != getattr(base.options, name):
                changes[name] = value
    options = replace(base.options, **changes)
    choice = variants.compile(options)
    if choice is None:
        return None
    gains = _compare(base, choice)
    return Advice(options.describe(), tuple(gains), choice) if gains and gains[0].percent < 0 else None


def _list_hints(program: Program) -> tuple[Hint, ...]:
    """List the fixes of nodes on the CPU, those of most nodes first."""
    groups: dict[str, list[Reason]] = {}
    for reason in program.reasons:
        if not reason.is_io and not reason.cause and reason.fix:
            groups.setdefault(reason.fix, []).append(reason)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return tuple(Hint(fix, len(reasons), reasons[0].where) for fix, reasons in ordered[:MOST_ADVICE])
