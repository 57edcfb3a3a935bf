"""Reports on the terminal: plain words and columns that stay readable without color and on a narrow terminal."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from tosaic.core.location import describe_place
from tosaic.core.reason import Reason
from tosaic.core.tensor_info import TensorInfo
from tosaic.report.causes import count_ops, group_causes
from tosaic.report.cycles import WHY_DIFFERENT, describe_sum, describe_time
from tosaic.report.schema import MemoryReport, Report

#: below this many characters, columns are dropped or the terminal's width is ignored
_LEAST_WIDTH = 24
#: the last column of a table may be narrower: two words of a cell still fit
_LEAST_CELL = 16
#: more locations than this are counted, not listed
_MOST_PLACES = 3


class Page:
    """Text on stdout, wrapped to the width of the terminal: nothing is ever truncated.

    Rich decides on color and width (terminal or not, NO_COLOR, COLUMNS); columns are plain text, so that a pipe
    gets the same words without trailing blanks.
    """

    def __init__(self, console: Console | None = None) -> None:
        # rich would still print bold under NO_COLOR.
        colors = None if os.environ.get("NO_COLOR") else "auto"
        self._console = console or Console(color_system=colors, highlight=False, markup=False, emoji=False)

    def title(self, text: str, *, gap: bool = True) -> None:
        """Print a heading, with an empty line before it."""
        if gap:
            self._print([""])
        self.line(text, "bold")

    def line(self, text: str, style: str = "", indent: int = 0) -> None:
        self._print(_wrap(text, self._console.width - indent), style, indent)

    def pairs(self, pairs: Iterable[tuple[str, str]], indent: int = 0) -> None:
        """Print labels and values in two columns."""
        rows = list(pairs)
        label_width = max((len(label) for label, _ in rows), default=0) + 2
        width = self._console.width - indent
        for label, value in rows:
            if width - label_width < _LEAST_WIDTH:
                lines = [label, *(f"  {line}" for line in _wrap(value, width - 2))]
            else:
                first, *rest = _wrap(value, width - label_width)
                lines = [f"{label:<{label_width}}{first}", *(" " * label_width + line for line in rest)]
            self._print(lines, indent=indent)

    def rows(self, head: Sequence[str], rows: Iterable[Sequence[str]], indent: int = 0) -> None:
        """Print a table; the last column is wrapped, and if it would be too narrow each row becomes a list of pairs."""
        table = [[str(cell) for cell in row] for row in rows]
        widths = [max(len(row[i]) for row in [list(head), *table]) + 2 for i in range(len(head) - 1)]
        left = self._console.width - indent - sum(widths)
        if left < _LEAST_CELL:
            for row in table:
                self.pairs(zip(head, row, strict=True), indent)
                self._print([""])
            return
        for number, row in enumerate([list(head), *table]):
            start = "".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False))
            first, *rest = _wrap(row[-1], left, _LEAST_CELL)
            lines = [start + first, *(" " * len(start) + line for line in rest)]
            self._print(lines, "" if number else "bold", indent)

    def raw(self, text: str) -> None:
        """Print a line as it is, such as a command to paste: it is not wrapped."""
        self._print(text.split("\n"))

    def _print(self, lines: Iterable[str], style: str = "", indent: int = 0) -> None:
        clean = "\n".join((" " * indent + line).rstrip() for line in lines)
        self._console.print(Text(clean, style=style), soft_wrap=True)


def _wrap(text: str, width: int, least: int = _LEAST_WIDTH) -> list[str]:
    """Wrap text to this width; a word is only broken if it is longer than a line."""
    return textwrap.wrap(text, max(width, least), break_on_hyphens=False) or [""]


def count(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural if needed."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def describe_counts(counts: Mapping[str, int]) -> str:
    """Describe names with how often they occur."""
    return ", ".join(f"`{name}` x{number}" for name, number in counts.items()) or "nothing"


def describe_sizes(sizes: Sequence[int]) -> str:
    """Describe the sizes of several buffers in bytes."""
    return f"{' + '.join(f'{size:,}' for size in sizes) or '0'} bytes"


def show_report(page: Page, report: Report, *, verbose: bool = False) -> None:
    """Print the summary of a compile."""
    options = ", ".join(f"`{value}`" for value in report.options.values() if value)
    page.title(f"{report.model or 'program'} for {report.target}", gap=False)
    page.pairs(
        [
            *((memory, _describe_use(held)) for memory, held in report.memory_uses.items()),
            *_pair_cycles(report, verbose),
            *_pair_delegates(report),
            *_pair_details(report, verbose),
            *pair_tensors("input", report.inputs),
            *pair_tensors("output", report.outputs),
            ("options", options),
            ("time", ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in report.seconds.items())),
        ]
    )
    _explain_cpu(page, report.reasons)
    for warning in report.warnings:
        page.line(f"warning: {warning}", "yellow")
    for path, size in report.files.items():
        page.line(f"wrote `{path}` ({count(size, 'byte')})")


def _pair_delegates(report: Report) -> Iterator[tuple[str, str]]:
    if not report.delegates:
        yield "delegates", "none"
    for i, delegate in enumerate(report.delegates):
        label = "delegates" if len(report.delegates) == 1 else f"delegate {i}"
        operators = count(sum(delegate.tosa_ops.values()), "TOSA operator")
        lead = "1: " if len(report.delegates) == 1 else ""
        yield label, f"{lead}{count(delegate.nodes, 'node')}, {operators}, {delegate.blob_bytes:,} bytes"
    yield "on the CPU", describe_counts(report.cpu_ops)


def _describe_use(held: Mapping[str, int]) -> str:
    """Describe the bytes in a memory, and their parts if there are several."""
    total = f"{sum(held.values()):,} bytes"
    if len(held) == 1:
        return f"{total}: {next(iter(held))}"
    return f"{total}: {', '.join(f'{what} {size:,}' for what, size in held.items())}"


def _pair_cycles(report: Report, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield the estimate from the commands; on request also Vela's, and what the difference comes from."""
    found = [delegate.estimate for delegate in report.delegates if delegate.estimate]
    if found:
        yield "NPU cycles", describe_sum(found)
    vela = [delegate.vela for delegate in report.delegates if delegate.vela]
    if vela and verbose:
        cycles = int(sum(v.get("cycles_total", 0.0) for v in vela))
        seconds = sum(v.get("inference_time", 0.0) for v in vela)
        yield "", f"{cycles:,} ({describe_time(seconds)}), Vela's own estimate"
        yield "", WHY_DIFFERENT


