"""Which layer the commands and cycles of an Ethos-U delegate belong to: every report that has layers asks here.

An operation belongs to the torch node that Vela scheduled it for; a DMA, and the cycles in which the NPU waits for it,
to the layer that needs its data. Without a .tosaic file every operation is a layer of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tosaic.npu.perf import Estimate
from tosaic.npu.reads import CommandReads
from tosaic.report.cycles import name_limit
from tosaic.report.schedule import Origin, Schedule


@dataclass(slots=True)
class Share:
    """What one layer has of a delegate.

    origin    the torch node that it is named after
    commands  its operations and DMAs, by index
    steps     the steps of the schedule that its operations belong to
    cycles    its cycles by bottleneck
    """

    origin: Origin | None
    commands: list[int] = field(default_factory=list[int])
    steps: dict[int, None] = field(default_factory=dict[int, None])
    cycles: Counter[str] = field(default_factory=Counter[str])


def divide(timed: Estimate, reads: Sequence[CommandReads], schedule: Schedule | None) -> list[Share]:
    """Divide the commands and cycles of a delegate among its layers; the cycles add up to those of the estimate.

    The layers are in the order in which their results are complete: after the layers that they read.
    """
    shares = _divide_commands(reads, schedule)
    _divide_cycles(timed, reads, shares)
    return shares


def _divide_commands(reads: Sequence[CommandReads], schedule: Schedule | None) -> list[Share]:
    steps = schedule.commands if schedule is not None else ()
    shares: dict[object, Share] = {}
    for index, read in enumerate(reads):
        step = steps[index] if index < len(steps) else -1
        origin = schedule.find_origin(schedule.steps[step].ops) if schedule is not None and step >= 0 else None
        key: object = origin or (("step", step) if step >= 0 else _find_user(index, read))
        share = shares.setdefault(key, Share(origin))
        share.commands.append(index)
        if step >= 0 and (read.ofm or read.is_indexed):
            share.steps[step] = None
    return sorted(shares.values(), key=lambda share: _find_last(share, reads))


def _find_user(index: int, read: CommandReads) -> int:
    """Find the operation that a command belongs to if no step is known: itself, or the one that a DMA serves."""
    return read.serves if read.serves >= 0 else index


def _find_last(share: Share, reads: Sequence[CommandReads]) -> int:
    kernels = (index for index in reversed(share.commands) if reads[index].ofm)
    return next(kernels, share.commands[-1])


def _divide_cycles(timed: Estimate, reads: Sequence[CommandReads], shares: Sequence[Share]) -> None:
    owners = {index: share.cycles for share in shares for index in share.commands}
    waited = {row.end: index for index, row in enumerate(timed.rows) if not reads[index].ofm}
    now = 0
    for index, row in enumerate(timed.rows):
        if reads[index].ofm:
            # Kernel operations run one after the other; a gap before one is a wait for a DMA, which ends then.
            owners[waited.get(row.start, index)][name_limit("dma")] += row.start - now
            owners[index][name_limit(row.bottleneck)] += row.cycles
            now = row.end
    if timed.cycles > now:
        owners[waited[timed.cycles]][name_limit("dma")] += timed.cycles - now
