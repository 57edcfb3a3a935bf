"""Tasks for the tests of the pool: some end their process or never end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def load() -> None:
    pass


def work(task: str, more: Callable[[float], None]) -> str:
    if task == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if task == "exit":
        os._exit(3)
    if task == "hang":
        time.sleep(60)
    if task.startswith("tool "):
        tool = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        Path(task.removeprefix("tool ")).write_text(str(tool.pid))
        time.sleep(60)
    if task == "long":
        more(30.0)
        time.sleep(2)
    return task.upper()


def fail_to_load() -> None:
    os._exit(4)
