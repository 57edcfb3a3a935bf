"""Runs damaged files in a process that may use little memory and time: `python mutated_child.py FOLDER FIRST LAST`.

The folder holds the files to damage. For each number one line of JSON tells what was damaged and how the run ended; a
process that stops before its last line has crashed at the one after.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tosaic import npu
from tosaic.errors import TosaicError
from tosaic.ethosu import blob
from tosaic.report import contents
from tosaic.runtime import engine, pte
from tosaic.runtime.host import Method
from tosaic.runtime.inputs import make_ones

MEGABYTES = 512
#: Of processor time; on a busy machine the clock on the wall says nothing.
SECONDS = 5
#: What a U65 has for itself.
FAST_SCRATCH = 0x60000
WILD = (0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x00010000, 0xFFFF, 0)
_HEADER, _IO_WORDS = 32, 9

Rng = np.random.Generator
Damage = Callable[[bytearray, Rng], None]


def flip(data: bytearray, rng: Rng, low: int, high: int, count: int) -> None:
    for _ in range(count):
        data[int(rng.integers(low, high))] ^= 1 << int(rng.integers(8))


def set_word(data: bytearray, rng: Rng, at: int) -> None:
    wild = int(rng.choice(WILD)) if rng.integers(2) else int(rng.integers(1 << 32))
    struct.pack_into("<I", data, at, wild)


def find_blocks(data: bytes) -> dict[str, tuple[int, int]]:
    """Begin and end of the data of each block in a blob."""
    blocks: dict[str, tuple[int, int]] = {}
    at = 0
    while at < len(data):
        name, size = struct.unpack_from("<16sI", data, at)
        blocks[name.partition(b"\0")[0].decode()] = (at + _HEADER, at + _HEADER + size)
        at += _HEADER + size + -size % 16
    return blocks


def cut_off(data: bytearray, rng: Rng) -> None:
    del data[int(rng.integers(len(data))) :]


def flip_one(data: bytearray, rng: Rng) -> None:
    flip(data, rng, 0, len(data), 1)


def flip_many(data: bytearray, rng: Rng) -> None:
    flip(data, rng, 0, len(data), 16)


def set_any_word(data: bytearray, rng: Rng) -> None:
    set_word(data, rng, 4 * int(rng.integers(len(data) // 4)))


def flip_command(data: bytearray, rng: Rng) -> None:
    begin, end = find_blocks(data)["cmd_data"]
    flip(data, rng, begin + _HEADER, end, int(rng.integers(1, 4)))


def set_parameter(data: bytearray, rng: Rng) -> None:
    """The upper half of a command word: sizes, strides, regions, modes."""
    begin, end = find_blocks(data)["cmd_data"]
    at = int(rng.integers((begin + _HEADER) // 4, end // 4)) * 4
    struct.pack_into("<H", data, at + 2, int(rng.choice([0, 1, 0x7FFF, 0xFFFF, int(rng.integers(1 << 16))])))


def set_payload(data: bytearray, rng: Rng) -> None:
    """The word after a command with a payload: addresses, strides, scales, lengths."""
    begin, end = find_blocks(data)["cmd_data"]
    words = [at for at in range(begin + _HEADER, end - 4, 4) if data[at + 1] & 0xC0 == 0x40]
    set_word(data, rng, int(rng.choice(words)) + 4)


def copy_commands(data: bytearray, rng: Rng) -> None:
    begin, end = find_blocks(data)["cmd_data"]
    size = 4 * int(rng.integers(1, 16))
    source, target = (begin + _HEADER + 4 * int(rng.integers((end - begin - _HEADER - size) // 4)) for _ in "ab")
    data[target : target + size] = data[source : source + size]


def flip_weights(data: bytearray, rng: Rng) -> None:
    begin, end = find_blocks(data)["weight_data"]
    flip(data, rng, begin, max(end, begin + 1), int(rng.integers(1, 9)))


def set_border(data: bytearray, rng: Rng) -> None:
    """Shape, element size, offset or region of an input or output."""
    begin, _ = find_blocks(data)[str(rng.choice(["inputs", "outputs"]))]
    set_word(data, rng, begin + 4 * int(rng.integers(1 + _IO_WORDS)))


def set_scratch(data: bytearray, rng: Rng) -> None:
    set_word(data, rng, find_blocks(data)["scratch_size"][0])


ANYWHERE: tuple[Damage, ...] = (cut_off, flip_one, flip_many, set_any_word)
IN_BLOB: tuple[Damage, ...] = (
    flip_command,
    set_parameter,
    set_payload,
    copy_commands,
    flip_weights,
    set_border,
    set_scratch,
)


def damage(data: bytes, kind: str, number: int) -> tuple[str, bytes]:
    """What is damaged, and the file."""
    rng = np.random.default_rng(number)
    chosen = (*ANYWHERE, *IN_BLOB, *IN_BLOB)[number % (len(ANYWHERE) + 2 * len(IN_BLOB))]
    inner = [data] if kind == "blob" else [d.blob for d in pte.read(data).find("forward").delegates]
    if chosen in ANYWHERE or not inner:
        chosen = chosen if chosen in ANYWHERE else set_any_word
        changed = bytearray(data)
        chosen(changed, rng)
    else:
        part = inner[int(rng.integers(len(inner)))]
        hurt = bytearray(part)
        chosen(hurt, rng)
        changed = bytearray(data.replace(part, bytes(hurt)))
    return chosen.__name__, bytes(changed)


def try_blob(data: bytes, passed: list[str]) -> None:
    parts = blob.unpack(data)
    npu.stream.parse(parts.cmd_data)
    passed.append("header")
    contents.read(data)
    small = [io for io in parts.inputs if io.elem_size in (1, 2, 4) and math.prod(io.shape) < 1 << 22]
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-9, 9, io.shape).astype(f"i{io.elem_size}") for io in small]
    npu.run_blob(data, inputs, fast_scratch_size=FAST_SCRATCH)


def try_pte(data: bytes, passed: list[str]) -> None:
    method = Method(pte.read(data))
    passed.append("header")
    contents.read(data)
    sizes = [math.prod(kind.shape) for kind in method.inputs]
    if max(sizes, default=0) < 1 << 22:
        engine.run(data, make_ones(method.inputs))


def limit_memory() -> None:
    """So much more than the interpreter and torch have taken already."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = taken + (MEGABYTES << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(folder: Path, first: int, last: int) -> None:
    files = sorted(folder.iterdir())
    # What is loaded on first use must not count as memory or time of a damaged file.
    for path in files:
        (try_blob if path.suffix == ".blob" else try_pte)(path.read_bytes(), [])
    limit_memory()
    for number in range(first, last):
        path = files[number % len(files)]
        kind = path.suffix.removeprefix(".")
        what, data = damage(path.read_bytes(), kind, number)
        passed: list[str] = []
        # The default action of both signals ends the process: a hang in native code is seen, too.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(12 * SECONDS)
        begin = time.process_time()
        try:
            (try_blob if kind == "blob" else try_pte)(data, passed)
            end = "result"
        except TosaicError as error:
            end = type(error).__name__
        except Exception as error:
            end = f"UNTYPED {type(error).__name__}: {error}"
            if "-v" in sys.argv:
                traceback.print_exc()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        seconds = round(time.process_time() - begin, 3)
        line = {"number": number, "file": path.name, "damage": what, "header": bool(passed), "end": end}
        print(json.dumps({**line, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
