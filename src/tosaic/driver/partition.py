"""Assigns nodes to the NPU, groups them into delegates, and explains why the others stay on the CPU.

The only check is the lowering itself: a node is supported if its record lowers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from tosaic.core.errors import InputRefused, ResultRefused, Unsupported
from tosaic.core.hints import Hint
from tosaic.core.internal import contained
from tosaic.core.reason import Reason
from tosaic.core.targets import Target
from tosaic.driver.reason import Fused, explain, find_leader
from tosaic.driver.unquantized import explain_float
from tosaic.fx.dynamic import find_dynamic
from tosaic.fx.source import ASSERTIONS, QDQ, Source, overload
from tosaic.ir.graph import Graph
from tosaic.lower.booleans import is_table
from tosaic.lower.constraints import NO_STORED_BOOLEANS, SHAPE
from tosaic.lower.convert import can_be_real
from tosaic.lower.lowering import QUANTIZED_IO
from tosaic.lower.tensor import Const, Opaque, Result, Stored, Tensor
from tosaic.lower.walk import GraphLowering, exists_only_inside
from tosaic.ops import registry

#: an additional check of the user: None, or the reason against the node
Check = Callable[[Node], str | None]


@dataclass(frozen=True, slots=True)
class Partition:
    """Nodes that become one delegate, in execution order, with its inputs and outputs.

    clusters  the same nodes in groups that cannot be split: the smallest parts that can be compiled alone
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    clusters: tuple[tuple[Node, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The result: delegates in execution order, and a reason for every other call."""

    partitions: tuple[Partition, ...]
    reasons: Mapping[Node, Reason] = field(default_factory=dict[Node, Reason])


def partition(source: Source, target: Target, *, move_data: bool = False, carries: bool = False) -> Plan:
    """Divide a graph between NPU and CPU; `partition_and_lower` explains the options."""
    return partition_and_lower(source, target, move_data=move_data, carries=carries)[0]


def partition_and_lower(
    source: Source,
    target: Target,
    *,
    check: Check | None = None,
    excluded: Mapping[Node, Unsupported] | None = None,
    move_data: bool = False,
    carries: bool = False,
    nhwc: frozenset[Node] = frozenset(),
) -> tuple[Plan, Trial]:
    """Divide a graph between NPU and CPU, and return the plan with the lowering that it is based on.

    `excluded` are nodes that have to stay on the CPU: a tool has rejected them, or the caller computes them. With
    `move_data`, partitions that only move data are delegated too. With `carries`, results of a type that the target
    does not have may leave a delegate, if another type holds them. `nhwc` are inputs and outputs with channels last.
    """
    on_cpu: dict[Node, Unsupported] = dict(excluded or {})
    for node in source.calls():
        reason = check(node) if check is not None and node not in on_cpu else None
        if reason is not None:
            on_cpu[node] = Unsupported(reason, "change the partitioner's additional_checks")
        dynamic = find_dynamic(node) if node not in on_cpu else None
        if dynamic is not None:
            on_cpu[node] = dynamic
    while True:
        trial = _lower_supported(source, target, nhwc, on_cpu)
        if _exclude_escaping(source, trial.walk, on_cpu, carries):
            continue
        cluster_of = _clusters(source, trial.walk, on_cpu)
        if _exclude_cycles(source, cluster_of, on_cpu):
            continue
        partitions = _make_partitions(source, cluster_of)
        if not _exclude_idle(partitions, move_data, on_cpu):
            break
    for node, error in on_cpu.items():
        if isinstance(error, InputRefused) and overload(node) not in QDQ and find_leader(node, on_cpu) is None:
            on_cpu[node] = explain_float(source, target, node) or error
    return Plan(tuple(partitions), explain(on_cpu)), trial


@dataclass(frozen=True, slots=True)
class Trial:
    """A lowering of everything that is supported, as one graph; `spans` give the TOSA ops of each node."""

    walk: GraphLowering
    spans: Mapping[Node, tuple[int, int]]

    def cut(self, partition: Partition) -> Graph | None:
        """Extract the graph of a partition, exactly as lowering the partition alone would build it.

        None if that is not possible: the partition reads a result or a constant of another partition, which the trial
        has in another form than a delegate's input.
        """
        inputs = [self.walk.results.get(n) for n in partition.inputs if n not in self.spans]
        received = [t.value for t in inputs if isinstance(t, Stored) and t.value.op is None]
        if len(received) != len(partition.inputs) or not all(n in self.spans for n in partition.nodes):
            return None
        built = self.walk.lo.b.ops
        start = len(built)
        outputs = self.walk.finish(partition.outputs).outputs
        ops = [op for n in partition.nodes for op in built[slice(*self.spans[n])]] + built[start:]
        known = {*received, *(value for op in ops for value in op.outputs)}
        if not known.issuperset(value for op in ops for value in op.inputs) or not known.issuperset(outputs):
            return None
        return Graph(received, outputs, ops)


def _lower_supported(source: Source, target: Target, nhwc: frozenset[Node], on_cpu: dict[Node, Unsupported]) -> Trial:
    """Lower everything that is not excluded yet; exclude what cannot be lowered, with the lowering's reason."""
    walk = GraphLowering(source, target, nhwc)
    spans: dict[Node, tuple[int, int]] = {}
    for node in source.calls():
        if node in on_cpu:
            walk.receive(node)
            continue
        start = len(walk.lo.b.ops)
        try:
            with contained(f"lowering `{node.name}` ({overload(node)})"):
                walk.run(node)
            spans[node] = start, len(walk.lo.b.ops)
        except Unsupported as error:
            on_cpu[node] = error
            walk.receive(node)
    return Trial(walk, spans)


def _exclude_escaping(
    source: Source, walk: GraphLowering, on_cpu: dict[Node, Unsupported], carries: bool = False
) -> bool:
    """Exclude nodes whose result cannot be stored but is needed on the CPU. Return True if a new walk is needed."""
    again = False
    for node in reversed(list(source.calls())):
        if node in on_cpu:
            continue
        result = walk.results[node]
        outside = [u for u in node.users if (u.op != "call_function" or u in on_cpu) and overload(u) not in ASSERTIONS]
        shape = _check_shape(walk, node) if outside else ""
        if shape:
            inherited = any(_check_shape(walk, n) for n in node.all_input_nodes)
            on_cpu[node] = (InputRefused if inherited else Unsupported)(f"{SHAPE.sentence}; here {shape}", SHAPE.fix)
            again = again or any(u not in on_cpu for u in node.users if u.op == "call_function")
            continue
        if result == () or not (_is_inner(source, node, result) or isinstance(result, tuple)):
            continue
        if isinstance(result, Tensor) and can_be_real(walk.lo, result) and not _is_narrow(source, node, result):
            continue
        if carries and _can_carry(source, node, result):
            continue
        if not outside and node.users:
            continue
        on_cpu[node] = _find_missing(result) or _explain_escape(source, node, result, bool(outside))
        again = again or any(u not in on_cpu for u in node.users if u.op == "call_function")
    return again


def _check_shape(walk: GraphLowering, node: Node) -> str:
    """Return what is wrong with the shape of a result, which is a problem only where it is stored."""
    result = walk.results.get(node)
    return SHAPE.check(walk.lo, {"result": result}) if isinstance(result, Stored) else ""


def _is_inner(source: Source, node: Node, result: Result) -> bool:
    """Tell whether a result exists only inside a delegate."""
    return exists_only_inside(result) or _is_narrow(source, node, result)


def _is_narrow(source: Source, node: Node, result: Result) -> bool:
    """Tell whether torch holds a result in a type that the target does not have: int64 is int32 inside a delegate."""
    val = source.val(node)
    return isinstance(result, Tensor) and isinstance(val, torch.Tensor) and val.dtype is torch.int64


#: the types in which results of other types leave a delegate
CARRIERS = {torch.int64: torch.int32, torch.bool: torch.int8}


def _can_carry(source: Source, node: Node, result: Result) -> bool:
    """Tell whether a result of a type that the target does not have may leave a delegate in another type."""
    record, val = registry().find(overload(node)), source.val(node)
    if record is not None and record.moves and isinstance(val, torch.Tensor):
        given = source.val(node.all_input_nodes[0])
        # A cast from the other type is what the CPU is to do.
        if isinstance(given, torch.Tensor) and given.dtype is CARRIERS.get(val.dtype):
            return False
    return is_table(result) if isinstance(result, Stored) and result.lut is not None else _fits(node)


def _fits(node: Node) -> bool:
    """Tell whether 32 bits hold a result that torch has in 64 bits."""
    record = registry().find(overload(node))
    if overload(node) == "getitem" or (record is not None and record.moves):
        return all(n.op == "call_function" and _fits(n) for n in node.all_input_nodes)
    return record is not None and record.fits_int32


def _find_missing(result: Result) -> Unsupported | None:
    """Find why one of several results is not on the NPU: it keeps the others on the CPU as well."""
    items = result if isinstance(result, tuple) else ()
    return next((item for item in items if isinstance(item, Unsupported)), None)


def _explain_escape(source: Source, node: Node, result: Result, used: bool) -> Unsupported:
    if not used:
        return _UNUSED
    if isinstance(result, Const) and overload(node) not in QDQ:
        return _CONSTANT
    val = source.val(node)
    if isinstance(val, torch.Tensor) and val.dtype is torch.int64:
        why = "its result is int64, which the target does not support"
        return ResultRefused(why, "cast the result to int32", kind="int64")
    if isinstance(val, torch.Tensor) and val.dtype is torch.bool:
        why = f"{NO_STORED_BOOLEANS.sentence}; here the result is bool"
        return ResultRefused(why, NO_STORED_BOOLEANS.fix, kind="bool")
    fix = QUANTIZED_IO if overload(node) in QDQ else "quantize this part of the model, with its result"
    return ResultRefused("its result leaves the model in float", fix, kind="float")


def _clusters(source: Source, walk: GraphLowering, on_cpu: Mapping[Node, Unsupported]) -> dict[Node, Node]:
    """Group nodes that cannot be split (a pending result between them), by their first node."""
    parent: dict[Node, Node] = {n: n for n in source.calls() if n not in on_cpu and overload(n) not in ASSERTIONS}

    def find(node: Node) -> Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    order = {n: i for i, n in enumerate(source.graph.nodes)}
    for node in parent:
        result = walk.results[node]
        if isinstance(result, Opaque) or not (_is_inner(source, node, result) or isinstance(result, tuple)):
            continue
        for user in node.users:
            if user in parent:
                a, b = find(node), find(user)
                if a is not b:
                    first, second = (a, b) if order[a] < order[b] else (b, a)
                    parent[second] = first
    return {n: find(n) for n in parent}


def _levels(source: Source, cluster_of: Mapping[Node, Node]) -> dict[Node, int] | None:
    """Count the delegates that must have run before each cluster; None if clusters form a cycle.

    All clusters of one level can be one delegate: nothing between them passes through the CPU.
    """
    level: dict[Node, int] = {}
    nodes = list(source.calls())
    for _ in range(len(nodes) + 1):
        changed = False
        after: dict[Node, int] = {}
        for node in nodes:
            needed = 0
            for arg in node.all_input_nodes:
                inside = arg in cluster_of
                if inside and node in cluster_of:
                    needed = max(needed, level.get(cluster_of[arg], 0))
                elif inside:
                    needed = max(needed, level.get(cluster_of[arg], 0) + 1)
                else:
                    needed = max(needed, after.get(arg, 0))
            if node not in cluster_of:
                after[node] = needed
            elif needed > level.get(cluster_of[node], 0):
                level[cluster_of[node]] = needed
                changed = True
        if not changed:
            return level
        if max(level.values()) > len(nodes):
            return None
    return None


def _exclude_cycles(source: Source, cluster_of: Mapping[Node, Node], on_cpu: dict[Node, Unsupported]) -> bool:
    """Exclude a cluster that would have to wait for the CPU in the middle. Return True if there was one."""
    if _levels(source, cluster_of) is not None:
        return False
    members: dict[Node, list[Node]] = {}
    for node, cluster in cluster_of.items():
        members.setdefault(cluster, []).append(node)
    for cluster in sorted(members.values(), key=len, reverse=True):
        inside = set(cluster)
        between = _find_between(inside, on_cpu) if len(cluster) > 1 else None
        if between is not None:
            on_cpu.update(dict.fromkeys(cluster, Fused(between)))
            return True
    raise AssertionError("a circle between clusters without a cluster in it")


def _find_between(inside: set[Node], on_cpu: Mapping[Node, Unsupported]) -> Node | None:
    """Find a node on the CPU that needs a result of a cluster, and gives one to it; None if nothing does."""
    seen: set[tuple[Node, bool]] = set()
    todo: list[tuple[Node, Node | None]] = [(u, None) for n in inside for u in n.users if u not in inside]
    while todo:
        node, passed = todo.pop()
        if node in inside:
            if passed is not None:
                return passed
            continue
        passed = passed or (node if node in on_cpu else None)
        if (node, passed is not None) not in seen:
            seen.add((node, passed is not None))
            todo.extend((u, passed) for u in node.users)
    return None


def _make_partitions(source: Source, cluster_of: Mapping[Node, Node]) -> list[Partition]:
    level = _levels(source, cluster_of) or {}
    groups: dict[int, list[Node]] = {}
    home: dict[Node, int] = {}
    for node in source.calls():
        if overload(node) in ASSERTIONS:
            # It computes nothing: its input is in a delegate for other reasons, or not at all.
            found = next((home[n] for n in node.all_input_nodes if n in home), None)
        else:
            found = level.get(cluster_of[node], 0) if node in cluster_of else None
        if found is not None:
            groups.setdefault(found, []).append(node)
            home[node] = found
    return [_make_partition(source, groups[k], cluster_of) for k in sorted(groups)]


def _make_partition(source: Source, nodes: Sequence[Node], cluster_of: Mapping[Node, Node]) -> Partition:
    clusters: dict[Node, list[Node]] = {}
    for node in nodes:
        if node in cluster_of:
            clusters.setdefault(cluster_of[node], []).append(node)
    inside = set(nodes)
    inputs: list[Node] = []
    for node in nodes:
        # In the order of the call, which is the order in which exir numbers a delegate's inputs.
        for arg in node.all_input_nodes:
            if arg not in inside and arg not in source.constants and arg not in inputs:
                inputs.append(arg)
    outputs = [n for n in nodes if any(u not in inside and overload(u) not in ASSERTIONS for u in n.users)]
    return Partition(tuple(nodes), tuple(inputs), tuple(outputs), tuple(map(tuple, clusters.values())))


def _exclude_idle(partitions: Sequence[Partition], move_data: bool, on_cpu: dict[Node, Unsupported]) -> bool:
    """Exclude partitions that are not worth a delegate. Return True if there was one."""
    found = False
    for partition in partitions:
        if not partition.outputs:
            found = True
            on_cpu.update(dict.fromkeys(partition.nodes, _UNUSED))
        elif not partition.inputs or not any(_computes(n, move_data) for n in partition.nodes):
            found = True
            moves = Unsupported("it only moves data, and no computation on the NPU needs it", _MOVE_DATA)
            on_cpu.update(dict.fromkeys(partition.nodes, moves if partition.inputs else _CONSTANT))
    return found


_UNUSED = Unsupported("nothing uses its result", "remove it from the model")
_CONSTANT = Unsupported("its result is a constant, which no computation on the NPU needs", "nothing to fix")
#: A delegate that only moves data costs more than it saves, so this is not the default.
_MOVE_DATA = Hint(
    "nothing to fix; `delegate_data_movement = True` of the compile spec delegates it anyway",
    "nothing to fix; `--delegate-data-movement` delegates it anyway",
)


def _computes(node: Node, move_data: bool) -> bool:
    """Tell whether a node is a reason for a delegate."""
    name = overload(node)
    if name == "getitem" or name in QDQ:
        return False
    record = registry().find(name)
    return move_data or record is None or not record.moves
