"""Executors that a child process can import, by what makes them: what an Ethos-U would compute, without one."""

import os
import signal
from pathlib import Path

import numpy as np


def make_double():
    return lambda _blob, _specs, inputs, _outputs: [inputs[0] * 2]


def make_shorten():
    return lambda _blob, _specs, inputs, _outputs: [inputs[0][:3]]


def make_refuse():
    def refuse(_blob, _specs, _inputs, _outputs):
        raise ValueError("the NPU is on fire")

    return refuse


def make_crash():
    return lambda *_: os.kill(os.getpid(), signal.SIGSEGV)


def make_mix():
    """Something that depends on every input byte and gives every output a different value."""

    def mix(_blob, specs, inputs, outputs):
        weights = (np.arange(1, array.size + 1).reshape(array.shape) for array in inputs)
        seed = sum(int(np.sum(array.astype(np.int64) * w)) for array, w in zip(inputs, weights, strict=True))
        rng = np.random.default_rng(abs(seed) + len(specs))
        return [rng.integers(-100, 100, output.shape).astype(output.dtype) for output in outputs]

    return mix


def make_record():
    """The simulated NPU; what each call of it gets is kept in the folder that the environment names."""
    from tosaic.engines.interpreter import Npu

    npu, folder = Npu(), Path(os.environ["TOSAIC_TEST_RECORD"])

    def record(blob, specs, inputs, outputs):
        np.savez(folder / f"{len(list(folder.iterdir()))}.npz", *inputs)
        return npu(blob, specs, inputs, outputs)

    return record