def _pair_details(report: Report, verbose: bool) -> Iterator[tuple[str, str]]:
    if any(delegate.vela for delegate in report.delegates) and verbose:
        yield from _pair_memory(report.memory)
        found = [delegate.estimate for delegate in report.delegates if delegate.estimate]
        used = sum(one.utilization * one.cycles for one in found) / max(1, sum(one.cycles for one in found))
        yield "MACs", f"{sum(one.macs for one in found):,}, {used:.0%} of the MACs used"
    if verbose or not report.memory_uses:
        yield "planned IO", describe_sizes(report.memory.planned)


def _pair_memory(memory: MemoryReport) -> Iterator[tuple[str, str]]:
    yield "weights", f"{count(memory.network, 'byte')} ({memory.network_in})"
    yield "scratch", f"{count(memory.scratch, 'byte')} ({memory.scratch_in})"
    if memory.fast_scratch_in:
        yield "fast scratch", f"{count(memory.fast_scratch, 'byte')} ({memory.fast_scratch_in})"
    else:
        yield "fast scratch", "not used (scratch is already in SRAM)"
    yield "commands", count(memory.commands, "byte")


def pair_tensors(what: str, tensors: Sequence[TensorInfo]) -> Iterator[tuple[str, str]]:
    """Yield one line per input or output."""
    for i, tensor in enumerate(tensors):
        yield f"{what} {i}", describe_tensor(tensor)


def describe_tensor(tensor: TensorInfo) -> str:
    """Return name, type, layout and, for a quantized tensor, its qparams."""
    words = [f"`{tensor.name}`"] if tensor.name else []
    words.append(f"{tensor.dtype} {list(tensor.shape)}")
    if tensor.layout:
        words.append(tensor.layout)
    text = " ".join(words)
    return text if tensor.scale is None else f"{text}, scale {tensor.scale:.9g}, zero point {tensor.zero_point}"


def _explain_cpu(page: Page, reasons: Sequence[Reason]) -> None:
    """Print every cause once, with the locations it applies to and the nodes that follow it to the CPU."""
    if reasons:
        page.title("why these are on the CPU", gap=False)
    for cause in group_causes(reasons):
        if cause.is_io:
            page.line(f"float I/O: {describe_counts(count_ops(cause.nodes))}", indent=2)
            page.pairs([("fix", cause.fix)], indent=4)
            continue
        page.line(f"`{cause.op}` x{len(cause.nodes)}", indent=2)
        others = count(sum(cause.followers.values()), "node")
        also = f"{others} because of it: {describe_counts(cause.followers)}" if cause.followers else ""
        pairs = (("why", cause.why), ("fix", cause.fix), ("where", _list_places(cause.nodes)), ("also", also))
        page.pairs(((label, text) for label, text in pairs if text), indent=4)


def _list_places(reasons: Sequence[Reason]) -> str:
    places = list(dict.fromkeys(describe_place(r.where, r.module, r.layer) for r in reasons if r.where))
    more = len(places) - _MOST_PLACES
    return ", ".join(places[:_MOST_PLACES]) + (f" and {more} more (`--json` lists all)" if more > 0 else "")
