"""What the layout of inputs and outputs costs: cycles in which the NPU only moves channels to the last dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch.fx import Node

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint
from tosaic.driver.delegate import Delegate
from tosaic.driver.kept import make_files
from tosaic.formats import blob
from tosaic.formats.tosa_reader import read
from tosaic.fx.source import QDQ, overload
from tosaic.ir.graph import Graph, Op, Value
from tosaic.npu.perf import Estimate
from tosaic.npu.reads import list_reads
from tosaic.npu.stream import parse
from tosaic.report.schedule import read_schedule

#: the share of the cycles from which a user should know
_LEAST_SHARE = 0.2
#: more operators than one change of a layout becomes
_MOST_OPS = 8
#: In a larger network such a change is a small part, and to attribute all of its commands takes seconds.
_LARGEST_GRAPH = 1000
#: what such a change is, or what it ends with where a convolution makes it
_LAST_KINDS = ("TRANSPOSE", "RESHAPE")


def find_layout_cost(delegates: Sequence[Delegate]) -> Hint | None:
    """Say which share of the cycles changes the layout of the program's inputs and outputs, if it is a large one."""
    graphs = [read(one.tosa, Budget(len(one.tosa))) for one in delegates]
    if sum(len(graph.ops) for graph in graphs) > _LARGEST_GRAPH:
        return None
    timed = [
        (one, graph, estimate)
        for one, graph in zip(delegates, graphs, strict=True)
        if (estimate := one.artifact.estimate_cycles()) is not None
    ]
    total = sum(estimate.cycles for _, _, estimate in timed)
    share = sum(_count_cycles(*each) for each in timed) / total if total else 0.0
    if share < _LEAST_SHARE:
        return None
    text = f"{share:.0%} of the NPU cycles change the layout of inputs and outputs: if the caller can pass images with"
    return Hint(f'{text} channels last, compile with `layout="nhwc"`', f"{text} channels last, add `--layout nhwc`")


def _count_cycles(delegate: Delegate, graph: Graph, estimate: Estimate) -> int:
    """Count the cycles of the operations that change the layout of an input or output of the program."""
    moves = {op for ops in _list_changes(delegate, graph) for op in ops}
    if not moves:
        return 0
    try:
        commands = list_reads(parse(blob.unpack(delegate.blob).cmd_data))
    except Invalid:
        # With `external`, the commands are not in the blob.
        return 0
    schedule = read_schedule(make_files(delegate), graph, commands)
    pure = [bool(step.ops) and all(op in moves or op.is_constant for op in step.ops) for step in schedule.steps]
    rows = zip(estimate.rows, commands, schedule.commands, strict=True)
    return sum(row.cycles for row, command, step in rows if command.ofm and step >= 0 and pure[step])


def _list_changes(delegate: Delegate, graph: Graph) -> Iterator[Sequence[Op]]:
    """List the operators of each change between channels second, at the outside, and channels last."""
    users = graph.uses()

    def go_on(value: Value) -> tuple[Op, Value] | None:
        readers = users.get(value, [])
        return (readers[0], readers[0].outputs[0]) if len(readers) == 1 and readers[0].outputs else None

    def go_back(value: Value) -> tuple[Op, Value] | None:
        return (value.op, value.op.inputs[0]) if value.op is not None and value.op.inputs else None

    for node, value in zip(delegate.partition.inputs, graph.inputs, strict=False):
        if _is_input(node):
            yield _follow(value, go_on)
    for node, value in zip(delegate.partition.outputs, graph.outputs, strict=False):
        if any(_is_output(user) for user in node.users):
            yield _follow(value, go_back)


def _follow(value: Value, step: Callable[[Value], tuple[Op, Value] | None]) -> list[Op]:
    """Follow the only reader, or the producer, of an image up to the same image with its channels last."""
    if value.rank != 4:
        return []
    n, c, h, w = value.shape
    found: list[Op] = []
    while len(found) < _MOST_OPS and (following := step(value)) is not None:
        op, value = following
        found.append(op)
        if value.shape == (n, h, w, c) and op.kind in _LAST_KINDS:
            return found
    return []


def _is_input(node: Node) -> bool:
    return node.op == "placeholder" or (overload(node) in QDQ and node.all_input_nodes[0].op == "placeholder")


def _is_output(user: Node) -> bool:
    return user.op == "output" or (overload(user) in QDQ and any(one.op == "output" for one in user.users))
