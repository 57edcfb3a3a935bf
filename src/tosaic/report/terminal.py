"""Reports for people: plain words and columns that stay readable without colour and on a narrow terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tosaic.report.header import Port
from tosaic.report.schema import MemoryReport, Report

#: more places than this are counted, not listed
_MOST_PLACES = 3


class Reason(Protocol):
    """Why a node is not on the NPU, as the partitioner says it."""

    @property
    def node(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def fix(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def border(self) -> bool: ...


def make_console(*, to_stderr: bool = False) -> Console:
    """A console that follows NO_COLOR and the width of the terminal, and colours nothing by guessing."""
    return Console(stderr=to_stderr, highlight=False, markup=False, emoji=False)


def list_pairs(pairs: Iterable[tuple[str, str]]) -> Table:
    """Labels and values in two columns; long values are wrapped, never cut."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in pairs:
        table.add_row(label, value)
    return table


def list_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table with a heading; cells are wrapped, never cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in head:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def count(number: int, noun: str) -> str:
    """A number with its noun, in the plural where that is due."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def show_report(console: Console, report: Report) -> None:
    """The summary of a compile."""
    options = ", ".join(f"`{value}`" for value in report.options.values() if value)
    console.print(Text(f"{report.model or 'program'} for {report.target}", style="bold"))
    console.print(list_pairs([("options", options), *_pair_delegates(report), *_pair_figures(report)]))
    for part in _explain_cpu(report.reasons):
        console.print(part)
    for warning in report.warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
    for path, size in report.files.items():
        console.print(Text(f"wrote `{path}` ({size:,} bytes)"))


def _pair_delegates(report: Report) -> Iterator[tuple[str, str]]:
    if not report.delegates:
        yield "delegates", "none"
    for i, delegate in enumerate(report.delegates):
        label = "delegates" if len(report.delegates) == 1 else f"delegate {i}"
        operators = count(sum(delegate.tosa_ops.values()), "TOSA operator")
        lead = "1: " if len(report.delegates) == 1 else ""
        yield label, f"{lead}{count(delegate.nodes, 'node')}, {operators}, {delegate.blob_bytes:,} bytes"
    yield "on the CPU", describe_counts(report.cpu_ops)


def describe_counts(counts: Mapping[str, int]) -> str:
    """Names with how often they occur."""
    return ", ".join(f"`{name}` x{number}" for name, number in counts.items()) or "nothing"


def _pair_figures(report: Report) -> Iterator[tuple[str, str]]:
    vela = [delegate.vela for delegate in report.delegates if delegate.vela]
    if vela:
        yield from _pair_memory(report.memory)
    yield "planned IO", f"{' + '.join(f'{size:,}' for size in report.memory.planned) or '0'} bytes"
    if vela:
        cycles, macs = (int(sum(v.get(key, 0.0) for v in vela)) for key in ("cycles_total", "nn_macs"))
        seconds = sum(v.get("inference_time", 0.0) for v in vela)
        clock = vela[0].get("core_clock", 0.0)
        yield "NPU cycles", f"{cycles:,} ({seconds * 1e3:.3g} ms at {clock / 1e6:g} MHz), Vela's estimate"
        yield "MACs", f"{macs:,}"
    yield from pair_ports("input", report.inputs)
    yield from pair_ports("output", report.outputs)
    yield "time", ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in report.seconds.items())


def _pair_memory(memory: MemoryReport) -> Iterator[tuple[str, str]]:
    yield "network", f"{memory.network:,} bytes in {memory.network_in}"
    yield "scratch", f"{memory.scratch:,} bytes in {memory.scratch_in}"
    if memory.fast_scratch_in:
        yield "fast scratch", f"{memory.fast_scratch:,} bytes in {memory.fast_scratch_in}"
    else:
        yield "fast scratch", "none: the scratch lies in the fast memory already"
    yield "commands", f"{memory.commands:,} bytes"


def pair_ports(what: str, ports: Sequence[Port]) -> Iterator[tuple[str, str]]:
    """One line per input or output."""
    for i, port in enumerate(ports):
        yield f"{what} {i}", describe_port(port)


def describe_port(port: Port) -> str:
    """Name, type, layout and, where it is quantised, what its numbers mean."""
    words = [f"`{port.name}`"] if port.name else []
    words.append(f"{port.dtype} {list(port.shape)}")
    if port.layout:
        words.append(port.layout)
    text = " ".join(words)
    return text if port.scale is None else f"{text}, scale {port.scale:.9g}, zero point {port.zero_point}"


def _explain_cpu(reasons: Sequence[Reason]) -> Iterator[RenderableType]:
    """Every reason once, with the places it holds for."""
    groups: dict[tuple[str, str, str], list[Reason]] = {}
    for reason in reasons:
        groups.setdefault((reason.op, reason.why, reason.fix), []).append(reason)
    if groups:
        yield Text("why these are on the CPU", style="bold")
    for (op, why, fix), members in groups.items():
        yield Padding(Text(f"`{op}` x{len(members)}"), (0, 0, 0, 2))
        pairs = [("why", why), ("fix", fix), ("where", _list_places(members))]
        yield Padding(list_pairs((label, text) for label, text in pairs if text), (0, 0, 0, 4))


def _list_places(reasons: Sequence[Reason]) -> str:
    places = list(dict.fromkeys(reason.where for reason in reasons if reason.where))
    more = len(places) - _MOST_PLACES
    return ", ".join(places[:_MOST_PLACES]) + (f" and {more} more (`--json` lists all)" if more > 0 else "")
