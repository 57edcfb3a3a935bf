"""Advice: the changes of a compile that pay, each with what was measured before and after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tosaic.report.choices import Choice
from tosaic.report.terminal import Page, count

SCHEMA = "tosaic-advice/1"


@dataclass(frozen=True, slots=True)
class Gain:
    """A figure before and after a change."""

    name: str
    before: float
    after: float

    @property
    def percent(self) -> float:
        """The growth in percent: less is better."""
        return (self.after / self.before - 1.0) * 100.0 if self.before else 0.0

    def describe(self) -> str:
        return f"{self.name} {self.before:,.0f} to {self.after:,.0f} ({self.percent:+.1f} %)"


@dataclass(frozen=True, slots=True)
class Advice:
    """A change of options, with the figures that it changes. The first figure is what it is for."""

    change: str
    gains: tuple[Gain, ...]
    choice: Choice
    #: what it means for whoever calls the program; empty if nothing changes for them
    consequence: str = ""

    def describe(self) -> str:
        """Describe the advice in one line."""
        return f"`{self.change}`: {', '.join(gain.describe() for gain in self.gains)}"


@dataclass(frozen=True, slots=True)
class Hint:
    """A fix for nodes on the CPU, which only the author of the model can make: it is not measured."""

    fix: str
    nodes: int
    where: str


@dataclass(frozen=True, slots=True)
class AdviceReport:
    """The advice for a model: single changes, all of them together, and fixes of the model itself.

    given  words that the command needs besides its options, such as `--calibration samples.npz`
    """

    model: str
    base: Choice
    advice: tuple[Advice, ...]
    together: Advice | None
    hints: tuple[Hint, ...]
    compiles: int
    notes: tuple[str, ...] = ()
    given: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report under its schema name, ready for json.dumps."""
        return {"schema": SCHEMA, **asdict(self)}


def show_advice(page: Page, found: AdviceReport) -> None:
    """Print the advice, the most useful first."""
    base = found.base
    page.title(f"{found.model} for {base.options.target}, {base.options.describe()}", gap=False)
    page.line(f"{base.cycles:,} cycles (an estimate), SRAM {base.sram:,}, flash {base.flash:,} bytes")
    if not found.advice and not found.hints:
        page.line("no change of the options that were tried pays")
    for line in _list_lines(found):
        page.line(line)
    if found.advice:
        page.title("command")
        best = found.together or found.advice[0]
        page.raw(best.choice.options.name_command(found.model, found.given))
    for note in found.notes:
        page.line(f"warning: {note}", "yellow")


def _list_lines(found: AdviceReport) -> Iterator[str]:
    for number, one in enumerate(found.advice, 1):
        yield f"{number}. {one.describe()}{f'; {one.consequence}' if one.consequence else ''}"
    if found.together is not None:
        yield f"together: {', '.join(gain.describe() for gain in found.together.gains)}"
    for hint in found.hints:
        yield f"not measured: {hint.fix} ({count(hint.nodes, 'node')} on the CPU, {hint.where or 'no source line'})"
