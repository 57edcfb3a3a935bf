"""Measures the time that some parts of a run take together, also while one of them lasts."""

from __future__ import annotations

import time
from types import TracebackType


class Stopwatch:
    """Runs inside its `with` blocks. Another thread may read it."""

    def __init__(self) -> None:
        self._total = 0.0
        self._begin: float | None = None
        self._cpu_begin = 0.0
        #: Seconds of this process's CPU time.
        self.cpu = 0.0

    def read(self) -> float:
        """Return the seconds so far."""
        begin = self._begin
        return self._total + (0.0 if begin is None else time.monotonic() - begin)

    def __enter__(self) -> None:
        self._begin, self._cpu_begin = time.monotonic(), time.process_time()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._total, self._begin = self.read(), None
        self.cpu += time.process_time() - self._cpu_begin
