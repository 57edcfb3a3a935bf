"""A child for the worker's tests: it answers, prints, fails, hangs or dies as it is told."""

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tosaic.tools import wire
from tosaic.tools.serve import serve

_KEPT: list[list[None]] = []


def _handle(body: wire.Header, parts: tuple[bytes, ...]) -> tuple[wire.Header, Sequence[bytes]]:
    print(body.get("say", ""))
    match body.get("do", ""):
        case "crash":
            sys.stdout.flush()
            signal.raise_signal(signal.Signals[body["signal"]])
        case "exit":
            os._exit(body["code"])
        case "raise":
            raise ValueError(body["text"])
        case "hang":
            time.sleep(60.0)
        case "burn":
            start = time.process_time()
            while time.process_time() - start < body["seconds"]:
                pass
        case "native":
            ctypes.CDLL(None).puts(b"from C stdio")
            os.write(1, b"to fd 1\n")
            os.write(2, b"to fd 2\n")
        case "import":
            # Enough objects that a garbage collector needs a while for them.
            _KEPT.extend([[] for _ in range(200_000)])
        case _:
            pass
    answer = {
        "body": dict(body),
        "pid": os.getpid(),
        "folder": str(Path.cwd()),
        "files": [path.name for path in Path.cwd().iterdir()],
        "stdin": sys.stdin.read(),
        "torch": "torch" in sys.modules,
        "frozen": gc.get_freeze_count(),
    }
    return answer, [part[::-1] for part in parts]


if __name__ == "__main__":
    serve(_handle)
