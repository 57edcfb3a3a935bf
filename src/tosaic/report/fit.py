"""Prints what a search has found: the choices as a table and a plot, and what is in the way if nothing fits."""

from __future__ import annotations

from collections.abc import Sequence

from tosaic.report.choices import Choice, FitReport, Limits
from tosaic.report.cycles import describe_time
from tosaic.report.obstacles import Held
from tosaic.report.terminal import Page, count

_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
#: The plot, in characters.
_WIDTH, _HEIGHT = 60, 12
_MOST_POINTS = 26


def show_fit(page: Page, found: FitReport, *, verbose: bool = False) -> None:
    """Print the result of `tosaic fit`: the best choice first."""
    where = f"on {found.board}" if found.board else "into " + describe_limits(found.limits)
    page.title(f"{found.model} {where}: {count(found.compiles, 'compile')}", gap=False)
    if found.board:
        page.line(f"limits: {describe_limits(found.limits)}")
    if found.front:
        _show_front(page, found)
    else:
        _show_obstacles(page, found)
    if verbose:
        page.title("all choices")
        _show_table(page, [(str(i), choice) for i, choice in enumerate(found.choices, 1)], found.limits)
    for options, why in found.failed:
        page.line(f"not compiled: {options}: {why}")
    for note in found.notes:
        page.line(f"warning: {note}", "yellow")


def _show_front(page: Page, found: FitReport) -> None:
    choices = [(_name(i), choice) for i, choice in enumerate(found.front)]
    if found.base is not None and found.base.options not in [choice.options for choice in found.front]:
        choices.append(("now", found.base))
    _show_table(page, choices, found.limits)
    page.line(_describe_checks(found.front))
    if len(found.front) > 1:
        page.title("cycles by SRAM")
        for line in draw_plot(found.front):
            page.raw(line)
    page.title("commands, the best choice first")
    for choice in found.front:
        page.raw(choice.options.name_command(found.model, found.given))


def _describe_checks(front: Sequence[Choice]) -> str:
    """Say what was checked of the rows; `now` are the default options, which are only there to compare with."""
    if any(choice.verified is None for choice in front):
        return "not verified; cycles are estimates"
    wrong = sum(choice.verified is False for choice in front)
    verdict = f"{wrong:,} of {len(front):,} FAILED" if wrong else "all passed"
    return f"every row was run on the simulator and compared with TOSA and torch: {verdict}; cycles are estimates"


def _name(position: int) -> str:
    return chr(ord("A") + position) if position < _MOST_POINTS else str(position + 1)


def _show_table(page: Page, choices: Sequence[tuple[str, Choice]], limits: Limits) -> None:
    """Print choices as rows; a column that says nothing about any of them is left out."""
    rows = [_make_row(name, choice, limits) for name, choice in choices]
    shown = [head for head in rows[0] if any(row[head] not in ("", "-") for row in rows)] if rows else []
    page.rows(shown, [[row[head] for head in shown] for row in rows])


def _make_row(name: str, choice: Choice, limits: Limits) -> dict[str, str]:
    excess = limits.list_excesses(choice)
    over = f"{', '.join(excess)} too small: " if excess else ""
    fallback = f", {count(choice.fallback, 'node')} on the CPU" if choice.fallback else ""
    failed = ", VERIFICATION FAILED" if choice.verified is False else ""
    return {
        "": name,
        "cycles": f"{choice.cycles:,}",
        "time": describe_time(choice.seconds),
        "SRAM": f"{choice.sram:,}",
        "DRAM": f"{choice.dram:,}" if choice.dram else "-",
        "flash": f"{choice.flash:,}",
        "SQNR": "-" if choice.sqnr is None else f"{choice.sqnr:.1f} dB",
        "options": f"{over}{choice.options.target} {choice.options.describe()}{fallback}{failed}",
    }


def _show_obstacles(page: Page, found: FitReport) -> None:
    page.line("nothing fits", "red")
    if found.nearest is None:
        return
    _show_table(page, [("nearest", found.nearest)], found.limits)
    excesses = found.limits.list_excesses(found.nearest)
    for memory, held in found.obstacles.items():
        page.title(f"in the way: {memory} is {excesses[memory]:,} bytes too small")
        page.rows(("bytes", "what", "layer"), [_describe_held(one) for one in held])


def _describe_held(held: Held) -> tuple[str, str, str]:
    return f"{held.bytes:,}", held.what, f"`{held.layer}`" if held.layer else "-"


def describe_limits(limits: Limits) -> str:
    """Describe the limits in the units that a user types."""
    pairs = (("SRAM", limits.sram), ("flash", limits.flash), ("DRAM", limits.dram))
    texts = [f"{format_size(size)} of {name}" for name, size in pairs if size is not None]
    return ", ".join(texts) or "no limits"


def format_size(size: int) -> str:
    """Format a size as a user types it: 512K if it is a multiple, else bytes."""
    for unit, letter in _UNITS:
        if size and size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size:,} bytes" if size else "0 bytes"


def draw_plot(choices: Sequence[Choice]) -> list[str]:
    """Draw choices by their SRAM (to the right) and their cycles (upward), each as its letter in the table."""
    xs, ys = [choice.sram for choice in choices], [choice.cycles for choice in choices]
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for i in reversed(range(min(len(choices), _MOST_POINTS))):
        column = round((xs[i] - min(xs)) / max(1, max(xs) - min(xs)) * (_WIDTH - 1))
        row = round((ys[i] - min(ys)) / max(1, max(ys) - min(ys)) * (_HEIGHT - 1))
        grid[_HEIGHT - 1 - row][column] = _name(i)
    labels = [f"{max(ys):,}", *[""] * (_HEIGHT - 2), f"{min(ys):,}"]
    width = max(map(len, labels))
    lines = [f"{label:>{width}} |{''.join(row).rstrip()}" for label, row in zip(labels, grid, strict=True)]
    left, right = f"{min(xs):,}", f"{max(xs):,} bytes of SRAM"
    axis = f"{'':>{width}} +{'-' * _WIDTH}"
    return [*lines, axis, f"{'':>{width}}  {left}{right:>{max(1, _WIDTH - len(left))}}"]
