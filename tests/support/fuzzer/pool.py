"""Processes that work on tasks; one that crashes or hangs costs its task and is replaced. It imports no torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

#: what a process runs: a task, and a function that says how many more seconds it is going to take
Work = Callable[[Any, Callable[[float], None]], Any]
#: seconds for a process to import what it needs, on a loaded machine
START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Lost:
    """A task without a result: why."""

    why: str


class _Slot:
    """One process, the task that it has, and until when."""

    def __init__(self, work: Work, load: Callable[[], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, far = context.Pipe()
        self.process = context.Process(target=_serve, args=(far, work, load))
        self.process.start()
        far.close()
        self.task: Any = None
        self.seconds = START_SECONDS
        self.end = time.monotonic() + START_SECONDS
        self.is_ready = False

    def give(self, task: Any, seconds: float) -> None:
        self.task, self.seconds = task, seconds
        self._allow(seconds)
        self.connection.send(task)

    def _allow(self, seconds: float) -> None:
        self.seconds, self.end = seconds, time.monotonic() + seconds

    def read(self) -> Any:
        """The result, Lost, or None if there is none yet."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Lost(f"crash: the process ended with {_name_end(self.process.exitcode)}")
        if kind == "ready":
            self.is_ready = True
        elif kind == "more":
            self._allow(value)
        else:
            return value
        return None

    def stop(self) -> None:
        # A tool that works for a hanging process would go on without it.
        tools = _list_children(self.process.pid)
        self.process.kill()
        for pid in tools:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.join()
        self.connection.close()


def _serve(connection: Connection, work: Work, load: Callable[[], None]) -> None:
    # Ctrl-C is for the parent, which writes the summary.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load()
    connection.send(("ready", None))
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(("result", work(task, lambda seconds: connection.send(("more", seconds)))))


def _list_children(pid: int | None) -> list[int]:
    """The children of a process and theirs."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in path.read_text().split()]
    return found + [below for child in found for below in _list_children(child)]


def _name_end(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def run_all(
    work: Work, load: Callable[[], None], tasks: Sequence[Any], jobs: int, seconds: float
) -> Iterator[tuple[Any, Any]]:
    """Every task with its result, or with Lost after a crash or more than `seconds`; in the order they end."""
    todo = list(reversed(tasks))
    slots = [_Slot(work, load) for _ in range(min(jobs, len(tasks)))]
    try:
        while slots:
            wait([s.connection for s in slots], max(0.0, min(s.end for s in slots) - time.monotonic()))
            for slot in list(slots):
                found = slot.read() if slot.connection.poll() else None
                if found is None and time.monotonic() > slot.end:
                    found = Lost(f"hang: no result after {slot.seconds:g} s")
                if isinstance(found, Lost):
                    slots.remove(slot)
                    slot.stop()
                    if slot.task is None:
                        raise RuntimeError(f"a process does not start: {found.why}")
                    if todo:
                        slots.append(_Slot(work, load))
                if found is not None:
                    task, slot.task = slot.task, None
                    yield task, found
                if slot in slots and slot.is_ready and slot.task is None:
                    if todo:
                        slot.give(todo.pop(), seconds)
                    else:
                        slots.remove(slot)
                        slot.stop()
    finally:
        for slot in slots:
            slot.stop()
