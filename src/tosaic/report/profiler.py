"""Makes the layer profile of a program."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.core.reason import Reason
from tosaic.formats import blob, pte
from tosaic.formats.sidecar import DelegateFiles, Sidecar
from tosaic.formats.tosa_reader import read as read_tosa
from tosaic.ir.encode import count_bytes
from tosaic.ir.graph import Graph, Op, Value
from tosaic.npu.accelerator import ACCELERATORS
from tosaic.npu.perf import ROW_BYTES, Estimate, Row, Traffic, count_operations, estimate
from tosaic.npu.reads import CommandReads, list_reads
from tosaic.npu.stream import parse
from tosaic.npu.system import System, find_options, read_system
from tosaic.report.attribution import Share, divide
from tosaic.report.profile import Layer, MemoryPlan, Profile, Span, shorten_op
from tosaic.report.schedule import Origin, Schedule, read_origins, read_schedule
from tosaic.tools.vela_options import VelaOptions

#: Memory for the names and tables of a sidecar, per byte of Vela's debug database.
_TABLE_FACTOR = 24
#: Tensors in a memory plan; more are not compared with each other.
_MOST_BUFFERS = 4000


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
    kept = None if kept is None else _select_delegates(program, plan, kept)
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


def _select_delegates(program: pte.Pte, plan: pte.Plan, kept: Sidecar) -> Sidecar:
    """Select the delegates of one method, where the sidecar has those of all methods in order."""
    counts = [len(one.delegates) for one in program.plans]
    if len(kept.delegates) != sum(counts):
        return kept
    number = next(index for index, one in enumerate(program.plans) if one is plan)
    first = sum(counts[:number])
    return replace(kept, delegates=kept.delegates[first : first + len(plan.delegates)])


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
        found = _match_reasons(self._plan, self._kept.reasons if self._kept is not None else ())
        seen: set[int] = set()
        for number, instruction in enumerate(self._plan.instructions):
            if isinstance(instruction, pte.KernelCall):
                self._add_kernel(instruction, found.get(number))
            elif isinstance(instruction, pte.DelegateCall) and instruction.delegate not in seen:
                seen.add(instruction.delegate)
                index = instruction.delegate
                self._add_delegate(index, known[index] if index < len(known) else None)
        if any(layer.device == "CPU" for layer in self.layers):
            self.missing.append("cycles on the CPU: they are not modeled")

    def _add_kernel(self, call: pte.KernelCall, reason: Reason | None) -> None:
        """Add an operator on the CPU. Its last arguments are its results."""
        tensors = {i: value for i in call.args if isinstance(value := self._plan.values[i], pte.Tensor)}
        last = self._plan.values[call.args[-1]] if call.args else None
        # An operator with several results has a list of them.
        results = last.items if isinstance(last, pte.TensorList) else call.args[-1:]
        outputs = tuple(tensors[i] for i in results if i in tensors)
        inputs = tuple(tensor for i, tensor in tensors.items() if i not in results)
        found = reason or Reason()
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
            self.plans.append(MemoryPlan(index, schedule.buffers, group.list_times(), group.list_makers()))
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


def _match_reasons(plan: pte.Plan, reasons: Sequence[Reason]) -> dict[int, Reason]:
    """Find the torch node of each call on the CPU: the n-th call of an operator is its n-th node.

    Where calls and nodes of an operator differ in number, nothing is claimed.
    """
    calls: dict[str, list[int]] = {}
    for number, instruction in enumerate(plan.instructions):
        if isinstance(instruction, pte.KernelCall):
            calls.setdefault(_find_stem(str(plan.operators[instruction.operator])), []).append(number)
    nodes: dict[str, list[Reason]] = {}
    for reason in reasons:
        nodes.setdefault(_find_stem(reason.op), []).append(reason)
    pairs = ((calls[stem], nodes[stem]) for stem in calls if len(calls[stem]) == len(nodes.get(stem, ())))
    return {number: node for numbers, found in pairs for number, node in zip(numbers, found, strict=True)}


def _find_stem(op: str) -> str:
    """Return the name that an operator and its variants share: `sort` of `aten::sort.values`.

    `aten::to.dtype` is called as `dim_order_ops::_to_dim_order_copy.out`, `aten::softmax.int` as
    `aten::_softmax.out`.
    """
    return shorten_op(op).removeprefix("_").removesuffix("_copy").removesuffix("_dim_order")


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


class _Group:
    """Makes the layers of one delegate with an estimate."""

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
        self._shares = divide(timed, reads, schedule)
        self._named = {share.origin for share in self._shares}
        self._macs = ACCELERATORS[timed.accelerator].macs

    def list_layers(self) -> list[Layer]:
        """List the layers; their cycles add up to those of the delegate."""
        return self._connect([self._make(number, share) for number, share in enumerate(self._shares)])

    def list_times(self) -> dict[int, int]:
        """Return the layer that runs at each time of the memory plan."""
        steps = self._schedule.steps if self._schedule is not None else ()
        return {
            steps[step].time: self._first + number
            for number, share in enumerate(self._shares)
            for step in share.steps
            if steps[step].time >= 0
        }

    def list_makers(self) -> dict[Value, int]:
        """Return the layer that computes each value."""
        made: dict[Value, int] = {}
        for number, share in enumerate(self._shares):
            made.update((value, self._first + number) for op in self._list_ops(share) for value in op.outputs)
        return made

    def _list_ops(self, share: Share) -> dict[Op, None]:
        steps = self._schedule.steps if self._schedule is not None else ()
        return dict.fromkeys(op for step in share.steps for op in steps[step].ops)

    def _make(self, number: int, share: Share) -> Layer:
        rows = [self._timed.rows[index] for index in share.commands]
        reads = [self._reads[index] for index in share.commands]
        named = self._name(self._first + number, share, reads, rows)
        cycles, macs = sum(share.cycles.values()), sum(row.macs for row in rows)
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
            limits={name: count for name, count in share.cycles.most_common() if count},
            dma_cycles=sum(row.cycles for row in transfers),
            utilization=macs / (cycles * self._macs) if cycles else 0.0,
            weight_bytes=sum(part.size for part in parameters),
            traffic=traffic,
            commands=len(rows),
            offset=next((read.offset for read in reads if read.ofm), reads[0].offset),
            spans=tuple(self._span(row) for row, read in zip(rows, reads, strict=True) if read.ofm),
            transfers=tuple(self._span(row) for row in transfers),
        )

    def _name(self, index: int, share: Share, reads: Sequence[CommandReads], rows: Sequence[Row]) -> Layer:
        schedule = self._schedule
        if schedule is not None and share.steps:
            ops = self._list_ops(share)
            layer = _name_layer(index, "NPU", self._delegate, share.origin, ops, schedule, self._named)
            times = tuple(schedule.steps[step].time for step in share.steps)
            operator = layer.op or schedule.steps[next(iter(share.steps))].operator
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
        made = self.list_makers()
        found: list[Layer] = []
        for layer, share in zip(layers, self._shares, strict=True):
            ops = self._list_ops(share)
            reads = {made[v]: None for op in ops for v in op.inputs if v in made and v.op not in ops}
            found.append(replace(layer, reads=tuple(index for index in reads if index != layer.index)))
        return found


def _count_map(read: CommandReads) -> int:
    return sum(size * math.prod(shape) for shape, size in zip((read.ifm, read.ofm), read.element, strict=True))
