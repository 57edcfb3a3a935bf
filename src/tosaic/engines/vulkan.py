"""The engine `vulkan`: a .pte with VGF delegates, run by ExecuTorch's runtime in a worker process.

The user has nothing to set up: that process finds the driver and orders the layers. A driver crash raises ToolFailed
here, and the next run starts a new process.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid, ToolFailed, TosaicError
from tosaic.engines import vulkan_env
from tosaic.engines.interpreter import Executor, list_calls, take_plan
from tosaic.engines.missing_kernel import check_kernels
from tosaic.engines.protocol import Engine, Job, Result
from tosaic.engines.vulkan_env import INSTALL, NoVulkan
from tosaic.formats import pte as pte_file
from tosaic.formats import vgf as reader
from tosaic.formats.sidecar import Sidecar
from tosaic.formats.tensors import TensorType
from tosaic.ir.graph import Array
from tosaic.tools.worker import Reply, Worker

__all__ = ["INSTALL", "NoVulkan", "Probe", "Vulkan", "VulkanRuntime", "probe", "require", "run", "worker"]

BACKEND = "VgfBackend"
#: Placeholder that the runtime prints instead of an error message.
_CHATTER = ("Failed to find extension",)
_IS_TROUBLE = re.compile(r"error|fail|missing|invalid|not |unsupported", re.IGNORECASE)
#: Seconds that the probe may take; the first start of a driver on a loaded machine is slow.
PROBE_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a .vgf file runs here, and on which device.

    `driver` is `emulated`, `native` or `kept` (the user's own settings).
    """

    ok: bool
    reason: str = ""
    fix: str = ""
    driver: str = ""
    device: str = ""


@functools.cache
def worker() -> Worker:
    """Return the only Vulkan worker of this Python process."""
    return Worker("tosaic.engines.vulkan_child", "the Vulkan runtime")


@functools.cache
def probe() -> Probe:
    """Run a file of one operator and compare its result: a driver may claim to be usable and then crash.

    The result is cached for this process; `probe.cache_clear()` discards it.
    """
    pte = importlib.resources.files("tosaic.engines").joinpath("probe.pte").read_bytes()
    x = np.arange(-8, 8, dtype=np.float32).reshape(1, 16)
    try:
        reply = _request(pte, "forward", [x], PROBE_SECONDS, [(0, 1)])
        (result,) = _read_outputs(reply)
    except TosaicError as error:
        return Probe(ok=False, reason=error.why or error.what, fix=error.fix or INSTALL)
    if not np.array_equal(result, x + x):
        return Probe(False, "the driver computes x + x wrongly", f"use another driver: {INSTALL}")
    return Probe(ok=True, driver=reply.body["driver"], device=reply.body["device"])


@functools.cache
def find_wrong_operator() -> str:
    """Find an operator that the device computes wrongly, or not at all, although the probe succeeds; empty if none.

    Tosaic's own files do not have this one: see `Target.scatters_any_stride`.
    """
    pte = importlib.resources.files("tosaic.engines").joinpath("scatter.pte").read_bytes()
    x, kernel = make_scatter()
    name = "transposed convolutions with strides that are not powers of 2"
    try:
        (result,) = _read_outputs(_request(pte, "forward", [x], PROBE_SECONDS, [(0, 1, 2, 3)]))
    except TosaicError:
        return name
    wanted = np.zeros((1, 1, 3 * x.shape[2] + 2, 3 * x.shape[3] + 2), np.float32)
    for row, column in np.ndindex(x.shape[2:]):
        wanted[0, 0, 3 * row : 3 * row + 5, 3 * column : 3 * column + 5] += x[0, 0, row, column] * kernel
    return "" if np.array_equal(result, wanted) else name


def make_scatter() -> tuple[Array, Array]:
    """Make the input and the kernel of a transposed convolution with stride 3, of small whole numbers."""
    return np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3), np.arange(25, dtype=np.float32).reshape(5, 5)


def require() -> None:
    """Raise NoVulkan if no .vgf file can run."""
    found = probe()
    if not found.ok:
        raise NoVulkan(found.reason, found.fix)


class Vulkan:
    """The executor for `VgfBackend`: a delegate runs as a separate program. bfloat16 is passed as its bits."""

    def __init__(self) -> None:
        self._programs: dict[bytes, bytes] = {}

    def __call__(
        self, blob: bytes, specs: Sequence[tuple[str, bytes]], inputs: list[Array], outputs: list[TensorType]
    ) -> list[Array]:
        from tosaic.engines.vgf_pack import pack

        if blob not in self._programs:
            self._programs[blob] = pack(blob)
        results = run(self._programs[blob], inputs)
        bits = [a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a for a in results]
        return [a.reshape(output.shape) for a, output in zip(bits, outputs, strict=True)]


class VulkanRuntime(Engine):
    """A Vulkan device."""

    title = "Vulkan"

    def find_obstacle(self) -> str:
        return probe().reason

    def require(self) -> None:
        require()

    def run(self, job: Job) -> Result:
        reply = _run(job.pte, job.inputs, job.method, None, job.max_memory)
        return Result(_read_outputs(reply), list_calls(job.plan), device=reply.body["device"])

    def open(self, plan: pte_file.Plan, sidecar: Sidecar | None, budget: Budget) -> Executor:
        require()
        return Vulkan()


