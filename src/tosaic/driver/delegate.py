"""Compiles a graph to delegates: partition, lower, run passes, serialize, compile, and retry if a tool rejects it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.fx import Node

from tosaic.backends.protocol import Artifact
from tosaic.backends.registry import find_backend
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid, Refused, ToolCrashed, ToolFailed, Unsupported
from tosaic.core.heap import collect_garbage_after
from tosaic.core.internal import InternalError, contained, is_strict
from tosaic.core.output import write_files
from tosaic.core.specification import Specification
from tosaic.driver.delegate_io import Unread, check_graph, compare_io
from tosaic.driver.partition import Check, Partition, Plan, Trial, partition_and_lower
from tosaic.driver.reason import explain
from tosaic.driver.rehearsal import find_fault
from tosaic.formats.tosa_writer import names, serialize
from tosaic.fx.source import QDQ, Source, find_module, overload, source_line
from tosaic.ir.graph import Graph, Op
from tosaic.ir.text import to_text
from tosaic.ir.verifier import verify
from tosaic.lower.walk import lower
from tosaic.passes import Observer, run_passes

_log = logging.getLogger("tosaic")

#: how often a rejected partition is tried again without the node that was rejected
MAX_REFUSALS = 32
#: how many parts of a rejected partition are built to find the node that caused it
MAX_TRIALS = 32


@dataclass(frozen=True, slots=True)
class TosaOpInfo:
    """A TOSA operator of a delegate: its name in the .tosa, and the torch nodes it was lowered from."""

    name: str
    kind: str
    origin: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delegate:
    """One finished delegate.

    separated  whether all operators had to be kept apart, because the tool miscompiled the graph
    """

    partition: Partition
    ops: tuple[TosaOpInfo, ...]
    tosa: bytes
    artifact: Artifact
    origins: tuple[Mapping[str, Any], ...]
    stages: Mapping[str, str]
    separated: bool = False

    @property
    def blob(self) -> bytes:
        """The delegate's content in the .pte."""
        return self.artifact.blob


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """All delegates of a program, and the nodes that are in none of them."""

    delegates: tuple[Delegate, ...]
    plan: Plan


#: nodes at the inputs and outputs of a program, which the caller passes or receives with channels last
IoNodes = frozenset[Node]


