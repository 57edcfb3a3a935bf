"""Vela, the simulator and the reference model side by side, and command streams with one command changed."""

import dataclasses
import functools
import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from tosaic import npu
from tosaic.backends.ethosu import EthosUArtifact
from tosaic.core.targets import find
from tosaic.driver.delegate import Delegate
from tosaic.engines import reference
from tosaic.ir.graph import Array
from tosaic.npu.stream import parse
from tosaic.tools import vela


class Bench:
    """Compiles with Vela, runs in the simulator, and compares with TOSA's reference model."""

    @staticmethod
    def family(target: str) -> str:
        return "u85" if "u85" in target else "u55"

    @staticmethod
    @functools.cache
    def compile(tosa: bytes, target: str, mode: str = "", flags: tuple[str, ...] = ()) -> vela.Compiled:
        options = vela.default_options(find(target))
        if mode:
            options = dataclasses.replace(options, memory_mode=mode)
        return vela.compile(tosa, dataclasses.replace(options, extra_flags=flags))

    @staticmethod
    def read_listing(log: str) -> list[str]:
        """Vela's own text of the commands. It prints a negative scalar as an unsigned number, and one too low."""
        lines = [line.rstrip() for line in log.splitlines() if re.match(r"0x[0-9a-f]{6}:", line)]
        return [re.sub(r"scalar = (\d{10})$", lambda m: f"scalar = {int(m[1]) + 1 - (1 << 32)}", one) for one in lines]

    @staticmethod
    def run(compiled: vela.Compiled, inputs: list[Array], **options: Any) -> list[Array]:
        options.setdefault("fast_scratch_size", compiled.fast_scratch_size)
        return npu.run(
            compiled.cmd_data,
            compiled.weight_data,
            compiled.scratch_size,
            inputs,
            compiled.inputs,
            compiled.outputs,
            **options,
        )

    def check(self, tosa: bytes, inputs: list[Array], target: str, mode: str = "", flags: tuple[str, ...] = ()) -> None:
        """The simulator must give what TOSA defines, bit for bit, and find nothing to complain about."""
        self.compare(self.compile(tosa, target, mode, flags), inputs, reference.run(tosa, inputs))

    def compare(self, compiled: vela.Compiled, inputs: list[Array], wanted: list[Array]) -> None:
        got = self.run(compiled, inputs, check_uninitialized=True, check_waits=True)
        for index, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
            same = np.frombuffer(ours.tobytes(), theirs.dtype).reshape(theirs.shape)
            assert np.array_equal(same, theirs), f"output {index}: {np.count_nonzero(same != theirs)} differ"


def check_delegate(made: Delegate, inputs: Sequence[Array]) -> None:
    """Compare a delegate on the simulated NPU, with all checks of the simulator, with the reference model."""
    assert isinstance(made.artifact, EthosUArtifact)
    size = made.artifact.compiled.fast_scratch_size
    found = npu.run_blob(made.blob, inputs, fast_scratch_size=size, check_uninitialized=True, check_waits=True)
    for got, want in zip(found, reference.run(made.tosa, inputs), strict=True):
        assert got.tobytes() == want.tobytes()


def patch_stream(
    cmd_data: bytes, command: str, *, nth: int = 0, param: int | None = None, payload: int | None = None
) -> bytes:
    """The stream with the parameter or the payload of its nth command of this name replaced."""
    stream = parse(cmd_data)
    found = [instruction for instruction in stream if instruction.command.name == command][nth]
    data = bytearray(cmd_data)
    at = len(cmd_data) - 4 * len(stream.words) + found.offset
    if param is not None:
        struct.pack_into("<H", data, at + 2, param)
    if payload is not None:
        struct.pack_into("<I", data, at + 4, payload)
    return bytes(data)
