"""Engine `executorch`: the .pte in ExecuTorch's own C++ runtime, with our NPU registered as its Ethos-U backend.

It shows that the file loads and runs in the stock runtime: its loader, its memory plan, its CPU kernels. The runtime is
in a worker process, because an unsuitable program may crash it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid, ToolFailed
from tosaic.core.hints import Hint
from tosaic.engines import shim
from tosaic.engines.interpreter import Executor, Method, Npu, list_calls
from tosaic.engines.missing_kernel import check_kernels
from tosaic.engines.protocol import Engine, Job, Result
from tosaic.formats.external import read
from tosaic.formats.npy import Array
from tosaic.formats.pte import Plan
from tosaic.formats.sidecar import Sidecar
from tosaic.tools.worker import Reply, Worker

NPU = "tosaic.engines.interpreter:Npu"


@functools.cache
def worker() -> Worker:
    """Return the only runtime worker of this Python process."""
    return Worker("tosaic.engines.executorch_child", "ExecuTorch's runtime")


class ExecutorchRuntime(Engine):
    """ExecuTorch's runtime."""

    title = "ExecuTorch's runtime"

    def run(self, job: Job) -> Result:
        outputs = run(job.pte, job.inputs, method=job.method, max_memory=job.max_memory, data=job.data)
        return Result(outputs, list_calls(job.plan))

    def open(self, plan: Plan, sidecar: Sidecar | None, budget: Budget) -> Executor:
        return Npu(budget=budget)


def run(
    pte: bytes,
    inputs: Sequence[Array],
    *,
    method: str = "forward",
    executor: str = NPU,
    timeout: float | None = None,
    max_memory: int | None = None,
    data: Sequence[bytes] = (),
) -> list[Array]:
    """Run a program and return its outputs. `executor` names the function that makes executors, as `module:function`.

    Raises Invalid if file or inputs are wrong, ToolFailed if there is no compiler for the shim or the runtime rejects
    the program, crashes or takes longer than `timeout` seconds. A plan beyond `max_memory` bytes is rejected before.
    """
    Method(read(pte, data, max_memory=max_memory), method, max_memory=max_memory).check_inputs(inputs)
    shim.build()
    types = [{"dtype": array.dtype.str, "shape": list(array.shape)} for array in inputs]
    body = {"method": method, "executor": executor, "inputs": types, "max_memory": max_memory}
    reply = worker().request(body, [pte, *(array.tobytes() for array in inputs), *data], timeout=timeout)
    _check(reply)
    results: list[Array] = []
    for part, each in zip(reply.parts, reply.body["outputs"], strict=True):
        flat: Array = np.frombuffer(part, np.dtype(each["dtype"]))
        results.append(flat.reshape(each["shape"]).copy())
    return results


def _check(reply: Reply) -> None:
    error = reply.body.get("error")
    if error is not None:
        fix = Hint(error["fix"], error["cli_fix"])
        if reply.body["code"] == ToolFailed.exit_code:
            raise ToolFailed(error["what"], log=reply.log, where=error["where"], why=error["why"], fix=fix)
        raise Invalid(error["what"], where=error["where"], why=error["why"], fix=fix)
    if reply.failure:
        check_kernels(reply.log, "npu")
        # The runtime's log comes before the error that its caller sees, which is only a number.
        logged = re.findall(r"^\[\w+\.\w+:\d+\] (.+)$", reply.log, re.MULTILINE)
        why = "; ".join([*logged[-1:], reply.failure])
        raise ToolFailed("ExecuTorch's runtime cannot run the program", log=reply.log, why=why)
