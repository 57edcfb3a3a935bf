"""The child's side of a worker: answers requests until its parent has exited."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from tosaic.core.heap import LIBC, give_back
from tosaic.tools import wire

Handler: TypeAlias = Callable[[wire.Header, list[bytes]], tuple[wire.Header, Sequence[bytes]]]

#: How much longer than its time limit an orphan in native code may live.
_GRACE_SECONDS = 5.0


def serve(handle: Handler) -> None:
    """Call `handle` for every request, each in a fresh folder, and send its answer with everything that was printed."""
    requests, replies = os.dup(0), os.dup(1)
    # From here on everything printed, also by native code, goes to the log file that is fd 2.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    home, number = Path.cwd(), 0
    wire.send(replies, {"cpu": time.process_time()})
    try:
        while True:
            request, parts = wire.receive(requests)
            os.ftruncate(2, 0)
            # The parent kills us at the time limit; if it dies first, the kernel does.
            signal.setitimer(signal.ITIMER_REAL, request["limit"] + _GRACE_SECONDS)
            number += 1
            answer, failure, results = _answer(handle, request["body"], parts, home / str(number))
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            header = {"body": answer, "failure": failure, "log": _read_log(), "cpu": time.process_time()}
            wire.send(replies, header, results)
            # Between requests, which may be long apart, free everything that a large model needed.
            del request, parts, answer, results
            gc.collect()
            if number == 1:
                # Modules stay, also those that the first request imported: later collections need not scan them.
                gc.freeze()
            give_back()
    except (EOFError, BrokenPipeError):
        os.chdir("/")
        shutil.rmtree(home.parent, ignore_errors=True)


def _answer(
    handle: Handler, body: wire.Header, parts: list[bytes], folder: Path
) -> tuple[wire.Header, str, Sequence[bytes]]:
    folder.mkdir()
    os.chdir(folder)
    try:
        answer, results = handle(body, parts)
        return answer, "", results
    except Exception as error:
        traceback.print_exc()
        return {}, f"{type(error).__name__}: {error}", ()
    finally:
        os.chdir(folder.parent)
        try:
            folder.rmdir()
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)


def _read_log() -> str:
    sys.stdout.flush()
    sys.stderr.flush()
    # Native code has its own buffer for stdout.
    LIBC.fflush(None)
    return os.pread(2, os.fstat(2).st_size, 0).decode("utf-8", "replace")
