"""What Vela scheduled for a delegate, and the torch nodes behind it: from the delegate's files in the sidecar.

The files are not trusted: whatever does not fit together is left out, and the profile has fewer names.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tosaic.formats.sidecar import DelegateFiles, Json
from tosaic.formats.tosa_writer import names
from tosaic.ir.graph import Graph, Op, Value
from tosaic.npu.reads import CommandReads
from tosaic.tools.vela_debug import Table, list_rows, parse_number, read_tables

#: More operators than Vela fuses into one.
_MOST_FUSED = 256
#: Operators of torch that only change how numbers are stored.
_CONVERSIONS = "quantized_decomposed."
#: Operators that become DMAs, which the queue does not list.
_MOVES = ("Gather", "Scatter")
_COPY = re.compile(r"(_copy\d*)+$")


@dataclass(frozen=True, slots=True)
class Origin:
    """A torch node: its name, its operator, the path of its module, and its source line."""

    node: str
    op: str
    module: str
    where: str

    @property
    def converts(self) -> bool:
        """Whether it is a quantize or dequantize."""
        return self.op.startswith(_CONVERSIONS)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation that Vela scheduled: its name for it, its time, and the TOSA operators that it computes."""

    operator: str
    time: int
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor, or weights on their way, in the memory plan.

    start, end    its addresses, the end is the first byte after it
    first, last   the times between which it is needed; both included
    value         the TOSA value that it holds; None for weights and intermediate results of Vela
    """

    name: str
    memory: str
    usage: str
    start: int
    end: int
    first: int
    last: int
    value: Value | None = None

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def holds_weights(self) -> bool:
        """Whether Vela brings weights there before an operation needs them."""
        return self.usage == "OpBuffering"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of a delegate in order, the step of each command, and the memory plan."""

    graph: Graph
    origins: Mapping[Op, tuple[Origin, ...]]
    #: the operators that read each value
    users: Mapping[Value, Sequence[Op]]
    steps: tuple[Step, ...] = ()
    #: for each command of the stream, the index of its step; -1 if it is not known
    commands: tuple[int, ...] = ()
    buffers: tuple[Buffer, ...] = ()

    def find_origin(self, ops: Iterable[Op]) -> Origin | None:
        """Find the torch node that an operation is named after: the first that computes."""
        found = [origin for op in ops for origin in self.origins.get(op, ())]
        return next((origin for origin in found if not origin.converts), next(iter(found), None))


def read_origins(files: DelegateFiles, graph: Graph) -> dict[Op, tuple[Origin, ...]]:
    """Read the torch nodes of every TOSA operator."""
    by_name: dict[str, list[Origin]] = {}
    for item in files.origins:
        node, op, module, where = (_read_text(item, key) for key in ("node", "op", "module", "where"))
        made = item.get("tosa")
        for text in made if isinstance(made, list) else ():
            if isinstance(text, str):
                by_name.setdefault(text.partition(":")[0], []).append(Origin(node, op, module, where))
    labels = names(graph)
    found = {op: [o for value in op.outputs for o in by_name.get(labels.get(value, ""), ())] for op in graph.ops}
    return {op: tuple(dict.fromkeys(origins)) for op, origins in found.items()}


