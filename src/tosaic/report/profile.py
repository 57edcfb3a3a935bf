"""The layer profile of a program: where its cycles, its bytes and its memory traffic come from.

A layer is a node of the model: what torch calls one operator, with everything that the NPU computes together with it.
The terminal, JSON, CSV, the trace, the ETDump, the HTML report, `tosaic diff` and `tosaic fit` read one `Profile`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tosaic.ir.graph import Value
from tosaic.npu.perf import Traffic
from tosaic.report.schedule import Buffer

SCHEMA = "tosaic-profile/1"


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which one thing runs without interruption, in cycles since the program began."""

    name: str
    start: int
    cycles: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; layers are in the order in which their results are complete.

    device       `NPU` or `CPU`, or the name of another backend
    delegate     the index of its delegate; None on the CPU
    node, op     the torch node and its operator; without a sidecar, the operation of the NPU
    module       the path of its nn.Module
    where        file and line of the model
    fused        other operators that are computed with it, without a step of their own
    tosa         the TOSA operators it became
    inputs       types of the tensors that it reads, without constants
    outputs      types of the tensors that it writes
    macs         multiplications; None where they are not known
    cycles       its part of the program's cycles: they add up. None where they are not known
    limits       those cycles by bottleneck; `DMA` are the cycles in which the NPU waits for its data
    dma_cycles   cycles of its DMAs, most of which run while other layers compute
    utilization  the share of the possible multiplications that is used in its cycles
    weight_bytes      encoded weights and scales in the program
    activation_bytes  its inputs and outputs
    traffic      bytes read and written, by memory
    reads        the indices of the layers whose results it reads
    commands     operations and DMAs in the command stream
    offset       where its first operation is in the command stream; None without one
    times        the times of the memory plan at which it runs
    reason, fix  why it is on the CPU, and what can be done
    """

    index: int
    device: str
    delegate: int | None
    op: str
    node: str = ""
    module: str = ""
    where: str = ""
    fused: tuple[str, ...] = ()
    tosa: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    macs: int | None = None
    cycles: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    dma_cycles: int = 0
    utilization: float = 0.0
    weight_bytes: int = 0
    activation_bytes: int = 0
    traffic: Mapping[str, Traffic] = field(default_factory=dict[str, Traffic])
    reads: tuple[int, ...] = ()
    commands: int = 0
    offset: int | None = None
    spans: tuple[Span, ...] = ()
    transfers: tuple[Span, ...] = ()
    times: tuple[int, ...] = ()
    reason: str = ""
    fix: str = ""

    @property
    def limit(self) -> str:
        """The bottleneck of most of its cycles."""
        return max(self.limits, key=lambda name: self.limits[name], default="")

    @property
    def name(self) -> str:
        """The path of its module, or its node where the model itself calls the operator."""
        return self.module or self.node or self.op

    @property
    def short_op(self) -> str:
        """The operator without namespace and overload."""
        return shorten_op(self.op)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "limit": self.limit}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The tensors of one delegate in memory over time.

    layers   the layer that runs at each time
    makers   the layer that computes each value
    """

    delegate: int
    buffers: tuple[Buffer, ...]
    layers: Mapping[int, int]
    makers: Mapping[Value, int]

    def find_layer(self, buffer: Buffer) -> int | None:
        """Find the layer that computes a tensor, or that weights on their way are for; None for an input."""
        if buffer.holds_weights:
            times = [time for time in self.layers if buffer.first <= time <= buffer.last]
            return self.layers[max(times)] if times else None
        if buffer.value is None or (buffer.value.op is not None and buffer.value not in self.makers):
            return self.layers.get(buffer.first)
        return self.makers.get(buffer.value)

    def list_memories(self) -> list[str]:
        return list(dict.fromkeys(buffer.memory for buffer in self.buffers))

    def measure(self, memory: str) -> list[tuple[int, int]]:
        """Return the bytes in use in a memory at each time; a tensor that replaces another in place counts once."""
        buffers = sorted((one for one in self.buffers if one.memory == memory), key=lambda one: one.start)
        times = sorted({time for one in buffers for time in (one.first, one.last + 1)})
        return [(time, _add_up(one for one in buffers if one.first <= time <= one.last)) for time in times]


def _add_up(buffers: Iterable[Buffer]) -> int:
    """Add up the bytes of buffers, which are in the order of their addresses and may overlap."""
    total = end = 0
    for buffer in buffers:
        total += max(0, buffer.end - max(end, buffer.start))
        end = max(end, buffer.end)
    return total


@dataclass(frozen=True, slots=True)
class Profile:
    """All layers of one method, and what their figures are relative to.

    bandwidth   bytes per cycle of each memory
    missing     what is not known, and why
    """

    method: str
    accelerator: str = ""
    clock: float = 0.0
    macs_per_cycle: int = 0
    bandwidth: Mapping[str, float] = field(default_factory=dict[str, float])
    cycles: int | None = None
    layers: tuple[Layer, ...] = ()
    plans: tuple[MemoryPlan, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def macs(self) -> int:
        return sum(layer.macs or 0 for layer in self.layers)

    @property
    def utilization(self) -> float:
        return self.macs / (self.cycles * self.macs_per_cycle) if self.cycles and self.macs_per_cycle else 0.0

    @property
    def limits(self) -> dict[str, int]:
        """The cycles of the program by bottleneck, most first."""
        total: Counter[str] = Counter()
        for layer in self.layers:
            total.update(layer.limits)
        return dict(total.most_common())

    @property
    def most_share(self) -> float:
        """The largest part of the cycles that one layer takes."""
        return max((self.share(layer) for layer in self.layers), default=0.0)

    def share(self, layer: Layer) -> float:
        """Return the layer's part of the cycles."""
        return layer.cycles / self.cycles if layer.cycles and self.cycles else 0.0

    def to_json(self, file: str = "") -> dict[str, Any]:
        """Return the profile under its schema name, ready for json.dumps."""
        plain = {"schema": SCHEMA, "file": file, "method": self.method, "accelerator": self.accelerator}
        plans = [
            {
                "delegate": plan.delegate,
                "layers": plan.layers,
                "buffers": [_describe_buffer(buffer) for buffer in plan.buffers],
            }
            for plan in self.plans
        ]
        return {
            **plain,
            "clock": self.clock,
            "macs_per_cycle": self.macs_per_cycle,
            "bandwidth": dict(self.bandwidth),
            "cycles": self.cycles,
            "macs": self.macs,
            "limits": self.limits,
            "layers": [layer.to_json() for layer in self.layers],
            "memory_plans": plans,
            "missing": list(self.missing),
        }

    def to_csv(self) -> str:
        """Return the layers as CSV."""
        from tosaic.report.layers import write_csv

        return write_csv(self)

    def to_trace(self) -> dict[str, Any]:
        """Return a trace for Perfetto or chrome://tracing, ready for json.dumps."""
        from tosaic.report.trace import make_trace

        return make_trace(self)


def _describe_buffer(buffer: Buffer) -> dict[str, Any]:
    names = ("name", "memory", "usage", "start", "end", "first", "last")
    return {name: getattr(buffer, name) for name in names}


def shorten_op(op: str) -> str:
    """Return an operator without its namespace and overload."""
    parts = op.replace("::", ".").split(".")
    return parts[1] if len(parts) > 1 else op
