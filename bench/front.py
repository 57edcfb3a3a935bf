"""Tosaic's high-level API, stage by stage; in the process of `side_ours`."""

from __future__ import annotations

from typing import Any

import torch
from side import Job, Lowered, Side, Tiny, begin, is_float, judge, tiny_inputs

import tosaic
from tosaic.api import build
from tosaic.api.prepare import quantize
from tosaic.driver.exported import export
from tosaic.tools import vela

#: what exir made of the last compile
PACKED: list[Any] = []


def keep(pack: Any) -> Any:
    """The last step of a compile, with what it made kept."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        PACKED[:] = [pack(*args, **kwargs)]
        return PACKED[-1]

    return watched


build.pack = keep(build.pack)


def compile_in_stages(side: Side, job: Job, model: torch.nn.Module, inputs: Any, samples: Any) -> Lowered:
    """What tosaic.compile does for an nn.Module, with a clock between quantizing and compiling."""
    with side.clock.stage("export"):
        program = export(model, inputs)
    quantized = None
    if is_float(inputs):
        with side.clock.stage("quantize"):
            quantized = quantize(program, samples)
    begun: dict[str, float] = {}
    before = vela.worker().cpu_seconds
    with side.clock.stage("front"):
        started = side.clock.now()
        mark = lambda name: begun.setdefault(name, side.clock.now())  # noqa: E731
        made = tosaic.compile(program if quantized is None else quantized, inputs, job.target.name, progress=mark)
        ended = side.clock.now()
    side.clock.seconds["vela"] = vela.worker().cpu_seconds - before
    # All of "pack" counts as exir's: our share of it is to build a graph of a few nodes.
    side.clock.seconds["pack"] = ended - begun["pack"]
    side.clock.seconds["own"] = begun["pack"] - started - side.clock.seconds["vela"]
    side.tosa.update({d.blob: d.tosa for d in made.delegates})
    return Lowered(made.pte, PACKED[-1].exported_program(), quantized)


def measure(side: Side, job: Job) -> dict[str, Any]:
    """All figures of one compile through the high-level API."""
    start = side.clock.now()
    compile_in_stages(side, job, Tiny().eval(), tiny_inputs(), [tiny_inputs()])
    apart = {"warm_up": side.clock.now() - start}
    model, inputs = job.load()
    samples = job.calibration_inputs()
    vela.CACHE.clear()
    begin(side)
    lowered = compile_in_stages(side, job, model, inputs, samples)
    memory = side.memory.cut()
    # The same in one call, so that no cost hides between the stages.
    model, inputs = job.load()
    vela.CACHE.clear()
    with side.clock.stage("one_call"):
        tosaic.compile(model, inputs, job.target.name, calibration=samples if is_float(inputs) else None)
    found: dict[str, Any] = {"apart": apart, "seconds": dict(side.clock.seconds), "memory": memory}
    if job.evaluation:
        found["result"] = judge(side, job, lowered) | describe_codes(job, samples)
    return found


def describe_codes(job: Job, samples: Any) -> dict[str, Any]:
    """The same model with codes and channels last on its borders, as a sensor driver or a TFLite file has them."""
    model, inputs = job.load()
    if not is_float(inputs):
        return {}
    import evaluate

    made = tosaic.compile(model, inputs, job.target.name, calibration=samples, io="int8", layout="nhwc")
    file = evaluate.describe_file(made.pte)
    npu = evaluate.describe_npu([(d.tosa, d.blob) for d in made.delegates], job.target)
    return {"codes": {"cpu_ops": sum(file["cpu_ops"].values()), "pte_bytes": file["pte_bytes"], **npu}}
