"""The ExecuTorch API as a user's script uses it, stage by stage, the same for both sides.

A side's own file brings its classes. It runs in a process of its own, because exir finds a backend by its class name.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import executorch.kernels.quantized  # noqa: F401  (registers the out variants that exir looks for)
import models
import torch
from clock import Clock, Memory
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge_transform_and_lower
from torch.export import ExportedProgram
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from tosaic.core.heap import give_back
from tosaic.core.targets import Target

torch.set_num_threads(1)
warnings.simplefilter("ignore")

#: Calibration and evaluation inputs come from one generator, with seeds apart.
CALIBRATION_SEED, EVALUATION_SEED = 1, 1000


@dataclass(frozen=True)
class Job:
    """What one child measures. No evaluation inputs: only times and memory."""

    model: str
    target: Target
    door: str
    calibration: int
    evaluation: int

    def load(self) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        return models.load(self.model)

    def calibration_inputs(self) -> list[tuple[torch.Tensor, ...]]:
        return models.inputs(self.model, self.calibration, CALIBRATION_SEED)

    def evaluation_inputs(self) -> list[tuple[torch.Tensor, ...]]:
        return models.inputs(self.model, self.evaluation, EVALUATION_SEED)


@dataclass(frozen=True)
class Side:
    """The classes of one side, and where it keeps what has to be measured."""

    name: str
    clock: Clock
    memory: Memory
    make_spec: Callable[[Job], Any]
    make_quantizer: Callable[[Any], Any]
    make_partitioner: Callable[[Any], Any]
    backend: Any
    #: the seconds of Vela in all so far
    vela: Callable[[], float]
    #: blob -> .tosa of every delegate made so far
    tosa: dict[bytes, bytes]
    #: arguments that `ExportedProgram.module` needs before prepare_pt2e
    module_options: Mapping[str, Any]


@dataclass(frozen=True)
class Lowered:
    """What a door gives: the file, exir's finished program, and the quantized module before that."""

    pte: bytes
    program: ExportedProgram
    quantized: torch.nn.Module | None


class Tiny(torch.nn.Module):
    """Goes through a whole door first, so that whatever is imported late is imported before the clock runs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


def tiny_inputs() -> tuple[torch.Tensor, ...]:
    return (torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8),)


def is_float(inputs: tuple[torch.Tensor, ...]) -> bool:
    return any(x.is_floating_point() for x in inputs)


def go_through_door(
    side: Side,
    job: Job,
    model: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    samples: list[tuple[torch.Tensor, ...]],
) -> Lowered:
    """nn.Module to .pte by export, PT2E and to_edge_transform_and_lower. An integer model is not quantized."""
    clock = side.clock
    spec = side.make_spec(job)
    quantized = None
    with clock.stage("export"):
        program = torch.export.export(model, inputs)
    if is_float(inputs):
        with clock.stage("quantize"), torch.no_grad():
            with clock.stage("prepare"):
                quantizer = side.make_quantizer(spec)
                prepared = prepare_pt2e(program.module(**side.module_options), quantizer)
            with clock.stage("calibrate"):
                for sample in samples:
                    prepared(*sample)
            with clock.stage("convert"):
                quantized = convert_pt2e(prepared)
        with clock.stage("re_export"):
            program = torch.export.export(quantized, inputs)
    partitioner = side.make_partitioner(spec)
    for name in ("ops_to_not_decompose", "partition"):
        setattr(partitioner, name, clock.wrap(getattr(partitioner, name), "own"))
    before = side.vela()
    with clock.stage("lower"):
        config = EdgeCompileConfig(_check_ir_validity=False)
        edge = to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=config)
    clock.seconds["vela"] = side.vela() - before
    clock.seconds["own"] -= clock.seconds["vela"]
    with clock.stage("to_executorch"):
        manager = edge.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=False))
        data = bytes(manager.buffer)
    return Lowered(data, manager.exported_program(), quantized)


def measure_door(side: Side, job: Job) -> dict[str, Any]:
    """All figures of one compile through the ExecuTorch API."""
    side.backend.preprocess = staticmethod(side.clock.wrap(side.backend.preprocess, "own"))
    start = side.clock.now()
    go_through_door(side, job, Tiny().eval(), tiny_inputs(), [tiny_inputs()])
    apart = {"warm_up": side.clock.now() - start}
    model, inputs = job.load()
    samples = job.calibration_inputs()
    begin(side)
    lowered = go_through_door(side, job, model, inputs, samples)
    found = {"apart": apart, "seconds": dict(side.clock.seconds), "memory": side.memory.cut()}
    if job.evaluation:
        found["result"] = judge(side, job, lowered)
    return found


def judge(side: Side, job: Job, lowered: Lowered) -> dict[str, Any]:
    """All that is not a time: what is in the file, NPU figures, and how close the numbers are to float."""
    # Imported late: what only the evaluation needs must not count as memory of the compile.
    import evaluate

    # prepare_pt2e has folded the BatchNorms of the first one.
    exact, inputs = job.load()[0], job.evaluation_inputs()
    run = evaluate.ReferenceRun(lowered.program, side.tosa)
    result = evaluate.describe_file(lowered.pte)
    result["npu"] = evaluate.describe_npu(evaluate.list_delegates(lowered.program, side.tosa), job.target)
    result["sqnr"] = evaluate.measure_sqnr(exact, run.call, inputs)
    quantized = lowered.quantized
    if quantized is not None:
        result["sqnr_torch"] = evaluate.measure_sqnr(exact, lambda one: quantized(*one), inputs)
    return result


def begin(side: Side) -> None:
    """From here on times and memory count."""
    gc.collect()
    give_back()
    side.clock.seconds.clear()
    side.memory.begin()
