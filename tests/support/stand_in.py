"""Executors that a child process can import, by what makes them: what an Ethos-U would compute, without one."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tosaic.engines.interpreter import Executor, Npu
from tosaic.formats.npy import Array
from tosaic.formats.tensors import TensorType

Specs = Sequence[tuple[str, bytes]]


def make_double() -> Executor:
    return lambda _blob, _specs, inputs, _outputs: [np.multiply(inputs[0], 2)]


def make_shorten() -> Executor:
    return lambda _blob, _specs, inputs, _outputs: [inputs[0][:3]]


def make_refuse() -> Executor:
    def refuse(*_: object) -> list[Array]:
        raise ValueError("the NPU is on fire")

    return refuse


def make_crash() -> Executor:
    def crash(*_: object) -> list[Array]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return []

    return crash


def make_mix() -> Executor:
    """Something that depends on every input byte and gives every output a different value."""

    def mix(_blob: bytes, specs: Specs, inputs: list[Array], outputs: list[TensorType]) -> list[Array]:
        weights = (np.arange(1, array.size + 1).reshape(array.shape) for array in inputs)
        seed = sum(int(np.sum(array.astype(np.int64) * w)) for array, w in zip(inputs, weights, strict=True))
        rng = np.random.default_rng(abs(seed) + len(specs))
        return [rng.integers(-100, 100, output.shape).astype(output.dtype) for output in outputs]

    return mix


def make_record() -> Executor:
    """The simulated NPU; what each call of it gets is kept in the folder that the environment names."""
    npu, folder = Npu(), Path(os.environ["TOSAIC_TEST_RECORD"])

    def record(blob: bytes, specs: Specs, inputs: list[Array], outputs: list[TensorType]) -> list[Array]:
        np.savez(folder / f"{len(list(folder.iterdir()))}.npz", *inputs)
        return npu(blob, specs, inputs, outputs)

    return record
