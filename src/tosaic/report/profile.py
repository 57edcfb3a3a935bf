"""The layer profile of a program: where its cycles, its bytes and its memory traffic come from.

A layer is a node of the model: what torch calls one operator, with everything that the NPU computes together with it.
The terminal, JSON, CSV, the trace and the HTML report are all made from one `Profile`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats import blob, pte
from tosaic.formats.sidecar import DelegateFiles, Fallback, Sidecar
from tosaic.formats.tosa_reader import read as read_tosa
from tosaic.ir.encode import count_bytes
from tosaic.ir.graph import Graph, Op, Value
from tosaic.npu.accelerator import ACCELERATORS
from tosaic.npu.perf import ROW_BYTES, Estimate, Row, Traffic, count_operations, estimate
from tosaic.npu.reads import CommandReads, list_reads
from tosaic.npu.stream import parse
from tosaic.npu.system import System, find_options, read_system
from tosaic.report.schedule import Buffer, Origin, Schedule, read_origins, read_schedule
from tosaic.tools.vela_options import VelaOptions

SCHEMA = "tosaic-profile/1"
#: Memory for the names and tables of a sidecar, per byte of Vela's debug database.
_TABLE_FACTOR = 24
#: Tensors in a memory plan; more are not compared with each other.
_MOST_BUFFERS = 4000
#: What the bottlenecks of a row are called; a memory has its own name.
_LIMITS = {"mac": "MACs", "output": "output stage", "command": "issue of blocks", "dma": "DMA"}


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
        parts = self.op.replace("::", ".").split(".")
        return parts[1] if len(parts) > 1 else self.op

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "limit": self.limit}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The tensors of one delegate in memory over time; `layers` are the layers that run at each time."""

    delegate: int
    buffers: tuple[Buffer, ...]
    layers: Mapping[int, int]

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


def name_limit(bottleneck: str) -> str:
    """Name a bottleneck of a row for a reader."""
    return _LIMITS.get(bottleneck, bottleneck)


def make_profile(
    program: pte.Pte,
    kept: Sidecar | None = None,
    *,
    method: str = "forward",
    options: VelaOptions | None = None,
    why_no_sidecar: str = "there is no .tosaic file next to the .pte",
    budget: Budget | None = None,
) -> Profile:
    """Make the profile of a method. `kept` is the sidecar that belongs to the program, `options` those of its compile.

    Without options, the system is the one that the delegates name in Vela's own configuration file.
    """
    plan = program.find(method)
    maker = _Maker(plan, kept, options, budget or Budget(sum(len(one.blob) for one in plan.delegates)))
    maker.make()
    missing = list(maker.missing)
    if kept is None:
        missing.insert(0, f"names, source lines, shapes of layers and the memory plan: {why_no_sidecar}")
    return Profile(
        method,
        maker.accelerator,
        maker.clock,
        ACCELERATORS[maker.accelerator].macs if maker.accelerator else 0,
        maker.bandwidth,
        maker.cycles if maker.is_timed else None,
        tuple(maker.layers),
        tuple(maker.plans),
        tuple(dict.fromkeys(missing)),
    )


