"""Tosaic, in a process of its own: the ExecuTorch door or the front door."""

from collections.abc import Callable
from typing import Any

import torch
from clock import Clock
from side import Job, Lowered, Side, Tiny, begin, describe_memory, is_float, judge, measure_door, tiny_inputs

import tosaic
from tosaic import api
from tosaic.ethosu import EthosUBackend, EthosUCompileSpec, EthosUPartitioner
from tosaic.lower import door
from tosaic.quantizer import EthosUQuantizer, get_symmetric_quantization_config
from tosaic.tools import vela

vela.worker().start()
CLOCK = Clock(lambda: vela.worker().cpu_seconds)
#: blob -> .tosa of every delegate made so far
MADE: dict[bytes, bytes] = {}
#: what exir made of the last compile through the front door
PACKED: list[Any] = []


def watch(function: Any, keep: Callable[[Any], None]) -> Any:
    """The function, with every result shown to `keep`."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        keep(result)
        return result

    return watched


# Through the ExecuTorch door `preprocess` calls the first; the front door ends with the second.
door.build_region = watch(door.build_region, lambda made: MADE.update({made.blob: made.tosa}))
api.pack = watch(api.pack, lambda packed: PACKED.__setitem__(slice(None), [packed]))


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


def compile_in_stages(job: Job, model: torch.nn.Module, inputs: Any, samples: Any) -> Lowered:
    """What tosaic.compile does for an nn.Module, with a clock between quantising and compiling."""
    with CLOCK.stage("export"):
        program = api.export(model, inputs)
    quantised = None
    if is_float(inputs):
        with CLOCK.stage("quantise"):
            quantised = api.quantize(program, samples)
    begun: dict[str, float] = {}
    before = vela.worker().cpu_seconds
    with CLOCK.stage("front"):
        started = CLOCK.now()
        mark = lambda name: begun.setdefault(name, CLOCK.now())  # noqa: E731
        made = tosaic.compile(program if quantised is None else quantised, inputs, job.target.name, progress=mark)
        ended = CLOCK.now()
    CLOCK.seconds["vela"] = vela.worker().cpu_seconds - before
    # All of "pack" counts as exir's: our share of it is to build a graph of a few nodes.
    CLOCK.seconds["pack"] = ended - begun["pack"]
    CLOCK.seconds["own"] = begun["pack"] - started - CLOCK.seconds["vela"]
    MADE.update({d.blob: d.tosa for d in made.delegates})
    return Lowered(made.pte, PACKED[-1].exported_program(), quantised)


def measure_front(job: Job) -> dict[str, Any]:
    """All figures of one compile through the front door."""
    start = CLOCK.now()
    compile_in_stages(job, Tiny().eval(), tiny_inputs(), [tiny_inputs()])
    apart = {"warm_up": CLOCK.now() - start}
    model, inputs = job.load()
    samples = job.calibration_inputs()
    vela.CACHE.clear()
    begin(CLOCK)
    lowered = compile_in_stages(job, model, inputs, samples)
    memory = describe_memory()
    # The same in one call, so that no cost hides between the stages.
    model, inputs = job.load()
    vela.CACHE.clear()
    with CLOCK.stage("one_call"):
        tosaic.compile(model, inputs, job.target.name, calibration=samples if is_float(inputs) else None)
    found: dict[str, Any] = {"apart": apart, "seconds": dict(CLOCK.seconds), "memory": memory}
    if job.evaluation:
        found["result"] = judge(SIDE, job, lowered) | describe_codes(job, samples)
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


def measure(job: Job) -> dict[str, Any]:
    return measure_front(job) if job.door == "front" else measure_door(SIDE, job)
