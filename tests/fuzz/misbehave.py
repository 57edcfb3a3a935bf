"""Tasks for the tests of the pool: some end their process or never end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable


def load() -> None:
    pass


def work(task: str, more: Callable[[float], None]) -> str:
    if task == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if task == "exit":
        os._exit(3)
    if task == "hang":
        time.sleep(60)
    if task == "long":
        more(30.0)
        time.sleep(2)
    return task.upper()


def fail_to_load() -> None:
    os._exit(4)
