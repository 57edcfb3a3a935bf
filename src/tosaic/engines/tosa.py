"""The engine `tosa`: CPU kernels by torch, delegates of any backend by the TOSA reference model.

The graph of a delegate comes from the sidecar, unless the delegate is a .tosa file itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint
from tosaic.engines import reference
from tosaic.engines.interpreter import Executor, Method
from tosaic.engines.protocol import Engine, Job
from tosaic.formats.npy import Array
from tosaic.formats.pte import Plan
from tosaic.formats.sidecar import Sidecar
from tosaic.formats.tensors import TensorType

#: the backend whose delegates are .tosa files
TOSA_BACKEND = "TOSABackend"


class ReferenceModel(Engine):
    """The TOSA reference model."""

    title = "the TOSA reference model"

    def load(self, job: Job) -> Method:
        # Backends use ExecuTorch's compile specs, and those import torch.
        from tosaic.backends.registry import BACKENDS

        executor = make_reference(job.plan, job.sidecar)
        executors = {delegate.id: executor for delegate in job.plan.delegates if delegate.id in BACKENDS}
        return Method(job.program, job.method, executors=executors, max_memory=job.max_memory)

    def open(self, plan: Plan, sidecar: Sidecar | None, budget: Budget) -> Executor:
        return make_reference(plan, sidecar)


def make_reference(plan: Plan, sidecar: Sidecar | None) -> Executor:
    """Make an executor that computes every delegate of a program with the TOSA reference model."""
    graphs: dict[str, bytes] = {}
    for index, delegate in enumerate(plan.delegates):
        if delegate.id == TOSA_BACKEND:
            graphs[_key(delegate.blob)] = delegate.blob
        elif sidecar is not None and index < len(sidecar.delegates) and sidecar.delegates[index].tosa:
            graphs[_key(delegate.blob)] = sidecar.delegates[index].tosa

    def execute(
        blob: bytes, specs: Sequence[tuple[str, bytes]], inputs: list[Array], outputs: list[TensorType]
    ) -> list[Array]:
        tosa = graphs.get(_key(blob))
        if tosa is None:
            raise Invalid(
                "engine `tosa` needs the .tosaic file of the .pte",
                fix=Hint(
                    "compile without `with_sidecar=False`, or use another engine",
                    "compile without `--no-sidecar`, or use another engine",
                ),
            )
        pairs = zip(reference.run(tosa, inputs), outputs, strict=True)
        return [_restore_sign(array, kind) for array, kind in pairs]

    return execute


def _restore_sign(array: Array, kind: TensorType) -> Array:
    """View the bits of unsigned numbers as what they are: TOSA has them as signed ones."""
    same_size = array.dtype.itemsize == kind.dtype.itemsize
    return array.view(kind.dtype) if array.dtype.kind == "i" and kind.dtype.kind == "u" and same_size else array


def _key(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()
