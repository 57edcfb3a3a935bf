"""Tosaic, in a process of its own: the ExecuTorch door or the front door."""

from typing import Any

import torch
from clock import Clock
from side import Job, Side, Tiny, begin, describe_memory, is_float, measure_door, tiny_inputs

import tosaic
from tosaic import api
from tosaic.ethosu import EthosUBackend, EthosUCompileSpec, EthosUPartitioner
from tosaic.lower import door
from tosaic.quantizer import EthosUQuantizer, get_symmetric_quantization_config
from tosaic.tools import vela

vela.worker().start()
CLOCK = Clock(lambda: vela.worker().cpu_seconds)
#: blob -> .tosa of every delegate that the ExecuTorch door has made
MADE: dict[bytes, bytes] = {}


def watch(build_region: Any) -> Any:
    """What `preprocess` calls for every delegate, with its result kept."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        made = build_region(*args, **kwargs)
        MADE[made.blob] = made.tosa
        return made

    return watched


door.build_region = watch(door.build_region)


def make_spec(job: Job) -> EthosUCompileSpec:
    return EthosUCompileSpec(job.target.name)


def make_quantizer(spec: EthosUCompileSpec) -> EthosUQuantizer:
    quantizer = EthosUQuantizer(spec)
    quantizer.set_global(get_symmetric_quantization_config())
    return quantizer


SIDE = Side(
    name="ours",
    clock=CLOCK,
    make_spec=make_spec,
    make_quantizer=make_quantizer,
    make_partitioner=EthosUPartitioner,
    backend=EthosUBackend,
    vela=lambda: vela.worker().cpu_seconds,
    tosa=MADE,
    module_options={},
)


def compile_in_stages(job: Job, model: torch.nn.Module, inputs: Any, samples: Any) -> tosaic.Program:
    """What tosaic.compile does for an nn.Module, with a clock between quantising and compiling."""
    with CLOCK.stage("export"):
        module = program = api.export(model, inputs)
    if is_float(inputs):
        with CLOCK.stage("quantise"):
            module = api.quantize(program, samples)
    begun: dict[str, float] = {}
    before = vela.worker().cpu_seconds
    with CLOCK.stage("front"):
        started = CLOCK.now()
        made = tosaic.compile(
            module, inputs, job.target.name, progress=lambda name: begun.setdefault(name, CLOCK.now())
        )
        ended = CLOCK.now()
    CLOCK.seconds["vela"] = vela.worker().cpu_seconds - before
    # All of "pack" counts as exir's: our share of it is to build a graph of a few nodes.
    CLOCK.seconds["pack"] = ended - begun["pack"]
    CLOCK.seconds["own"] = begun["pack"] - started - CLOCK.seconds["vela"]
    return made


def measure_front(job: Job) -> dict[str, Any]:
    """All figures of one compile through the front door."""
    start = CLOCK.now()
    compile_in_stages(job, Tiny().eval(), tiny_inputs(), [tiny_inputs()])
    apart = {"warm_up": CLOCK.now() - start}
    model, inputs = job.load()
    samples = job.calibration_inputs()
    vela.CACHE.clear()
    begin(CLOCK)
    made = compile_in_stages(job, model, inputs, samples)
    memory = describe_memory()
    # The same in one call, so that no cost hides between the stages.
    model, inputs = job.load()
    vela.CACHE.clear()
    with CLOCK.stage("one_call"):
        tosaic.compile(model, inputs, job.target.name, calibration=samples if is_float(inputs) else None)
    found: dict[str, Any] = {"apart": apart, "seconds": dict(CLOCK.seconds), "memory": memory}
    if job.evaluation:
        found["result"] = _evaluate(job, made)
    return found


def _evaluate(job: Job, made: tosaic.Program) -> dict[str, Any]:
    import evaluate

    exact, inputs = job.load()[0], job.evaluation_inputs()
    result = evaluate.describe_file(made.pte)
    result["npu"] = evaluate.describe_npu([(d.tosa, d.blob) for d in made.delegates], job.target)
    run = lambda one: [torch.from_numpy(a) for a in made.run(*one, engine="tosa")]  # noqa: E731
    result["sqnr"] = evaluate.measure_sqnr(exact, run, inputs)
    return result


def measure(job: Job) -> dict[str, Any]:
    return measure_front(job) if job.door == "front" else measure_door(SIDE, job)
