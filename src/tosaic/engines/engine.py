"""Where a .pte runs: all engines by name, and the choice between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tosaic.core.errors import Invalid
from tosaic.engines.executorch import ExecutorchRuntime
from tosaic.engines.interpreter import Call
from tosaic.engines.protocol import Engine, Job
from tosaic.engines.simulator import Simulator
from tosaic.engines.tosa import ReferenceModel
from tosaic.engines.vulkan import VulkanRuntime
from tosaic.formats.npy import Array
from tosaic.formats.pte import Plan, read
from tosaic.formats.sidecar import Sidecar

ENGINES: dict[str, Engine] = {
    "npu": Simulator(),
    "executorch": ExecutorchRuntime(),
    "vulkan": VulkanRuntime(),
    "tosa": ReferenceModel(),
}
#: leaves the choice to the backend that the delegates are for
AUTO = "auto"
#: for programs without delegates; it names a backend that it does not know
_DEFAULT = "npu"
#: computes the delegates of any backend
_UNIVERSAL = "tosa"


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
    engine: str = AUTO,
    sidecar: Sidecar | None = None,
    method: str = "forward",
    max_memory: int | None = None,
) -> Outcome:
    """Run a method of a .pte file. Engine tosa needs the sidecar unless the delegates are TOSA themselves.

    `max_memory` is what the file may take in bytes: 1 GiB more than its own size, unless it is given.
    """
    if engine not in (AUTO, *ENGINES):
        raise Invalid(f"unknown engine `{engine}`", fix=f"use one of {', '.join((AUTO, *ENGINES))}")
    program = read(pte, max_memory=max_memory)
    chosen, why = choose(program.find(method), engine)
    result = ENGINES[chosen].run(Job(pte, program, method, inputs, sidecar, max_memory))
    return Outcome(result.outputs, chosen, why, tuple(result.calls))


def choose(plan: Plan, engine: str) -> tuple[str, str]:
    """Choose the engine for a program; the reason is given if it is not the first choice."""
    if engine != AUTO:
        return engine, ""
    meant = find_engines(plan) - {""}
    chosen = meant.pop() if len(meant) == 1 else _UNIVERSAL if meant else _DEFAULT
    obstacle = ENGINES[chosen].find_obstacle()
    return (_UNIVERSAL, f"{ENGINES[chosen].title} is not usable: {obstacle}") if obstacle else (chosen, "")


def find_engines(plan: Plan) -> set[str]:
    """Find the engines that the delegates of a program are meant for; that of an unknown backend is empty."""
    # Backends have compile specs, which are ExecuTorch's, and that imports torch.
    from tosaic.backends.registry import BACKENDS

    return {BACKENDS[d.id].engine if d.id in BACKENDS else "" for d in plan.delegates}
