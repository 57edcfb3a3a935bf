"""CPU seconds and memory of a process and of the tool it keeps running beside it."""

from __future__ import annotations

import functools
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Clock:
    """Adds up CPU seconds by name. `tool` gives those of a long-lived child, which the process itself does not see."""

    tool: Callable[[], float] = lambda: 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    def now(self) -> float:
        return time.process_time() + self.tool()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = self.now()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - start

    def wrap(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, with its time added to `name`."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return function(*args, **kwargs)

        return timed


def reset_peak() -> bool:
    """Forget the peak so far, so that building the model does not count. False where the system cannot do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """The largest resident memory of this process since `reset_peak`."""
    # ru_maxrss cannot be reset, and after a fork it begins with what the parent had.
    found = _read_peak("self")
    return found or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def children_peak_bytes() -> int:
    """The sum of the largest resident memory of every running child, without the libraries that it shares."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if not children.exists():
        return 0
    return sum(max(0, _read_peak(pid) - _read_shared(pid)) for pid in children.read_text().split())


def _read_shared(pid: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shared_Clean:"))


def _read_peak(pid: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