class _Maker:
    """Collects the layers of a method in the order of its instructions."""

    def __init__(self, plan: pte.Plan, kept: Sidecar | None, options: VelaOptions | None, budget: Budget) -> None:
        self._plan, self._kept, self._options, self._budget = plan, kept, options, budget
        self.layers: list[Layer] = []
        self.plans: list[MemoryPlan] = []
        self.missing: list[str] = []
        self.accelerator, self.clock, self.cycles = "", 0.0, 0
        self.bandwidth: dict[str, float] = {}
        self.is_timed = False

    def make(self) -> None:
        files = self._kept.delegates if self._kept is not None else ()
        known = files if len(files) == len(self._plan.delegates) else ()
        if self._kept is not None and len(known) != len(self._plan.delegates):
            self.missing.append("names of layers: the .tosaic file describes another number of delegates")
        fallbacks = _match_fallbacks(self._plan, self._kept.reasons if self._kept is not None else ())
        seen: set[int] = set()
        for number, instruction in enumerate(i for chain in self._plan.chains for i in chain.instructions):
            if isinstance(instruction, pte.KernelCall):
                self._add_kernel(instruction, fallbacks.get(number))
            elif isinstance(instruction, pte.DelegateCall) and instruction.delegate not in seen:
                seen.add(instruction.delegate)
                index = instruction.delegate
                self._add_delegate(index, known[index] if index < len(known) else None)
        if any(layer.device == "CPU" for layer in self.layers):
            self.missing.append("cycles on the CPU: they are not modeled")

    def _add_kernel(self, call: pte.KernelCall, fallback: Fallback | None) -> None:
        """Add an operator on the CPU. Its last arguments are its results."""
        tensors = {i: value for i in call.args if isinstance(value := self._plan.values[i], pte.Tensor)}
        last = tensors.pop(call.args[-1], None) if call.args else None
        inputs, outputs = tuple(tensors.values()), () if last is None else (last,)
        found = fallback or Fallback()
        self.layers.append(
            Layer(
                index=len(self.layers),
                device="CPU",
                delegate=None,
                op=found.op or str(self._plan.operators[call.operator]),
                node=found.node,
                module=found.module,
                where=found.where,
                inputs=tuple(_describe_type(tensor.dtype, tensor.shape) for tensor in inputs),
                outputs=tuple(_describe_type(tensor.dtype, tensor.shape) for tensor in outputs),
                activation_bytes=sum(tensor.nbytes for tensor in (*inputs, *outputs)),
                reason=found.why,
                fix=found.fix,
            )
        )

    def _add_delegate(self, index: int, files: DelegateFiles | None) -> None:
        delegate = self._plan.delegates[index]
        graph = None if files is None else read_tosa(files.tosa, self._budget)
        if files is not None:
            self._budget.take(_TABLE_FACTOR * len(files.debug_db), "the names of layers")
        if not blob.detect(delegate.blob):
            self._add_graph(index, delegate.id, files, graph)
            return
        try:
            timed, reads = self._measure(delegate)
        except Invalid as error:
            self.missing.append(f"the cycles of delegate {index}: {error.what}")
            self._add_graph(index, "NPU", files, graph)
            return
        schedule = None if files is None or graph is None else read_schedule(files, graph, reads)
        group = _Group(index, len(self.layers), self.cycles, timed, reads, schedule)
        self.layers += group.list_layers()
        if schedule is not None and len(schedule.buffers) > _MOST_BUFFERS:
            self.missing.append(f"the memory plan of delegate {index}: it has {len(schedule.buffers):,} tensors")
        elif schedule is not None and schedule.buffers:
            self.plans.append(MemoryPlan(index, schedule.buffers, group.list_times()))
        self.cycles += timed.cycles
        self.is_timed = True

    def _measure(self, delegate: pte.Delegate) -> tuple[Estimate, tuple[CommandReads, ...]]:
        commands = blob.unpack(delegate.blob).cmd_data
        stream = parse(commands)
        name = stream.accelerator.name
        system = read_system(self._options or find_options(name, delegate.compile_specs))
        self._budget.take(2 * ROW_BYTES * count_operations(commands), "the profile of a command stream")
        timed, reads = estimate(stream, system), list_reads(stream)
        self.accelerator, self.clock = name, timed.clock
        self.bandwidth |= _list_bandwidth(system, timed)
        return timed, reads

    def _add_graph(self, index: int, device: str, files: DelegateFiles | None, graph: Graph | None) -> None:
        """Add the layers of a delegate without a command stream that can be timed: names and shapes only."""
        self.missing.append(f"the cycles of delegate {index}: there is no model of `{device}`")
        if files is None or graph is None:
            self.layers.append(Layer(len(self.layers), device, index, device))
            return
        origins = read_origins(files, graph)
        schedule = Schedule(graph, origins, graph.uses())
        groups: dict[Origin | None, list[Op]] = {}
        for op in graph.ops:
            if not op.is_constant:
                groups.setdefault(schedule.find_origin([op]), []).append(op)
        for origin, ops in groups.items():
            self.layers.append(_name_layer(len(self.layers), device, index, origin, ops, schedule, groups))


def _list_bandwidth(system: System, timed: Estimate) -> dict[str, float]:
    memories = {memory.name: memory for memory in system.regions.values()}
    return {name: memory.bandwidth for name, memory in memories.items() if name in timed.traffic}