def lower_partition(
    source: Source,
    partition: Partition,
    spec: ArmCompileSpec,
    nhwc: IoNodes,
    trial: Trial | None = None,
    observe: Observer | None = None,
    *,
    separate: bool = False,
) -> tuple[Graph, bytes]:
    """Lower a partition and run the passes; return the verified TOSA graph and its .tosa bytes.

    `trial` is the lowering that the partitioner tried, which includes the partition. `separate` keeps all operators
    apart.
    """
    graph = None if trial is None else trial.cut(partition)
    if graph is None:
        graph = lower(source, partition.nodes, partition.inputs, partition.outputs, spec.target, nhwc)
    if observe is not None:
        observe("lower", graph)
    try:
        between = spec.verify_passes or is_strict()
        graph = run_passes(graph, spec.target, observe=observe, verify_between=between, separate=separate)
        verify(graph, Specification.parse(spec.target.tosa_spec))
    except Invalid as error:
        raise Unsupported(error.what, error.fix, where=error.where) from error
    by_name = {n.name: n for n in partition.nodes}

    def locate(op: Op) -> str:
        return json.dumps([_describe(by_name[name]) for name in op.origin if name in by_name], sort_keys=True)

    return graph, serialize(graph, location=locate if spec.debug_mode is ArmCompileSpec.DebugMode.TOSA else None)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A partition as a .tosa file. `ops` describe its content, by the names of the partition's nodes.

    stages  the graph as text after lowering and after each pass, kept only where intermediate artifacts are dumped
    """

    nodes: tuple[str, ...]
    ops: tuple[TosaOpInfo, ...]
    tosa: bytes
    stages: Mapping[str, str]

    def rename(self, partition: Partition) -> Lowered:
        """Return the same for a partition that is equal except for the names of its nodes."""
        names = tuple(n.name for n in partition.nodes)
        new = dict(zip(self.nodes, names, strict=True))
        ops = tuple(replace(op, origin=tuple(new[name] for name in op.origin if name in new)) for op in self.ops)
        return Lowered(names, ops, self.tosa, self.stages)


def lower_checked(
    source: Source,
    partition: Partition,
    spec: ArmCompileSpec,
    nhwc: IoNodes = frozenset(),
    trial: Trial | None = None,
    *,
    separate: bool = False,
) -> Lowered:
    """Lower a partition to a .tosa file, and check that it has the inputs and outputs of the call."""
    stages: dict[str, str] = {}

    def keep(name: str, graph: Graph) -> None:
        stages[f"{len(stages)}_{name}"] = to_text(graph)

    observe = keep if spec.get_intermediate_path() is not None else None
    graph, tosa = lower_partition(source, partition, spec, nhwc, trial, observe, separate=separate)
    check_graph(source, partition, graph, nhwc)
    return Lowered(tuple(n.name for n in partition.nodes), _list_ops(graph), tosa, stages)


def compile_partition(
    source: Source, partition: Partition, lowered: Lowered, spec: ArmCompileSpec, nhwc: IoNodes = frozenset()
) -> Delegate:
    """Compile a lowered partition; raise ToolFailed if the tool rejects it.

    What the tool miscompiles is compiled again from a graph in which all operators are kept apart.
    """
    tool = find_backend(spec).tool
    try:
        return _compile_lowered(source, partition, lowered, spec)
    except Miscompiled as error:
        _log.warning("%s: %s; all operators of this delegate are kept apart now", error.what, error.why)
    try:
        separated = lower_checked(source, partition, spec, nhwc, separate=True)
        return replace(_compile_lowered(source, partition, separated, spec), separated=True)
    except Miscompiled as error:
        raise RefusedPartition(error, tool, []) from error


def _compile_lowered(source: Source, partition: Partition, lowered: Lowered, spec: ArmCompileSpec) -> Delegate:
    """Compile a partition; raise Miscompiled if the tool crashes, or if its commands are wrong."""
    backend = find_backend(spec)
    try:
        artifact = backend.compile(lowered.tosa, spec)
    except Refused as error:
        proven = [partition.outputs[i] for i in error.outputs]
        nodes = proven or _find_named_nodes(lowered.ops, partition, error.names)
        raise RefusedPartition(error, backend.tool, nodes, proven=bool(proven)) from error
    except ToolCrashed as error:
        raise Miscompiled(error.what, log=error.log, why=error.why) from error
    fault = compare_io(source, partition, artifact) or find_fault(lowered.tosa, artifact)
    if fault:
        raise Miscompiled(f"{backend.tool} miscompiled a delegate", why=fault)
    origins = describe_origins(lowered.ops, partition)
    return Delegate(partition, lowered.ops, lowered.tosa, artifact, origins, lowered.stages)


class Miscompiled(ToolFailed):
    """A graph that the tool crashes on, or for which its commands are wrong; `why` says what is wrong."""


def _list_ops(graph: Graph) -> tuple[TosaOpInfo, ...]:
    labels = names(graph)
    ops = (op for op in graph.ops if op.kind not in ("CONST", "CONST_SHAPE"))
    return tuple(TosaOpInfo(labels[v], op.kind, op.origin) for op in ops for v in op.outputs)


class RefusedPartition(ToolFailed):
    """A rejection with the nodes that may have caused it, if the tool named them; `proven` if they certainly have."""

    def __init__(self, error: ToolFailed, tool: str, nodes: list[Node], *, proven: bool = False) -> None:
        super().__init__(error.what, log=error.log, where=error.where, why=error.why, fix=error.fix)
        self.tool, self.nodes, self.proven = tool, nodes, proven


def _find_named_nodes(ops: Sequence[TosaOpInfo], partition: Partition, named: tuple[str, ...]) -> list[Node]:
    """Find the nodes behind the tensor names in a tool's message."""
    by_name = {n.name: n for n in partition.nodes}
    found = [by_name[o] for op in ops if op.name in named for o in op.origin if o in by_name]
    nodes = list(dict.fromkeys(found))
    return [n for n in nodes if overload(n) not in QDQ] or nodes


