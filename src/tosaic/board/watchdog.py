"""Stops a firmware that takes too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

#: Seconds between looks at the time.
_INTERVAL = 0.1


class Watchdog:
    """Calls `stop` from another thread when the time is over, and again until it is closed.

    One call may come too early: the CPU may not run at that moment. `exempt` returns seconds that do not count.
    """

    def __init__(self, seconds: float, stop: Callable[[], None], exempt: Callable[[], float]) -> None:
        self.seconds, self._stop, self._exempt = seconds, stop, exempt
        self.expired = False
        self._closed = threading.Event()
        self._begin = time.monotonic()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watchdog:
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(_INTERVAL):
            if time.monotonic() - self._begin - self._exempt() > self.seconds:
                self.expired = True
                self._stop()
