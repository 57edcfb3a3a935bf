"""Where a .pte runs: the simulated NPU, ExecuTorch's own runtime, Vulkan, or the TOSA reference model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint
from tosaic.engines import reference
from tosaic.engines.interpreter import BACKEND as NPU_BACKEND
from tosaic.engines.interpreter import Call, Executor, Method, list_calls
from tosaic.formats.npy import Array
from tosaic.formats.pte import Plan, read
from tosaic.formats.sidecar import Sidecar
from tosaic.formats.tensors import TensorType

ENGINES = ("auto", "npu", "executorch", "vulkan", "tosa")
TOSA_BACKEND, VGF_BACKEND = "TOSABackend", "VgfBackend"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outputs, the engine that computed them, and why it was this one where another was meant."""

    outputs: list[Array]
    engine: str
    why: str
    calls: tuple[Call, ...]


def run(
    pte: bytes,
    inputs: Sequence[Array],
    *,
    engine: str = "auto",
    sidecar: Sidecar | None = None,
    method: str = "forward",
    max_memory: int | None = None,
) -> Outcome:
    """Run a method of a .pte file. Engine tosa needs the sidecar unless the delegates are TOSA themselves.

    `max_memory` is what the file may take in bytes: 1 GiB more than its own size, unless it is given.
    """
    if engine not in ENGINES:
        raise Invalid(f"there is no engine `{engine}`", fix=f"use one of {', '.join(ENGINES)}")
    program = read(pte, max_memory=max_memory)
    plan = program.find(method)
    chosen, why = choose(plan, engine)
    if chosen == "vulkan":
        from tosaic.engines import vulkan

        return Outcome(
            vulkan.run(pte, inputs, method=method, max_memory=max_memory), chosen, why, tuple(list_calls(plan))
        )
    if chosen == "executorch":
        from tosaic.engines import executorch

        return Outcome(
            executorch.run(pte, inputs, method=method, max_memory=max_memory), chosen, why, tuple(list_calls(plan))
        )
    # Without executors a method has the simulated NPU, which shares its budget.
    executors = None if chosen == "npu" else references(plan, sidecar)
    ready = Method(program, method, executors=executors, max_memory=max_memory)
    outputs = ready.run(inputs)
    return Outcome(outputs, chosen, why, tuple(ready.calls))


def choose(plan: Plan, engine: str) -> tuple[str, str]:
    """The engine for a program, and the reason if it is not the first choice."""
    backends = {d.id for d in plan.delegates}
    if engine != "auto":
        return engine, ""
    if VGF_BACKEND in backends:
        from tosaic.engines import vulkan

        probe = vulkan.probe()
        return ("vulkan", "") if probe.ok else ("tosa", f"Vulkan is not usable: {probe.reason}")
    return ("tosa", "") if TOSA_BACKEND in backends else ("npu", "")


def references(plan: Plan, sidecar: Sidecar | None) -> Mapping[str, Executor]:
    """Executors that compute every delegate with the TOSA reference model."""
    graphs: dict[str, bytes] = {}
    for index, delegate in enumerate(plan.delegates):
        if delegate.id == TOSA_BACKEND:
            graphs[_key(delegate.blob)] = delegate.blob
        elif sidecar is not None and index < len(sidecar.delegates):
            graphs[_key(delegate.blob)] = sidecar.delegates[index].tosa

    def execute(
        blob: bytes, specs: Sequence[tuple[str, bytes]], inputs: list[Array], outputs: list[TensorType]
    ) -> list[Array]:
        tosa = graphs.get(_key(blob))
        if tosa is None:
            raise Invalid(
                "engine `tosa` needs the .tosaic file that was written beside the .pte",
                fix=Hint(
                    "compile without `with_sidecar=False`, or use another engine",
                    "compile without `--no-sidecar`, or use another engine",
                ),
            )
        return reference.run(tosa, inputs)

    return dict.fromkeys((NPU_BACKEND, TOSA_BACKEND, VGF_BACKEND), execute)


def _key(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()
