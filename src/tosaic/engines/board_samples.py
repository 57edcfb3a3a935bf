"""Tests for a firmware: the samples of a .tosaic file, with the outputs that the simulated NPU gives for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tosaic.board.project import Sample
from tosaic.core.errors import Invalid
from tosaic.engines.board import pack_inputs
from tosaic.engines.interpreter import Method
from tosaic.formats.external import read
from tosaic.formats.npy import Array
from tosaic.formats.pte import Plan, Tensor
from tosaic.formats.sidecar import Sidecar

#: How far a float may be from the expected one, relative to the largest: CPU kernels differ in the last bits.
TOLERANCE = 1e-5


def make_samples(
    pte: bytes, sidecar: Sidecar | None, method: str = "forward", data: Sequence[bytes] = ()
) -> tuple[list[Sample], float]:
    """Return the samples of a program, and how far an output of floats may be from the expected one.

    `data` are the .ptd files of the program.
    """
    if sidecar is None or not sidecar.samples:
        raise Invalid(
            "there are no samples to test the firmware with",
            why="the .tosaic file next to the .pte has them" if sidecar is None else "the .tosaic file has none",
            fix="compile the model with `tosaic compile`, which writes that file",
        )
    sidecar.check(pte)
    program = read(pte, data)
    plan = program.find(method)
    samples: list[Sample] = []
    largest = 1.0
    for sample in sidecar.samples:
        # A new method for each: a model with state begins from its first state.
        inputs = sidecar.as_called(sample.inputs)
        outputs = Method(program, method).run(inputs)
        samples.append(Sample(tuple(pack_inputs(plan, inputs)), tuple(_pack_outputs(plan, outputs))))
        floats = [float(np.abs(array.astype(np.float64)).max()) for array in outputs if _is_float(array)]
        largest = max([largest, *floats])
    return samples, TOLERANCE * largest


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" and array.size > 0


def _pack_outputs(plan: Plan, outputs: Sequence[Array]) -> list[bytes]:
    packed: list[bytes] = []
    for index, array in zip(plan.outputs, outputs, strict=True):
        spec = plan.values[index]
        order = spec.dim_order if isinstance(spec, Tensor) else ()
        packed.append(np.ascontiguousarray(array.transpose(order)).tobytes() if order else array.tobytes())
    return packed