def _read_text(item: Mapping[str, Json], key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""


def read_schedule(files: DelegateFiles, graph: Graph, commands: Sequence[CommandReads]) -> Schedule:
    """Read what Vela scheduled for these commands."""
    tables = read_tables(files.debug_db)
    values = {name: value for value, name in names(graph).items()}
    sources = {row.get("id", ""): parse_number(row.get("ext_key", "")) for row in list_rows(tables, "source")}
    times = {row.get("id", ""): parse_number(row.get("time_index", "")) for row in list_rows(tables, "perf_debug")}
    rows = [row for row in list_rows(tables, "perf") if row.get("id")]
    stored = {value for row in rows if (value := values.get(row.get("name", ""))) is not None}
    numbers = [sources.get(row.get("source_id", ""), -1) for row in rows]
    firsts = [graph.ops[number] if 0 <= number < len(graph.ops) else None for number in numbers]
    listed = {row.get("scheduled_id") for row in list_rows(tables, "queue")}
    # What is fused into another operation has a row, but no command.
    alone = frozenset(one for one, row in zip(firsts, rows, strict=True) if row["id"] in listed and one is not None)
    steps: list[Step] = []
    for first, row in zip(firsts, rows, strict=True):
        last = values.get(_COPY.sub("", row.get("name", "")))
        ops = _collect(first, last, stored, _Others(alone, first))
        steps.append(Step(row.get("operator", ""), times.get(row["id"], -1), ops))
    places = {row["id"]: index for index, row in enumerate(rows)}
    queue = {
        parse_number(row.get("offset", "")): places[row["scheduled_id"]]
        for row in list_rows(tables, "queue")
        if row.get("scheduled_id") in places
    }
    found = _assign(commands, queue, steps)
    origins, buffers = read_origins(files, graph), _read_buffers(tables, values)
    return Schedule(graph, origins, graph.uses(), tuple(steps), found, buffers)


@dataclass(frozen=True, slots=True)
class _Others:
    """All operators of a set but one."""

    all: frozenset[Op]
    but: Op | None

    def __contains__(self, op: object) -> bool:
        return op in self.all and op is not self.but


def _collect(first: Op | None, last: Value | None, stored: Container[Value], others: Container[Op]) -> tuple[Op, ...]:
    """Collect the operators of a fused group, the one that it is scheduled as first.

    They lead from stored values, and from operators of `others`, to the value that the group stores; what is between
    them is never in memory.
    """
    group = {} if last is None else _walk_back(last, stored, others)
    if first is None or first in group:
        return tuple(dict.fromkeys([*filter(None, [first]), *reversed(group)]))
    # Where Vela has split an operator, the stored value may be that of a later group.
    before = (op for value in first.outputs for op in reversed(_walk_back(value, stored, others)))
    return tuple(dict.fromkeys([first, *before]))


def _walk_back(last: Value, stored: Container[Value], others: Container[Op]) -> dict[Op, None]:
    group: dict[Op, None] = {}
    todo = [last]
    while todo and len(group) < _MOST_FUSED:
        value = todo.pop()
        op = value.op
        if op is None or op in group or op.is_constant or op in others:
            continue
        if value is last or value not in stored:
            group[op] = None
            todo += op.inputs
    return group


def _assign(commands: Sequence[CommandReads], queue: Mapping[int, int], steps: Sequence[Step]) -> tuple[int, ...]:
    """Find the step of every command. The queue lists the last kernel operation of each part of a step."""
    found = [queue.get(command.offset, -1) for command in commands]
    listed = set(queue.values())
    moves = [index for index, step in enumerate(steps) if step.operator in _MOVES and index not in listed]
    after = -1
    for index in reversed(range(len(commands))):
        command = commands[index]
        if command.is_indexed and moves and moves[-1] < (after if after >= 0 else len(steps)):
            found[index] = moves.pop()
        elif found[index] < 0:
            # A DMA goes with the operation that needs its data, another command with the next one that is listed.
            found[index] = found[command.serves] if command.serves > index else after
        if command.ofm:
            after = found[index]
    before = -1
    for index, step in enumerate(found):
        found[index] = before = step if step >= 0 else before
    return tuple(found)


def _read_buffers(tables: Mapping[str, Table], values: Mapping[str, Value]) -> tuple[Buffer, ...]:
    found: list[Buffer] = []
    for row in list_rows(tables, "tensors"):
        numbers = [parse_number(row.get(key, "")) for key in ("start_address", "end_address", "start_time", "end_time")]
        start, end, first, last = numbers
        name = row.get("name", "")
        if 0 <= start < end and 0 <= first <= last:
            value = values.get(_COPY.sub("", name))
            found.append(Buffer(name, row.get("memory", ""), row.get("usage", ""), start, end, first, last, value))
    return tuple(found)
