"""Formats the estimate from the commands of a delegate as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.npu.perf import ROW_BYTES, Estimate, Row, Traffic, count_operations, estimate
from tosaic.npu.stream import parse
from tosaic.npu.system import find_options

#: The origin of the figure.
SOURCE = "estimate from the commands"
WHY_DIFFERENT = (
    "the first adds up the commands in the file, each with its blocks and its memory traffic; the second is what Vela"
    " expects of its schedule, before it writes commands. Neither is measured"
)
COLUMNS = ("offset", "operation", "cycles", "limited by", "MACs used", "bytes read and written")
_LIMITS = {"mac": "MACs", "output": "output stage", "command": "issue of blocks", "dma": "DMA"}


def estimate_delegate(
    cmd_data: bytes, specs: Sequence[tuple[str, bytes]], budget: Budget | None = None
) -> Estimate | None:
    """Estimate a delegate with these compile specs.

    The result is None if the commands are damaged, or if Vela's own configuration file lacks the system.
    """
    try:
        options, count = find_options(parse(cmd_data).accelerator.name, specs), count_operations(cmd_data)
    except Invalid:
        return None
    (budget or Budget(len(cmd_data))).take(count * ROW_BYTES, "the estimate of a command stream")
    try:
        return estimate(cmd_data, options)
    except Invalid:
        return None


def list_rows(found: Estimate) -> Iterator[tuple[str, ...]]:
    """Yield one table row per operation."""
    for row in found.rows:
        used = f"{row.utilization:.0%}" if row.macs else ""
        yield (
            f"0x{row.offset:06x}",
            row.name,
            f"{row.cycles:,}",
            name_limit(row.bottleneck),
            used,
            describe_traffic(row.traffic),
        )


def describe_row(row: Row) -> str:
    """Describe an operation in one line of a log."""
    used = f"{row.utilization:.0%} of the MACs used, " if row.macs else ""
    cycles = f"{row.cycles} cycles (estimate)"
    limit, traffic = name_limit(row.bottleneck), describe_traffic(row.traffic)
    return f"0x{row.offset:06x} {row.name} : {cycles}, limit {limit}, {used}{traffic}"


def name_limit(bottleneck: str) -> str:
    """Name the bottleneck of an operation; a memory has its own name."""
    return _LIMITS.get(bottleneck, bottleneck)


def describe_traffic(traffic: Mapping[str, Traffic]) -> str:
    """Describe the bytes per memory."""
    return "; ".join(f"{name} {moved.read:,} + {moved.written:,}" for name, moved in traffic.items())


def describe_total(found: Estimate, vela: float | None = None) -> str:
    """Describe the cycles and the MAC utilization, and Vela's cycles if given, with the reason why they differ."""
    clock = describe_duration(found.seconds, found.clock)
    beside = "" if vela is None else f"; {vela:,.0f}, Vela's own estimate: {WHY_DIFFERENT}"
    return f"{found.cycles:,} ({clock}, {found.utilization:.0%} of the MACs used), an estimate{beside}"


def describe_sum(found: Sequence[Estimate]) -> str:
    """Describe the cycles of several delegates together."""
    cycles, seconds = sum(one.cycles for one in found), sum(one.seconds for one in found)
    return f"{cycles:,} ({describe_duration(seconds, found[0].clock)}), an estimate"


def describe_duration(seconds: float, clock: float) -> str:
    """Describe how long something takes at a clock."""
    return f"{describe_time(seconds)} at {clock / 1e6:g} MHz"


def describe_time(seconds: float) -> str:
    """Format seconds in a suitable unit."""
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
