"""Runs a command stream of the NPU on the memory of a board, and says what its status register then has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag

from tosaic.board.memory import Memory
from tosaic.core.errors import Invalid
from tosaic.core.targets import find
from tosaic.npu.accelerator import ACCELERATORS, Accelerator
from tosaic.npu.errors import DamagedWeights, Fault, Malformed, TooMuch, UnknownField
from tosaic.npu.machine import execute
from tosaic.npu.memory import INTERNAL, make_region
from tosaic.npu.memory import Memory as NpuMemory
from tosaic.npu.perf import Estimate, estimate
from tosaic.npu.stream import Stream
from tosaic.npu.system import place_regions
from tosaic.npu.weights import WeightCache
from tosaic.tools.vela_options import VelaOptions


class Status(IntFlag):
    """Bits of the status register."""

    RUNNING = 1 << 0
    IRQ_RAISED = 1 << 1
    BUS_ERROR = 1 << 2
    RESETTING = 1 << 3
    PARSE_ERROR = 1 << 4
    END_REACHED = 1 << 5
    PMU_IRQ_RAISED = 1 << 6
    #: on U85 a failed branch
    WEIGHT_FAULT = 1 << 7


FAULTS = Status.BUS_ERROR | Status.PARSE_ERROR | Status.WEIGHT_FAULT


@dataclass(frozen=True, slots=True)
class Queue:
    """The commands of a job, and the addresses of its regions."""

    base: int
    size: int
    regions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: status bits, how many bytes of commands were read, and the reason of a fault."""

    status: Status
    read: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Npu:
    """A simulated NPU at the memory of a board. It keeps decoded weights for the next job."""

    name: str
    memory: Memory
    _cache: WeightCache = field(default_factory=WeightCache)

    @property
    def accelerator(self) -> Accelerator:
        return ACCELERATORS[self.name]

    def run(self, queue: Queue) -> Outcome:
        """Run a job to its end, or to a fault."""
        stream = self._open(queue)
        if stream is None:
            return Outcome(Status.BUS_ERROR, 0, f"the NPU has no access to the commands at 0x{queue.base:08x}")
        regions = {
            number: region
            for number, address in queue.regions.items()
            if (region := self.memory.open_region(number, address)) is not None
        }
        regions[INTERNAL] = make_region("the internal RAM", self.accelerator.ram_bytes)
        try:
            read = execute(stream, NpuMemory(regions), self._cache)
        except TooMuch as error:
            # Hardware would go on for hours.
            return Outcome(Status.RUNNING, 0, _explain(error))
        except Fault as error:
            return Outcome(_classify(error), error.offset or 0, _explain(error))
        if read < queue.size:
            return Outcome(Status(0), read, f"the commands stop after {read} of {queue.size} bytes")
        return Outcome(Status.END_REACHED, read)

    def estimate(self, queue: Queue, ports: Mapping[int, str]) -> Estimate | None:
        """Estimate the cycles and the traffic of a job from its commands, and the port of each region's memory."""
        stream = self._open(queue)
        if stream is None:
            return None
        target = find(self.name)
        options = VelaOptions(self.name, target.system_config, target.memory_mode)
        try:
            # Regions that the job does not set count as scratch.
            return estimate(stream, place_regions(options, {1: "axi0", **ports}))
        except Invalid:
            return None

    def find_ports(self, queue: Queue) -> dict[int, str]:
        """Find the port of each region's memory."""
        blocks = {number: self.memory.find(address) for number, address in queue.regions.items()}
        return {number: block.port for number, block in blocks.items() if block is not None and block.port}

    def _open(self, queue: Queue) -> Stream | None:
        block = self.memory.find(queue.base)
        data = self.memory.read(queue.base, queue.size)
        if block is None or not block.port or data is None or queue.size % 4:
            return None
        return Stream(self.accelerator, data.data.cast("I"))


def _classify(error: Fault) -> Status:
    match error:
        case DamagedWeights():
            return Status.WEIGHT_FAULT
        case Malformed() | UnknownField():
            return Status.PARSE_ERROR
        case _:
            return Status.BUS_ERROR


def _explain(error: Fault) -> str:
    return ", ".join(filter(None, (f"{error.where}: {error.what}" if error.where else error.what, error.why)))
