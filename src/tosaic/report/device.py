"""The log of a firmware on a board, with what the runner knows about it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tosaic.board.execution import Execution
from tosaic.report.cycles import SOURCE

_VALUE = re.compile(r"Output\[(\d+)\]\[(\d+)\]: ")


def describe_device(done: Execution, max_values: int | None) -> str:
    """Return what a firmware printed, with at most `max_values` values of each output, and notes of the runner."""
    return "\n".join([*_cut_values(done.log, max_values), *(f"I [tosaic] {line}" for line in _list_notes(done))])


def _cut_values(log: str, max_values: int | None) -> Iterator[str]:
    left_out = 0
    number = ""
    for line in log.rstrip("\n").split("\n"):
        match = _VALUE.match(line)
        if match and max_values is not None and int(match[2]) >= max_values:
            left_out, number = left_out + 1, match[1]
            continue
        if left_out:
            yield f"Output[{number}]: {left_out} more values"
            left_out = 0
        yield line
    if left_out:
        yield f"Output[{number}]: {left_out} more values"


def _list_notes(done: Execution) -> Iterator[str]:
    yield f"Ran on {done.place}"
    if not done.is_measured:
        yield f"NOTE: NPU cycles and counters are not measured ({SOURCE}); CPU cycles are not those of a device"
    for note in done.notes:
        yield f"NPU fault: {note}"
    if done.instructions is not None:
        yield f"CPU instructions: {done.instructions}"
