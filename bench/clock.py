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


#: how long a child that has answered may need to give its memory back
SETTLE_SECONDS = 0.2


class Memory:
    """The largest resident memory of this process and its children together.

    Their peaks come at different times, so they are added up piece by piece: whoever starts or ends the work of a child
    calls `cut`.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the peak so far, so that building the model does not count."""
        self.peak = 0
        self._reset()

    def cut(self) -> int:
        """End a piece; the peak of all pieces so far."""
        pieces = [max(0, _read_peak(pid) - _read_shared(pid)) for pid in _list_children()]
        # ru_maxrss cannot be reset, and after a fork it begins with what the parent had.
        own = _read_peak("self") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.peak = max(self.peak, own + sum(pieces))
        self._reset()
        return self.peak

    def _reset(self) -> None:
        done = [_reset_peak(pid) for pid in ("self", *_list_children())]
        #: whether the system can do that; else a piece has the peaks of those before it
        self.resets = all(done)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, in a piece of its own."""

        @functools.wraps(function)
        def cut(*args: Any, **kwargs: Any) -> Any:
            self.cut()
            try:
                return function(*args, **kwargs)
            finally:
                time.sleep(SETTLE_SECONDS)
                self.cut()

        return cut


def _list_children() -> list[str]:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    return children.read_text().split() if children.exists() else []


def _reset_peak(pid: str) -> bool:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return False
    return True


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