def _describe_type(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _match_fallbacks(plan: pte.Plan, reasons: Sequence[Fallback]) -> dict[int, Fallback]:
    """Find the torch node of each call on the CPU: the n-th call of an operator is its n-th node.

    Where calls and nodes of an operator differ in number, nothing is claimed.
    """
    calls: dict[str, list[int]] = {}
    for number, instruction in enumerate(i for chain in plan.chains for i in chain.instructions):
        if isinstance(instruction, pte.KernelCall):
            calls.setdefault(_find_stem(str(plan.operators[instruction.operator])), []).append(number)
    nodes: dict[str, list[Fallback]] = {}
    for reason in reasons:
        nodes.setdefault(_find_stem(reason.op), []).append(reason)
    pairs = ((calls[stem], nodes[stem]) for stem in calls if len(calls[stem]) == len(nodes.get(stem, ())))
    return {number: node for numbers, found in pairs for number, node in zip(numbers, found, strict=True)}


def _find_stem(op: str) -> str:
    """Return the name that an operator and its variants share: `sort` of `aten::sort.values`."""
    parts = op.replace("::", ".").split(".")
    return (parts[1] if len(parts) > 1 else op).removesuffix("_copy")


def _name_layer(
    index: int,
    device: str,
    delegate: int,
    origin: Origin | None,
    ops: Iterable[Op],
    schedule: Schedule,
    named: Container[Origin | None],
) -> Layer:
    """Make a layer with all that is known without its commands. `named` are the nodes that have layers of their own."""
    own = dict.fromkeys(ops)
    made = [value for op in own for value in op.outputs]
    inputs = dict.fromkeys(v for op in own for v in op.inputs if v.op not in own and v.data is None)
    outputs = [value for value in made if any(user not in own for user in schedule.users.get(value, (None,)))]
    nodes = dict.fromkeys(one for op in own for one in schedule.origins.get(op, ()))
    fused = dict.fromkeys(one.op for one in nodes if one not in named and not one.converts)
    return Layer(
        index=index,
        device=device,
        delegate=delegate,
        op=origin.op if origin is not None else next((op.kind for op in own), ""),
        node=origin.node if origin is not None else "",
        module=origin.module if origin is not None else "",
        where=origin.where if origin is not None else "",
        fused=tuple(fused),
        tosa=tuple(op.kind for op in own),
        inputs=tuple(_describe_type(value.dtype.torch_name, value.shape) for value in inputs),
        outputs=tuple(_describe_type(value.dtype.torch_name, value.shape) for value in outputs),
        activation_bytes=sum(count_bytes(value.type.size, value.dtype) for value in (*inputs, *outputs)),
    )


@dataclass(slots=True)
class _Draft:
    """The commands of one layer, as indices, and its steps."""

    origin: Origin | None
    commands: list[int] = field(default_factory=list[int])
    steps: dict[int, None] = field(default_factory=dict[int, None])


class _Group:
    """Divides the commands of one delegate among its layers."""

    def __init__(
        self,
        delegate: int,
        first: int,
        begin: int,
        timed: Estimate,
        reads: Sequence[CommandReads],
        schedule: Schedule | None,
    ) -> None:
        self._delegate, self._first, self._begin = delegate, first, begin
        self._timed, self._reads, self._schedule = timed, reads, schedule
        self._drafts = list(self._divide())
        self._named = {draft.origin for draft in self._drafts}
        self._macs = ACCELERATORS[timed.accelerator].macs

    def _divide(self) -> Iterator[_Draft]:
        """Yield the layers in the order in which their results are complete: after the layers that they read."""
        steps = self._schedule.commands if self._schedule is not None else ()
        drafts: dict[object, _Draft] = {}
        for index, read in enumerate(self._reads):
            step = steps[index] if index < len(steps) else -1
            origin = self._find_origin(step)
            key: object = origin or (("step", step) if step >= 0 else self._find_user(index))
            draft = drafts.setdefault(key, _Draft(origin))
            draft.commands.append(index)
            if step >= 0 and (read.ofm or read.is_indexed):
                draft.steps[step] = None
        order = {key: self._find_last(draft) for key, draft in drafts.items()}
        yield from (drafts[key] for key in sorted(drafts, key=lambda key: order[key]))

    def _find_origin(self, step: int) -> Origin | None:
        if self._schedule is None or step < 0:
            return None
        return self._schedule.find_origin(self._schedule.steps[step].ops)

    def _find_user(self, index: int) -> int:
        """Find the operation that a command belongs to if no step is known: itself, or the one that a DMA serves."""
        serves = self._reads[index].serves
        return serves if serves >= 0 else index

    def _find_last(self, draft: _Draft) -> int:
        kernels = (index for index in reversed(draft.commands) if self._reads[index].ofm)
        return next(kernels, draft.commands[-1])

    def list_layers(self) -> list[Layer]:
        """List the layers; their cycles add up to those of the delegate."""
        owners = {index: number for number, draft in enumerate(self._drafts) for index in draft.commands}
        spent = [Counter[str]() for _ in self._drafts]
        waited = {row.end: index for index, row in enumerate(self._timed.rows) if not self._reads[index].ofm}
        now = 0
        for index, row in enumerate(self._timed.rows):
            if self._reads[index].ofm:
                # Kernel operations run one after the other; a gap before one is a wait for a DMA, which ends then.
                spent[owners[waited.get(row.start, index)]][name_limit("dma")] += row.start - now
                spent[owners[index]][name_limit(row.bottleneck)] += row.cycles
                now = row.end
        if self._timed.cycles > now:
            spent[owners[waited[self._timed.cycles]]][name_limit("dma")] += self._timed.cycles - now
        layers = [self._make(number, draft, spent[number]) for number, draft in enumerate(self._drafts)]
        return self._connect(layers)

    def list_times(self) -> dict[int, int]:
        """Return the layer that runs at each time of the memory plan."""
        steps = self._schedule.steps if self._schedule is not None else ()
        return {
            steps[step].time: self._first + number
            for number, draft in enumerate(self._drafts)
            for step in draft.steps
            if steps[step].time >= 0
        }

    def _make(self, number: int, draft: _Draft, spent: Counter[str]) -> Layer:
        rows = [self._timed.rows[index] for index in draft.commands]
        reads = [self._reads[index] for index in draft.commands]
        named = self._name(self._first + number, draft, reads, rows)
        cycles, macs = sum(spent.values()), sum(row.macs for row in rows)
        traffic: dict[str, Traffic] = {}
        for row in rows:
            for memory, moved in row.traffic.items():
                traffic[memory] = traffic.get(memory, Traffic()) + moved
        transfers = [row for row, read in zip(rows, reads, strict=True) if not read.ofm]
        parameters = {part for read in reads for part in read.parameters}
        return replace(
            named,
            macs=macs,
            cycles=cycles,
            limits={name: count for name, count in spent.most_common() if count},
            dma_cycles=sum(row.cycles for row in transfers),
            utilization=macs / (cycles * self._macs) if cycles else 0.0,
            weight_bytes=sum(part.size for part in parameters),
            traffic=traffic,
            commands=len(rows),
            spans=tuple(self._span(row) for row, read in zip(rows, reads, strict=True) if read.ofm),
            transfers=tuple(self._span(row) for row in transfers),
        )

    def _name(self, index: int, draft: _Draft, reads: Sequence[CommandReads], rows: Sequence[Row]) -> Layer:
        schedule = self._schedule
        if schedule is not None and draft.steps:
            ops = dict.fromkeys(op for step in draft.steps for op in schedule.steps[step].ops)
            layer = _name_layer(index, "NPU", self._delegate, draft.origin, ops, schedule, self._named)
            times = tuple(schedule.steps[step].time for step in draft.steps)
            operator = layer.op or schedule.steps[next(iter(draft.steps))].operator
            return replace(layer, times=times, op=operator)
        kernels = [read for read in reads if read.ofm]
        name = next((row.name for row, read in zip(rows, reads, strict=True) if read.ofm), rows[0].name)
        return Layer(
            index,
            "NPU",
            self._delegate,
            name,
            inputs=tuple(_describe_type(f"int{8 * read.element[0]}", read.ifm) for read in kernels),
            outputs=tuple(_describe_type(f"int{8 * read.element[1]}", read.ofm) for read in kernels),
            activation_bytes=sum(_count_map(read) for read in kernels),
        )

    def _span(self, row: Row) -> Span:
        return Span(row.name, self._begin + row.start, row.cycles)

    def _connect(self, layers: list[Layer]) -> list[Layer]:
        """Add the layers that each layer reads from."""
        schedule = self._schedule
        if schedule is None:
            return layers
        made: dict[Value, int] = {}
        for layer, draft in zip(layers, self._drafts, strict=True):
            for step in draft.steps:
                made.update((value, layer.index) for op in schedule.steps[step].ops for value in op.outputs)
        found: list[Layer] = []
        for layer, draft in zip(layers, self._drafts, strict=True):
            ops = dict.fromkeys(op for step in draft.steps for op in schedule.steps[step].ops)
            reads = {made[v]: None for op in ops for v in op.inputs if v in made and v.op not in ops}
            found.append(replace(layer, reads=tuple(index for index in reads if index != layer.index)))
        return found


def _count_map(read: CommandReads) -> int:
    return sum(size * math.prod(shape) for shape, size in zip((read.ifm, read.ofm), read.element, strict=True))