def run(
    pte: bytes,
    inputs: Sequence[Array],
    *,
    method: str = "forward",
    timeout: float | None = None,
    max_memory: int | None = None,
) -> list[Array]:
    """Run a .pte file whose delegates are VGF and return its outputs; bfloat16 arrays use `ml_dtypes.bfloat16`.

    Raises Invalid for a damaged file, wrong inputs or a plan beyond `max_memory` bytes, NoVulkan if there is no usable
    device, ToolFailed for a crash.
    """
    return _read_outputs(_run(pte, inputs, method, timeout, max_memory))


def _run(pte: bytes, inputs: Sequence[Array], method: str, timeout: float | None, max_memory: int | None) -> Reply:
    program = pte_file.read(pte, max_memory=max_memory)
    plan = program.find(method)
    budget = take_plan(program, plan, max_memory)
    others = sorted({d.id for d in plan.delegates} - {BACKEND})
    if others:
        raise Invalid(f"the program has delegates for {', '.join(others)}", fix="run it with another engine")
    for delegate in plan.delegates:
        for resource in reader.read(delegate.blob, budget).resources:
            budget.take(resource.nbytes, "a tensor of the .vgf file")
    orders = [
        value.dim_order for value in map(plan.values.__getitem__, plan.inputs) if isinstance(value, pte_file.Tensor)
    ]
    return _request(pte, method, _check_inputs(plan, inputs), timeout, orders)


def _request(
    pte: bytes, method: str, inputs: Sequence[Array], timeout: float | None, orders: Sequence[Sequence[int]]
) -> Reply:
    """Ask the worker to run a program; `orders` gives the memory order of each input's dimensions."""
    parts = vulkan_env.find()
    if vulkan_env.mode() != "keep" and not parts.others:
        vulkan_env.require_emulation(parts)
    types = [
        {"dtype": array.dtype.name, "shape": list(array.shape), "order": list(order)}
        for array, order in zip(inputs, orders, strict=True)
    ]
    body = {"method": method, "inputs": types}
    reply = worker().request(body, (pte, *(np.ascontiguousarray(a).tobytes() for a in inputs)), timeout=timeout)
    if reply.body.get("missing"):
        # A process that has probed once keeps a half-open device: the next request gets a new one.
        worker().close()
        raise _explain_missing(reply)
    if reply.failure:
        worker().close()
        check_kernels(reply.log, "tosa")
        why = _find_reason(reply.log) or reply.failure
        raise ToolFailed("the Vulkan runtime rejected the program", log=reply.log, why=why)
    return reply


def _explain_missing(reply: Reply) -> NoVulkan:
    """Explain why ExecuTorch reports that its VGF backend is not available."""
    why = _find_reason(reply.log)
    if reply.body.get("trouble"):
        chosen = vulkan_env.chosen_by()
        fix = reply.body.get("fix") or (f"unset `{chosen}`" if chosen else INSTALL)
        return NoVulkan(reply.body["trouble"], fix, reply.log)
    if "VK_ARM_tensors" in reply.log:
        fix = "unset TOSAIC_VULKAN: Tosaic then puts the Graph layer above the Tensor layer"
        return NoVulkan(f"the emulation layers are stacked in the wrong order ({why})", fix, reply.log)
    if why:
        return NoVulkan(f"no device could be opened: {why}", INSTALL, reply.log)
    return NoVulkan("the installed ExecuTorch has no VGF backend", "pip install 'executorch==1.4.1'", reply.log)


def _find_reason(log: str) -> str:
    """Find the first line with a complaint of the layers, the loader or the runtime."""
    for line in log.splitlines():
        match = re.search(r"(?:\[\w+\.cpp:\d+\]|\[Layer\]\[Error\]|ERROR:?)\s*(.+)", line)
        if match and (not _IS_TROUBLE.search(line) or match[1].startswith(_CHATTER)):
            continue
        if match:
            return match[1].strip()
    return ""


def _check_inputs(plan: pte_file.Plan, inputs: Sequence[Array]) -> list[Array]:
    if len(inputs) != len(plan.inputs):
        raise Invalid(f"{len(inputs)} inputs were given, the program takes {len(plan.inputs)}")
    arrays: list[Array] = []
    for i, (index, given) in enumerate(zip(plan.inputs, inputs, strict=True)):
        wanted = plan.values[index]
        if not isinstance(wanted, pte_file.Tensor):
            raise Invalid(f"input {i} of the program is not a tensor", fix="compile a model that takes tensors")
        raw = wanted.dtype == "bfloat16" and given.dtype == np.uint16
        array: Array = given.view(ml_dtypes.bfloat16) if raw else given
        if (array.dtype.name, array.shape) != (wanted.dtype, wanted.shape):
            takes = f"{wanted.dtype}{list(wanted.shape)}"
            raise Invalid(
                f"input {i} is {array.dtype.name}{list(array.shape)}, the program takes {takes}",
                fix=f"convert it to {takes}",
            )
        arrays.append(array)
    return arrays


def _read_outputs(reply: Reply) -> list[Array]:
    arrays: list[Array] = []
    for kind, data in zip(reply.body["outputs"], reply.parts, strict=True):
        dtype = np.dtype(ml_dtypes.bfloat16 if kind["dtype"] == "bfloat16" else kind["dtype"])
        arrays.append(np.frombuffer(bytearray(data), dtype).reshape(kind["shape"]))
    return arrays
