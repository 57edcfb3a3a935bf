"""A native tool in a long-lived child process: a time limit, a captured log, a new child after a crash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tosaic.core.errors import ToolCrashed, ToolFailed
from tosaic.tools import wire
from tosaic.tools.process import ToolTimedOut, find_time_limit, name_signal

#: Seconds for the child to import its tool: generous, for loaded machines.
_START_TIMEOUT = 120.0
_LOG_TAIL = 4000
_SOURCE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Reply:
    """A child's answer. `failure` is empty, or the exception that ended the request."""

    body: wire.Header
    parts: list[bytes]
    failure: str
    log: str


class Worker:
    """Starts `python -m <module>` at the first request and keeps it; requests from several threads are queued."""

    def __init__(self, module: str, tool: str) -> None:
        self._module = module
        self._tool = tool
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._finalizer: weakref.finalize[[], Worker] | None = None
        self._cpu_of_ended = 0.0
        os.register_at_fork(after_in_child=_make_forget(weakref.ref(self)))

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all children so far, as of the last reply."""
        return self._cpu_of_ended + (self._child.cpu_seconds if self._child else 0.0)

    def start(self) -> None:
        """Start the child now, so that a later request need not wait for its imports."""
        with self._lock:
            self._ready_child()

    def close(self) -> None:
        """End the child; a later request starts a new one."""
        with self._lock:
            self._drop()

    def request(self, body: wire.Header, parts: Sequence[bytes] = (), *, timeout: float | None = None) -> Reply:
        """Return the child's answer; raise ToolFailed if it crashes or takes longer than `timeout` seconds."""
        limit = find_time_limit(timeout)
        with self._lock:
            child = self._ready_child()
            header, results = self._exchange(child, limit, {"limit": limit, "body": body}, parts)
        return Reply(header["body"], results, header["failure"], header["log"])

    def _ready_child(self) -> _Child:
        if self._child is not None and self._child.process.poll() is None:
            return self._child
        self._drop()
        child = self._child = _Child(self._module)
        self._finalizer = weakref.finalize(self, child.end)
        self._exchange(child, _START_TIMEOUT, None)
        return child

    def _exchange(
        self, child: _Child, limit: float, request: wire.Header | None, parts: Sequence[bytes] = ()
    ) -> tuple[wire.Header, list[bytes]]:
        deadline = time.monotonic() + limit
        try:
            # A child that has answered before reads what it is sent; only its answer may be late.
            if request is not None:
                wire.send(child.stdin.fileno(), request, parts)
            header, results = wire.receive(child.stdout.fileno(), deadline)
        except TimeoutError:
            child.process.kill()
            raise self._explain(child, limit, late=True) from None
        except (OSError, EOFError):
            raise self._explain(child, limit, late=False) from None
        except BaseException:
            # An interrupt leaves half a frame in the pipe: this child cannot be used again.
            self._drop()
            raise
        child.cpu_seconds = header["cpu"]
        return header, results

    def _explain(self, child: _Child, limit: float, *, late: bool) -> ToolFailed:
        code = child.wait()
        log = child.read_log()
        self._drop()
        if late:
            return ToolTimedOut(self._tool, "answer", limit, log)
        end = f"crashed with {name_signal(-code)}" if code < 0 else f"ended with exit code {code}"
        return ToolCrashed(f"{self._tool} {end}", log=log, why=log.strip()[-_LOG_TAIL:])

    def _drop(self) -> None:
        if self._child is not None:
            self._cpu_of_ended += self._child.cpu_seconds
            self._child = None
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None

    def forget(self) -> None:
        """Release the child without ending it: after a fork it belongs to the other process."""
        self._lock = threading.Lock()
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if self._child is not None:
            self._child.forget()
            self._child = None


class _Child:
    """One running process, its pipes and its folder."""

    def __init__(self, module: str) -> None:
        self.cpu_seconds = 0.0
        self._folder = Path(tempfile.mkdtemp(prefix="tosaic-"))
        home = self._folder / "home"
        home.mkdir()
        with (self._folder / "log").open("a+b") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=home,
                env=_environment(),
                # Ctrl-C in a terminal is for the parent, which then ends the child.
                start_new_session=True,
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def wait(self) -> int:
        """Return the exit code of a child that has closed its pipe."""
        try:
            return self.process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def read_log(self) -> str:
        return (self._folder / "log").read_bytes().decode("utf-8", "replace")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        # Popen would otherwise warn that a process which is not ours is still running.
        self.process.returncode = 0
        self._close()

    def _close(self) -> None:
        self.stdin.close()
        self.stdout.close()


def _environment() -> dict[str, str]:
    """Return the parent's environment, extended so that the child can import tosaic from the same path."""
    # The child has another working folder, where relative entries would mean something else.
    entries = [str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = os.pathsep.join([str(_SOURCE_ROOT), *entries])
    # The tools do no linear algebra: one BLAS thread makes numpy start faster.
    return {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}


def _make_forget(find: Callable[[], Worker | None]) -> Callable[[], None]:
    def forget() -> None:
        worker = find()
        if worker is not None:
            worker.forget()

    return forget
