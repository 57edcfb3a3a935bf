"""The engine `npu`: CPU kernels by torch, Ethos-U delegates by the built-in simulator."""

from __future__ import annotations

from tosaic.core.budget import Budget
from tosaic.engines.interpreter import Executor, Method, Npu
from tosaic.engines.protocol import Engine, Job
from tosaic.formats.pte import Plan
from tosaic.formats.sidecar import Sidecar


class Simulator(Engine):
    """The simulated NPU."""

    title = "the simulated NPU"

    def load(self, job: Job) -> Method:
        # By default a method uses the simulated NPU, which shares its budget.
        return Method(job.program, job.method, max_memory=job.max_memory, weights=job.weights)

    def open(self, plan: Plan, sidecar: Sidecar | None, budget: Budget) -> Executor:
        return Npu(budget=budget)
