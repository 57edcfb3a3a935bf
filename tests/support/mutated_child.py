"""Reads and runs damaged files in a process with little memory and time.

Its arguments are `FOLDER FIRST LAST [-c]`.
The folder holds the files to damage, and in its folder `by_hand` files that are read as they are, before the others.
For each one line of JSON tells what was damaged and how it ended; a process that stops before its last line has crashed
at the one after. With -c the last line is the coverage of readers.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import tosaic
from support.mutate import damage
from tosaic import npu
from tosaic.api import model_file
from tosaic.core import input_file
from tosaic.core.budget import DEFAULT
from tosaic.core.errors import TosaicError
from tosaic.engines import engine, work
from tosaic.engines.inputs import make_ones, read_content
from tosaic.engines.interpreter import Method
from tosaic.formats import blob, ptd, pte, sidecar, vgf
from tosaic.formats import tosa_reader as tosa
from tosaic.npu.stream import parse
from tosaic.report import contents

#: Of processor time; on a busy machine the clock on the wall says nothing.
SECONDS = 5
BY_HAND = "made by hand"
#: What a U65 has for itself.
FAST_SCRATCH = 0x60000
SMALL, LARGE = 1 << 22, 1 << 25
READERS = (
    "formats/pte.py",
    "formats/pte_schema.py",
    "formats/sidecar.py",
    "formats/archive.py",
    "formats/npy.py",
    "formats/pt.py",
    "formats/tosa_reader.py",
    "formats/flatbuffer.py",
    "formats/vgf.py",
    "formats/blob.py",
    "formats/ptd.py",
    "npu/stream.py",
    "formats/pt2.py",
)


def try_blob(data: bytes, passed: list[str]) -> None:
    parts = blob.unpack(data)
    parse(parts.cmd_data)
    passed.append("header")
    contents.read(data)
    small = [io for io in parts.inputs if io.element_bytes in (1, 2, 4) and math.prod(io.shape) < SMALL]
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-9, 9, io.shape).astype(f"i{io.element_bytes}") for io in small]
    npu.run_blob(data, inputs, fast_scratch_size=FAST_SCRATCH)


def try_pte(data: bytes, passed: list[str]) -> None:
    method = Method(pte.read(data))
    passed.append("header")
    contents.read(data)
    sizes = [math.prod(kind.shape) for kind in method.inputs]
    if max(sizes, default=0) <= LARGE:
        engine.run(data, make_ones(method.inputs), engine="npu")


def try_tosa(data: bytes, passed: list[str]) -> None:
    tosa.read(data)
    passed.append("header")
    contents.read(data, text=True)


def try_vgf(data: bytes, passed: list[str]) -> None:
    vgf.read(data)
    passed.append("header")
    contents.read(data)


def try_ptd(data: bytes, passed: list[str]) -> None:
    ptd.read(data)
    passed.append("header")
    contents.read(data)


def try_sidecar(data: bytes, passed: list[str]) -> None:
    sidecar.read(data)
    passed.append("header")
    contents.read(data)


def try_file(suffix: str, read: Callable[[Path], object]) -> Callable[[bytes, list[str]], None]:
    def attempt(data: bytes, passed: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"file.{suffix}")
            path.write_bytes(data)
            read(path)
            passed.append("header")

    return attempt


def try_pipe(_data: bytes, _passed: list[str]) -> None:
    """A pipe that someone writes to for as long as it is read."""

    def write(path: Path) -> None:
        with contextlib.suppress(BrokenPipeError), path.open("wb", buffering=0) as pipe:
            while True:
                pipe.write(bytes(1 << 20))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipe.pte")
        os.mkfifo(path)
        threading.Thread(target=write, args=(path,), daemon=True).start()
        input_file.read(path)


#: What is done with each kind of file.
ENTRIES: dict[str, Callable[[bytes, list[str]], object]] = {
    "pte": try_pte,
    "blob": try_blob,
    "tosa": try_tosa,
    "vgf": try_vgf,
    "ptd": try_ptd,
    "tosaic": try_sidecar,
    "pt2": try_file("pt2", lambda path: model_file.load(str(path))),
    "npz": try_file("npz", read_content),
    "pt": try_file("pt", read_content),
    "device": lambda data, _passed: input_file.read(Path(data.decode())),
    "fifo": try_pipe,
}


class Coverage:
    """The lines of the readers that ran."""

    def __init__(self) -> None:
        root = Path(tosaic.__file__).parent
        self._names = {str(root / name): name for name in READERS}
        self._ran: dict[str, set[int]] = {name: set() for name in self._names.values()}

    def trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        name = self._names.get(frame.f_code.co_filename)
        if name is None:
            return None
        ran = self._ran[name]

        def note(frame: FrameType, event: str, _arg: object) -> Any:
            if event == "line":
                ran.add(frame.f_lineno)
            return note

        return note

    def count(self) -> dict[str, tuple[int, int]]:
        """Lines of functions that ran, and how many there are, by module."""
        found: dict[str, tuple[int, int]] = {}
        for path, name in self._names.items():
            lines = list_lines(compile(Path(path).read_text(), path, "exec"), top=True)
            found[name] = (len(lines & self._ran[name]), len(lines))
        return found


def list_lines(code: CodeType, *, top: bool = False) -> set[int]:
    """The lines inside functions; those of modules and classes run at import."""
    own = not top and bool(code.co_flags & inspect.CO_OPTIMIZED)
    lines = {line for _, _, line in code.co_lines() if line and line > code.co_firstlineno} if own else set[int]()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines |= list_lines(constant)
    return lines


def limit_memory(largest: int) -> None:
    """So much more than what is taken already: the budget of the largest file, and a quarter for Python itself."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = taken + (DEFAULT + largest) * 5 // 4
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def attempt(kind: str, data: bytes) -> tuple[str, bool, float]:
    """How the file ended, whether its header was good, and the seconds it took."""
    passed: list[str] = []
    # The default action of both signals ends the process: a hang in native code is seen, too.
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(12 * SECONDS)
    begin = time.process_time()
    try:
        ENTRIES[kind](data, passed)
        end = "result"
    except TosaicError as error:
        end = type(error).__name__
    except Exception as error:
        end = f"UNTYPED {type(error).__name__}: {error}"
        if "-v" in sys.argv:
            traceback.print_exc()
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    return end, bool(passed), round(time.process_time() - begin, 3)