def build(
    source: Source,
    spec: ArmCompileSpec,
    check: Check | None = None,
    nhwc: IoNodes = frozenset(),
    caller_quantizes: IoNodes = frozenset(),
    excluded: Mapping[Node, Unsupported] | None = None,
) -> CompiledGraph:
    """Build delegates for everything that the target supports. Nodes that a tool rejects fall back to the CPU.

    `caller_quantizes` are the quantize and dequantize nodes that the caller of the program performs, `excluded`
    other nodes that have to stay on the CPU.
    """
    on_cpu = {n: Unsupported('the caller does it, by io="int8"') for n in caller_quantizes} | dict(excluded or {})
    allowed = len(on_cpu) + MAX_REFUSALS
    while True:
        # All graphs with their constants are freed before a tool needs memory.
        with collect_garbage_after():
            plan, lowered = _plan(source, spec, check, on_cpu, nhwc)
        delegates: list[Delegate] = []
        for partition, one in zip(plan.partitions, lowered, strict=True):
            made = _compile(source, partition, one, spec, nhwc)
            if isinstance(made, Delegate):
                delegates.append(made)
                continue
            nodes = made.nodes if made.proven else find_refused_nodes(source, partition, spec, made.nodes, nhwc)
            if len(on_cpu) + len(nodes) > allowed or not nodes:
                nodes = list(partition.nodes)
            on_cpu.update(dict.fromkeys(nodes, made.reason))
            break
        else:
            return CompiledGraph(tuple(delegates), plan)


def _plan(
    source: Source, spec: ArmCompileSpec, check: Check | None, on_cpu: Mapping[Node, Unsupported], nhwc: IoNodes
) -> tuple[Plan, list[Lowered | Failure]]:
    """Partition a graph and lower its partitions; everything falls back to the CPU if the partitioner itself fails."""
    try:
        with contained("partitioning the model"):
            plan, trial = partition_and_lower(
                source, spec.target, check=check, excluded=on_cpu, move_data=spec.delegate_data_movement, nhwc=nhwc
            )
    except InternalError as error:
        return Plan((), explain(dict.fromkeys(source.calls(), error))), []
    return plan, [_lower(source, partition, spec, nhwc, trial) for partition in plan.partitions]


def _lower(
    source: Source, partition: Partition, spec: ArmCompileSpec, nhwc: IoNodes, trial: Trial
) -> Lowered | Failure:
    """Lower a partition, or return why it cannot be built."""
    try:
        # The partitioner has already lowered all of it, so a node that is unsupported now is a bug of Tosaic.
        with contained("compiling a delegate", planned=(Invalid, ToolFailed, Unread)):
            return lower_checked(source, partition, spec, nhwc, trial)
    except Unread as error:
        return Failure(error, error.nodes, proven=True)
    except InternalError as error:
        return Failure(error, [])


