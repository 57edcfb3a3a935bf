"""Tosaic, in a process of its own: the classes that its users pass to ExecuTorch."""

from collections.abc import Callable
from typing import Any

from clock import Clock, Memory
from side import Job, Side, measure_door

from tosaic.driver import exir
from tosaic.ethosu import EthosUBackend, EthosUCompileSpec, EthosUPartitioner
from tosaic.quantizer import EthosUQuantizer, get_symmetric_quantization_config
from tosaic.tools import vela

vela.worker().start()
CLOCK, MEMORY = Clock(lambda: vela.worker().cpu_seconds), Memory()
#: blob -> .tosa of every delegate made so far
MADE: dict[bytes, bytes] = {}


def keep(build: Callable[..., Any]) -> Callable[..., Any]:
    """The function that makes a delegate, with the .tosa of every blob kept."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        made = build(*args, **kwargs)
        MADE[made.blob] = made.tosa
        return made

    return watched


# `preprocess` of the ExecuTorch API calls it.
exir.build_partition = keep(exir.build_partition)
vela.compile = MEMORY.wrap(vela.compile)


def make_spec(job: Job) -> EthosUCompileSpec:
    return EthosUCompileSpec(job.target.name)


def make_quantizer(spec: EthosUCompileSpec) -> EthosUQuantizer:
    quantizer = EthosUQuantizer(spec)
    quantizer.set_global(get_symmetric_quantization_config())
    return quantizer


SIDE = Side(
    name="ours",
    clock=CLOCK,
    memory=MEMORY,
    make_spec=make_spec,
    make_quantizer=make_quantizer,
    make_partitioner=EthosUPartitioner,
    backend=EthosUBackend,
    vela=lambda: vela.worker().cpu_seconds,
    tosa=MADE,
    module_options={},
)


def measure(job: Job) -> dict[str, Any]:
    if job.door == "executorch":
        return measure_door(SIDE, job)
    # The modules of the high-level API are not part of what the other API needs.
    import front

    return front.measure(SIDE, job)
