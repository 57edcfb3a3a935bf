"""The engines that run a .pte, by name, and the choice between them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tosaic.board.execution import Execution
from tosaic.board.options import DEFAULTS, BoardOptions
from tosaic.core.errors import Invalid
from tosaic.engines.board import BoardRuntime
from tosaic.engines.executorch import ExecutorchRuntime
from tosaic.engines.interpreter import Call, Method
from tosaic.engines.protocol import Engine, Job
from tosaic.engines.simulator import Simulator
from tosaic.engines.tosa import ReferenceModel
from tosaic.engines.vulkan import VulkanRuntime
from tosaic.engines.vulkan_env import DEVICE_VARIABLE
from tosaic.formats.external import read
from tosaic.formats.npy import Array
from tosaic.formats.pte import Plan
from tosaic.formats.sidecar import Sidecar
from tosaic.npu.weights import WeightCache

ENGINES: dict[str, Engine] = {
    "npu": Simulator(),
    "executorch": ExecutorchRuntime(),
    "vulkan": VulkanRuntime(),
    "tosa": ReferenceModel(),
    "board": BoardRuntime(),
}
#: leaves the choice to the backend of the delegates
AUTO = "auto"
#: for programs without delegates; it reports backends that it does not know
_DEFAULT = "npu"
_VULKAN = "vulkan"
#: computes the delegates of any backend
_UNIVERSAL = "tosa"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outputs, the engine that computed them, and the reason if another engine was preferred.

    `execution` is the run of a board's firmware, `device` the name of the Vulkan device.
    """

    outputs: list[Array]
    engine: str
    why: str
    calls: tuple[Call, ...]
    execution: Execution | None = None
    device: str = ""


def run(
    pte: bytes,
    inputs: Sequence[Array],
    *,
    engine: str = AUTO,
    sidecar: Sidecar | None = None,
    method: str = "forward",
    max_memory: int | None = None,
    data: Sequence[bytes] = (),
    board: BoardOptions = DEFAULTS,
    weights: WeightCache | None = None,
) -> RunResult:
    """Run a method of a .pte file. Engine tosa needs the sidecar unless the delegates are TOSA themselves.

    `data` are the .ptd files of a program that has some of its data outside the .pte.
    `max_memory` limits what the file may take in bytes; the default is 1 GiB more than its size. `board` is for engine
    board, and selects the board and the program that runs its firmware. `weights` keeps what the simulated NPU decodes
    from run to run, outside that limit.
    """
    _check_engine(engine)
    program = read(pte, data, max_memory=max_memory)
    chosen, why = choose(program.find(method), engine)
    result = ENGINES[chosen].run(Job(pte, program, method, inputs, sidecar, max_memory, data, board, weights))
    return RunResult(result.outputs, chosen, why, tuple(result.calls), result.execution, result.device)


def load(
    pte: bytes,
    *,
    engine: str = AUTO,
    sidecar: Sidecar | None = None,
    method: str = "forward",
    max_memory: int | None = None,
    data: Sequence[bytes] = (),
    weights: WeightCache | None = None,
) -> Method:
    """Load a method of a .pte file for several runs, in which its memory persists; see `run`."""
    _check_engine(engine)
    program = read(pte, data, max_memory=max_memory)
    chosen, _ = choose(program.find(method), engine)
    return ENGINES[chosen].load(Job(pte, program, method, (), sidecar, max_memory, data, weights=weights))


def _check_engine(engine: str) -> None:
    if engine not in (AUTO, *ENGINES):
        raise Invalid(f"unknown engine `{engine}`", fix=f"use one of {', '.join((AUTO, *ENGINES))}")


def choose(plan: Plan, engine: str) -> tuple[str, str]:
    """Choose the engine for a program; return the reason too if it is not the first choice."""
    if engine != AUTO:
        return engine, ""
    meant = find_engines(plan) - {""}
    chosen = meant.pop() if len(meant) == 1 else _UNIVERSAL if meant else _DEFAULT
    obstacle = ENGINES[chosen].find_obstacle()
    return (_UNIVERSAL, f"{ENGINES[chosen].title} is not usable: {obstacle}") if obstacle else (chosen, "")


def use_device(plan: Plan, engine: str, device: str) -> str:
    """Choose the Vulkan device of this process by a part of its name; return the engine for the program."""
    if engine not in (AUTO, _VULKAN) or _VULKAN not in find_engines(plan):
        raise Invalid(
            f"the device `{device}` is for engine {_VULKAN}",
            why=f"engine is `{engine}`" if engine not in (AUTO, _VULKAN) else "the program has no VGF delegate",
            fix="leave the device out, or compile with `-t vgf`",
        )
    # The worker reads it when it starts.
    os.environ[DEVICE_VARIABLE] = device
    return _VULKAN


def find_engines(plan: Plan) -> set[str]:
    """Find the engines that the delegates of a program are for; an unknown backend gives an empty name."""
    # Backends use ExecuTorch's compile specs, and those import torch.
    from tosaic.backends.registry import BACKENDS

    return {BACKENDS[d.id].engine if d.id in BACKENDS else "" for d in plan.delegates}