def report(number: int, path: Path, what: str, data: bytes) -> None:
    """Try a file and print how it ended."""
    end, good, seconds = attempt(path.suffix.removeprefix("."), data)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    line = {"number": number, "file": path.name, "damage": what, "header": good, "end": end}
    print(json.dumps({**line, "seconds": seconds, "peak": peak}), flush=True)


def main(folder: Path, first: int, last: int) -> None:
    files = {path: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
    kinds = {path: path.suffix.removeprefix(".") for path in files}
    inner: dict[Path, list[bytes]] = {path: [] for path in files}
    # What is loaded on first use must not count as memory or time of a damaged file.
    for path, data in files.items():
        if kinds[path] == "pte":
            inner[path] = [d.blob for d in pte.read(data).find("forward").delegates]
        ENTRIES[kinds[path]](data, [])
    limit_memory(max(map(len, files.values())))
    # The limit on work stands in the same relation to the time here as to the minutes that a user would wait.
    work.MAX_WORK, work.PER_BYTE = SECONDS * 200_000_000, 0
    for path in sorted(folder.glob("by_hand/*")):
        report(-1, path, BY_HAND, path.read_bytes())
    # Tracing takes several times as long: files that are made to take long are read without.
    coverage = Coverage()
    if "-c" in sys.argv:
        sys.settrace(coverage.trace)
    for number in range(first, last):
        path = list(files)[number % len(files)]
        report(number, path, *damage(files[path], kinds[path], number, inner[path]))
    sys.settrace(None)
    if "-c" in sys.argv:
        print(json.dumps({"coverage": coverage.count()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
