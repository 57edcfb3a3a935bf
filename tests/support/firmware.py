"""The firmware's runtime on the host: built by gcc with sanitizers, run in a process that this module talks to."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
import numpy.typing as npt

from tosaic.board.kernels import FIRMWARE, list_kernels, make_table
from tosaic.core.dtypes import BY_SCALAR_TYPE
from tosaic.npu import parse
from tosaic.npu.machine import execute
from tosaic.npu.memory import INTERNAL, Memory, Region, make_region
from tosaic.npu.weights import WeightCache

GCC = shutil.which("gcc")
#: As strict as the build for a device is.
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
#: Method, planned, scratch, fast scratch.
POOLS = (1 << 20, 8 << 20, 8 << 20, 1 << 20)
_HARNESS = Path(__file__).parents[1] / "board" / "host" / "harness.c"
_ONES = 0xFFFFFFFF
_JOB, _END = ord("J"), ord("E")
_TENSOR = 4
#: Names of the statuses, in their order.
STATUSES = re.findall(
    r"^    TOSAIC_(\w+)(?: = 0)?,",
    (FIRMWARE / "tosaic.h").read_text().partition("TOSAIC_STATUS_COUNT")[0],
    re.MULTILINE,
)
#: Runs a job: (commands, weights, scratch, size of the fast scratch memory) -> scratch.
Npu: TypeAlias = Callable[[bytes, bytes, bytes, int], bytes]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run: the status and its sentence's number, the place of a failure, high-water marks, outputs."""

    status: int
    instruction: int
    detail: int
    name: str
    peaks: tuple[int, ...]
    outputs: list[npt.NDArray[np.generic]]


def build_harness(folder: Path) -> Path:
    """Build the harness with all kernels."""
    assert GCC is not None
    table, program = folder / "kernels.c", folder / "harness"
    table.write_text(make_table(list_kernels().values()))
    # The C library has its own bytes.c.
    sources = [path for path in (*FIRMWARE.glob("*.c"), *FIRMWARE.glob("kernels/*.c")) if path.name != "bytes.c"]
    sanitize = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    compiled_as_for_a_device = ("-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing")
    flags = ("-std=gnu11", "-g", "-O1", *compiled_as_for_a_device, *sanitize, *WARNINGS)
    files = [str(path) for path in (_HARNESS, table, *sorted(sources))]
    subprocess.run([GCC, *flags, "-I", str(FIRMWARE), *files, "-o", str(program)], check=True)
    return program


class Firmware:
    """The process with the runtime. A crash raises, with what the sanitizers found."""

    def __init__(self, program: Path, log: Path) -> None:
        self._log = log.open("w+")
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, cwd=log.parent
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def run(
        self,
        pte: bytes,
        inputs: Sequence[npt.NDArray[np.generic] | None] = (None,) * 16,
        *,
        method: int = 0,
        pools: Sequence[int] = POOLS,
        npu: Npu | None = None,
        runs: int = 1,
        data: Sequence[bytes] = (),
    ) -> Ended:
        """Run a file with its .ptd files. An input that is None is ones.

        Without an `npu`, the driver runs jobs that write a pattern.
        """
        send, receive = self._process.stdin, self._process.stdout
        assert send is not None and receive is not None
        try:
            counts = (npu is not None, runs, len(data), len(inputs))
            send.write(struct.pack("<10I", len(pte), method, *pools, *counts) + pte)
            for file in data:
                send.write(struct.pack("<I", len(file)) + file)
            for array in inputs:
                raw = b"" if array is None else np.ascontiguousarray(array).tobytes()
                send.write(struct.pack("<I", _ONES if array is None else len(raw)) + raw)
            send.flush()
            while (tag := _read_words(receive, 1)[0]) == _JOB:
                assert npu is not None
                sizes = _read_words(receive, 4)
                commands, weights, scratch = (_read(receive, size) for size in sizes[:3])
                send.write(struct.pack("<I", 0) + npu(commands, weights, scratch, sizes[3]))
                send.flush()
            assert tag == _END
            return _read_end(receive)
        except (EOFError, BrokenPipeError):
            self._process.wait()
            self._log.seek(0)
            raise AssertionError(f"the runtime crashed:\n{self._log.read()}") from None


def simulate_job(commands: bytes, weights: bytes, scratch: bytes, fast_scratch_size: int) -> bytes:
    """Run one job on the simulated NPU and return the scratch memory."""
    stream, data = parse(commands), np.frombuffer(scratch, np.uint8).copy()
    memory = Memory(
        {
            0: make_region("weights", 0, data=weights),
            1: Region("scratch", data, True),
            2: make_region("fast scratch", fast_scratch_size),
            INTERNAL: make_region("internal", stream.accelerator.ram_bytes),
        }
    )
    execute(stream, memory, WeightCache())
    return data.tobytes()


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise EOFError
    return data


def _read_words(file: IO[bytes], count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}I", _read(file, 4 * count))


def _read_end(file: IO[bytes]) -> Ended:
    status, instruction, detail, length = _read_words(file, 4)
    name = _read(file, length).decode("utf-8", "replace")
    peaks = _read_words(file, 4)
    (count,) = _read_words(file, 1)
    return Ended(status, instruction, detail, name, peaks, [_read_output(file) for _ in range(count)])


def _read_output(file: IO[bytes]) -> npt.NDArray[np.generic]:
    (kind,) = _read_words(file, 1)
    if kind != _TENSOR:
        return np.frombuffer(_read(file, 8), np.int64)[0]
    dtype, rank = _read_words(file, 2)
    sizes = struct.unpack(f"<{rank}i", _read(file, 4 * rank))
    order = tuple(_read(file, rank))
    (length,) = _read_words(file, 1)
    data = np.frombuffer(_read(file, length), BY_SCALAR_TYPE[dtype].numpy)
    if data.size != np.prod(sizes):
        return data
    return data.reshape([sizes[dim] for dim in order]).transpose([order.index(dim) for dim in range(rank)])
