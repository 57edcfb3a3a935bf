"""The peer, executorch.backends.arm, in a process of its own. Nothing here is more than a user's script would call."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clock import Clock, Memory
from ethosu.vela import vela
from executorch.backends.arm.ethosu import EthosUBackend, EthosUCompileSpec, EthosUPartitioner
from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config
from side import Job, Side, measure_door

CLOCK = Clock()
VELA = Clock()
#: .tosa of the delegate that is being made, then of all, by blob
PENDING: list[bytes] = []
MADE: dict[bytes, bytes] = {}


def watch_vela(run: Any) -> Any:
    """Vela's entry point, with its time taken and its input kept: dumping files would put a path into the .pte."""
    timed = VELA.wrap(run, "vela")

    def watched(argv: Sequence[str]) -> Any:
        PENDING.extend(Path(a).read_bytes() for a in argv if a.endswith(".tosa"))
        return timed(argv)

    return watched


def watch_preprocess(preprocess: Any) -> Any:
    """The backend's entry point, with the .tosa of every blob kept."""

    def watched(program: Any, specs: Any) -> Any:
        PENDING.clear()
        done = preprocess(program, specs)
        (MADE[done.processed_bytes],) = PENDING
        return done

    return watched


vela.main = watch_vela(vela.main)
EthosUBackend.preprocess = staticmethod(watch_preprocess(EthosUBackend.preprocess))


def make_spec(job: Job) -> EthosUCompileSpec:
    return EthosUCompileSpec(job.target.name, job.target.system_config, job.target.memory_mode)


def make_quantizer(spec: EthosUCompileSpec) -> EthosUQuantizer:
    quantizer = EthosUQuantizer(spec)
    quantizer.set_global(get_symmetric_quantization_config())
    return quantizer


SIDE = Side(
    name="peer",
    clock=CLOCK,
    memory=Memory(),
    make_spec=make_spec,
    make_quantizer=make_quantizer,
    make_partitioner=EthosUPartitioner,
    backend=EthosUBackend,
    vela=lambda: VELA.seconds.get("vela", 0.0),
    tosa=MADE,
    module_options={"check_guards": False},
)


def measure(job: Job) -> dict[str, Any]:
    return measure_door(SIDE, job)
