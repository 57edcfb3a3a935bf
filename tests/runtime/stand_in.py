"""Executors that a child process can import: what an Ethos-U would compute, without one."""

import numpy as np


def double(_blob, _specs, inputs, _outputs):
    return [inputs[0] * 2]


def refuse(_blob, _specs, _inputs, _outputs):
    raise ValueError("the NPU is on fire")


def crash(_blob, _specs, _inputs, _outputs):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def mix(_blob, specs, inputs, outputs):
    """Something that depends on every input byte and gives every output a different value."""
    seed = sum(
        int(np.sum(array.astype(np.int64) * np.arange(1, array.size + 1).reshape(array.shape))) for array in inputs
    )
    rng = np.random.default_rng(abs(seed) + len(specs))
    return [rng.integers(-100, 100, output.shape).astype(output.dtype) for output in outputs]


def shorten(_blob, _specs, inputs, _outputs):
    return [inputs[0][:3]]