def _compile(
    source: Source, partition: Partition, lowered: Lowered | Failure, spec: ArmCompileSpec, nhwc: IoNodes
) -> Delegate | Failure:
    """Compile a lowered partition, or return why it cannot be built."""
    if isinstance(lowered, Failure):
        return lowered
    try:
        with contained("compiling a delegate", planned=(Invalid, ToolFailed)):
            return compile_partition(source, partition, lowered, spec, nhwc)
    except RefusedPartition as error:
        other = "write it with other operators" if spec.target.has_booleans else "use an Ethos-U85, or other operators"
        fix = error.fix if error.proven else other
        return Failure(Unsupported(f"{error.tool}: {error.why or error.what}", fix), error.nodes, error.proven)
    except InternalError as error:
        return Failure(error, [])


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a partition could not be built, with the nodes that may have caused it; `proven` if they certainly have."""

    reason: Unsupported
    nodes: list[Node]
    proven: bool = False


def find_refused_nodes(
    source: Source, partition: Partition, spec: ArmCompileSpec, named: Sequence[Node], nhwc: IoNodes
) -> list[Node]:
    """Find the nodes without which a rejected partition is accepted, within MAX_TRIALS builds.

    `named` are nodes that a tool named. It names nodes after its own rewriting, so each has to fail alone.
    """
    trials = 0

    def fails(nodes: Iterable[Node]) -> bool:
        nonlocal trials
        trials += 1
        kept = set(nodes)
        rest = {n: Unsupported("left out while searching") for n in source.calls() if n not in kept}
        with collect_garbage_after():
            plan, lowered = _plan(source, spec, None, rest, nhwc)
        made = (_compile(source, part, one, spec, nhwc) for part, one in zip(plan.partitions, lowered, strict=True))
        return any(isinstance(m, Failure) and not m.proven for m in made)

    pieces = partition.clusters or tuple((n,) for n in partition.nodes)
    suspects = [p for p in pieces if any(n in p for n in named)]
    piece = next((p for p in suspects[: MAX_TRIALS // 4] if fails(p)), None)
    if piece is None:
        # The last piece of the shortest prefix that is rejected.
        low, high = 0, len(pieces)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fails(n for p in pieces[:middle] for n in p) else (middle, high)
        piece = pieces[high - 1]
    computing = [n for n in reversed(piece) if overload(n) not in QDQ] or list(reversed(piece))
    ordered = sorted(computing, key=lambda n: n not in named)
    for node in ordered if len(ordered) > 1 else ():
        if trials < MAX_TRIALS and not fails(n for n in piece if n is not node):
            return [node]
    return ordered[:1]


def _describe(node: Node) -> dict[str, str]:
    return {
        "node": node.name,
        "op": overload(node),
        "where": source_line(node),
        "module": find_module(node)[0],
        "stack_trace": node.meta.get("stack_trace") or "",
    }


def describe_origins(ops: Sequence[TosaOpInfo], partition: Partition) -> tuple[Mapping[str, Any], ...]:
    """Describe for every torch node of a partition its location, and the TOSA ops it was lowered to."""
    made: dict[str, list[str]] = {}
    for op in ops:
        for origin in op.origin:
            made.setdefault(origin, []).append(f"{op.name}:{op.kind}")
    return tuple(
        {"event_id": i, **_describe(node), "tosa": made.get(node.name, [])} for i, node in enumerate(partition.nodes)
    )


def dump(delegate: Delegate, spec: ArmCompileSpec, number: int) -> None:
    """Write a delegate's intermediate files, under names that no other delegate has, in the order of `number`.

    Model Explorer's adapter for .pte files finds the graph of each delegate by the number after `output_tag`.
    """
    folder = spec.get_intermediate_path()
    if folder is None:
        return
    stem = Path(folder) / f"output_tag{number:03d}_{hashlib.sha256(delegate.tosa).hexdigest()[:12]}"
    stages = {f".{name}.tosa.txt": text.encode() for name, text in delegate.stages.items()}
    parts = {".tosa": delegate.tosa, **stages, **delegate.artifact.files}
    if spec.debug_mode is ArmCompileSpec.DebugMode.JSON:
        parts[".debug.json"] = json.dumps(list(delegate.origins), indent=1).encode()
    write_files({stem.with_name(stem.name + suffix): data for suffix, data in parts.items()})
