"""An in-memory cache of compile results with LRU eviction."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Result = TypeVar("Result")


def make_key(parts: Iterable[bytes | str]) -> str:
    """Return the sha256 of all parts; each is hashed with its length, so that different lists never collide."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class CompileCache(Generic[Result]):
    """A thread-safe cache, bounded by entries and by the size in bytes that `measure` returns."""

    def __init__(self, measure: Callable[[Result], int], *, max_entries: int = 512, max_bytes: int = 256 << 20) -> None:
        self._measure = measure
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._results: OrderedDict[str, tuple[Result, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._results)

    @property
    def bytes_used(self) -> int:
        return self._bytes

    def get(self, key: str) -> Result | None:
        with self._lock:
            found = self._results.get(key)
            if found is None:
                return None
            self._results.move_to_end(key)
            return found[0]

    def put(self, key: str, result: Result) -> None:
        """Keep a result, unless it alone exceeds the limit of the whole cache."""
        size = self._measure(result)
        with self._lock:
            self._remove(key)
            if size > self._max_bytes:
                return
            self._results[key] = (result, size)
            self._bytes += size
            while len(self._results) > self._max_entries or self._bytes > self._max_bytes:
                self._remove(next(iter(self._results)))

    def take(self, key: str) -> Result | None:
        """Return a result that is not needed again, and remove it."""
        found = self.get(key)
        with self._lock:
            self._remove(key)
        return found

    def clear(self) -> None:
        with self._lock:
            self._results.clear()
            self._bytes = 0

    def _remove(self, key: str) -> None:
        found = self._results.pop(key, None)
        if found is not None:
            self._bytes -= found[1]
