"""How two compiled programs differ: as data, on the terminal, and as a Markdown table for a review."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tosaic.report.cycles import describe_time
from tosaic.report.figures import Figures
from tosaic.report.terminal import Page

SCHEMA = "tosaic-diff/1"
#: Layers that are listed unless all are asked for.
_MOST_LAYERS = 20
#: Names come from files: they must not become markup, or mention anyone.
_MARKUP = str.maketrans(
    {char: f"\\{char}" for char in "\\`*_|[]~"}
    | {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;", "#": "&#35;", "\n": " ", "\r": " "}
)


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of two programs; None where a program does not have it."""

    name: str
    before: float | None
    after: float | None

    @property
    def is_change(self) -> bool:
        return self.before != self.after

    @property
    def growth(self) -> float | None:
        """The growth in percent; None if one of the figures is missing, or the first is 0."""
        if self.before is None or self.after is None or not self.before:
            return None
        return (self.after / self.before - 1.0) * 100.0

    def describe(self) -> tuple[str, str, str, str]:
        """Describe the change as a row of a table."""
        return self.name, _format(self.before), _format(self.after), self._describe_growth()

    def _describe_growth(self) -> str:
        if not self.is_change:
            return "same"
        if self.before is None or self.after is None:
            return "new" if self.before is None else "gone"
        step = self.after - self.before
        text = f"{step:+,.0f}"
        return text if self.growth is None else f"{text} ({self.growth:+.1f} %)"


@dataclass(frozen=True, slots=True)
class Difference:
    """Two programs with their figures side by side."""

    before: Figures
    after: Figures
    totals: tuple[Change, ...]
    layers: tuple[Change, ...]
    tosa_operators: tuple[Change, ...]
    cpu_operators: tuple[Change, ...]

    @property
    def is_same(self) -> bool:
        """Whether both files have the same bytes."""
        return self.before.sha256 == self.after.sha256

    def list_grown(self, percent: float) -> list[Change]:
        """List the totals that grew by more than this, or from nothing."""
        grown: list[Change] = []
        for change in self.totals:
            known = change.before is not None and change.after is not None
            if known and (change.after or 0) > (change.before or 0) * (1.0 + percent / 100.0):
                grown.append(change)
        return grown

    def to_json(self) -> dict[str, Any]:
        """Return the difference under its schema name, ready for json.dumps."""
        sections = {name: [asdict(change) for change in changes] for name, changes in self._list_sections()}
        return {
            "schema": SCHEMA,
            "same": self.is_same,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "totals": [asdict(change) for change in self.totals],
            **sections,
        }

    def _list_sections(self) -> Iterator[tuple[str, tuple[Change, ...]]]:
        yield "layers", self.layers
        yield "tosa_operators", self.tosa_operators
        yield "cpu_operators", self.cpu_operators


def compare_figures(before: Figures, after: Figures) -> Difference:
    """Compare two programs. Layers are in the order of their change, the largest first; the rest in that of names."""
    totals = [Change("bytes", before.bytes, after.bytes)]
    totals += [
        Change(memory, before.memory.get(memory), after.memory.get(memory))
        for memory in ("SRAM", "DRAM", "flash")
        if memory in before.memory or memory in after.memory
    ]
    totals += [
        Change("NPU cycles", before.cycles, after.cycles),
        Change("MACs", before.macs, after.macs),
        Change("delegates", before.delegates, after.delegates),
        Change("CPU operators", sum(before.cpu_operators.values()), sum(after.cpu_operators.values())),
    ]
    # Without layers on one side, all of the other would look new.
    known = bool(before.layers and after.layers)
    layers = _compare(before.layers, after.layers) if known else []
    layers.sort(key=lambda change: -abs((change.after or 0) - (change.before or 0)))
    tosa = _compare(before.tosa_operators, after.tosa_operators) if not (before.note or after.note) else []
    cpu = _compare(before.cpu_operators, after.cpu_operators)
    return Difference(before, after, tuple(totals), tuple(layers), tuple(tosa), tuple(cpu))


def _compare(before: Mapping[str, int], after: Mapping[str, int]) -> list[Change]:
    return [Change(name, before.get(name), after.get(name)) for name in dict.fromkeys((*before, *after))]


def show_difference(page: Page, found: Difference, *, verbose: bool = False) -> None:
    """Print the difference; only what changed, unless it is verbose."""
    page.title(f"`{found.before.file}` -> `{found.after.file}`", gap=False)
    if found.is_same:
        page.line("the files are identical")
    _show_table(page, found.totals)
    times = [figures.seconds for figures in (found.before, found.after)]
    if all(seconds is not None for seconds in times):
        page.line(f"time {' -> '.join(describe_time(seconds or 0.0) for seconds in times)}, an estimate")
    for title, changes, left_out in _list_tables(found, verbose):
        page.title(title)
        _show_table(page, changes)
        if left_out:
            page.line(f"and {left_out:,} more (`-v` lists all)")
    for note in _list_notes(found):
        page.line(note)


def _show_table(page: Page, changes: Sequence[Change]) -> None:
    # The names are last: they may be long, and the last column is wrapped.
    rows = [change.describe() for change in changes]
    page.rows(("before", "after", "change", ""), [(*cells, name) for name, *cells in rows])


def write_markdown(found: Difference) -> str:
    """Return the difference as Markdown: the totals, and what changed below them, folded."""
    names = " -> ".join(f"`{figures.file.replace('`', '')}`" for figures in (found.before, found.after))
    lines = [f"### {names.translate({10: ' ', 13: ' '})}", "", *_write_table(found.totals)]
    if found.is_same:
        lines += ["", "The files are identical."]
    for title, changes, left_out in _list_tables(found, verbose=False):
        more = [f"and {left_out:,} more", ""] if left_out else []
        lines += ["", f"<details><summary>{title}</summary>", "", *_write_table(changes), "", *more, "</details>"]
    lines += [line for note in _list_notes(found) for line in ("", note.translate(_MARKUP))]
    return "\n".join(lines) + "\n"


def _write_table(changes: Sequence[Change]) -> Iterator[str]:
    yield "| | before | after | change |"
    yield "|---|--:|--:|--:|"
    for change in changes:
        yield "| " + " | ".join(cell.translate(_MARKUP) for cell in change.describe()) + " |"


def _list_tables(found: Difference, verbose: bool) -> Iterator[tuple[str, Sequence[Change], int]]:
    """Yield the tables below the totals: a title, the rows, and how many rows are left out."""
    titles = ("layers, in cycles", "TOSA operators", "CPU operators")
    for title, changes in zip(titles, (found.layers, found.tosa_operators, found.cpu_operators), strict=True):
        rows = [change for change in changes if verbose or change.is_change]
        shown = rows if verbose else rows[:_MOST_LAYERS]
        if rows:
            yield title, shown, len(rows) - len(shown)


def _list_notes(found: Difference) -> list[str]:
    return [f"`{figures.file}`: {figures.note}" for figures in (found.before, found.after) if figures.note]


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
