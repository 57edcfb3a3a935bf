"""Finds the first command of a stream whose result is not what TOSA says, and the line of the model it comes from.

Vela's debug database names, for every command, the tensor that it writes and the place of that tensor in memory. The
TOSA reference model gives the value of every such tensor; what a command wrote is compared as soon as it is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tosaic import npu
from tosaic.errors import TosaicError
from tosaic.npu.memory import Access, Memory
from tosaic.npu.record import Op, read_map, read_ofm_shape
from tosaic.npu.registers import Family
from tosaic.runtime.npy import Array
from tosaic.runtime.sidecar import DelegateFiles, Json
from tosaic.tools import reference
from tosaic.tools.vela_debug import Table, read_tables
from tosaic.tosa.flatbuffer import names, read, serialize
from tosaic.tosa.ir import NUMPY, Graph, Value

#: Bytes of intermediate values that one run of the reference model writes.
_CHUNK = 64 << 20
_BRICK = 16
_COPY = re.compile(r"(_copy\d*)+$")
_MEASURE = re.compile(r"\d+|0x[0-9a-f]+")


def locate(blob: bytes, inputs: Sequence[Array], files: DelegateFiles, fast_scratch_size: int) -> dict[str, str]:
    """The first wrong operator: `op`, `through` (the last one fused with it), `command`, `node` and `where`.

    Empty if no command that the debug database knows writes anything wrong.
    """
    graph = read(files.tosa)
    plan = _Plan.of(files.debug_db, graph)
    search = _Search(plan, _compute(graph, plan.wanted(), inputs))
    try:
        npu.run_blob(blob, inputs, fast_scratch_size=fast_scratch_size, trace=search)
    except _Found:
        pass
    except TosaicError:
        # The stream cannot be executed to its end: what was wrong before that is still worth telling.
        if search.first is None:
            raise
    return {} if search.first is None else _describe(search.first, plan, graph, files.origins)


def _compute(graph: Graph, values: Sequence[Value], inputs: Sequence[Array]) -> dict[Value, Array]:
    """The reference model's results for these values, in as many runs as their size asks for."""
    results: dict[Value, Array] = {}
    for chunk in _cut(values):
        arrays = reference.run(serialize(Graph(graph.inputs, chunk, graph.ops)), inputs)
        results.update(zip(chunk, arrays, strict=True))
    return results


def _cut(values: Sequence[Value]) -> Iterator[list[Value]]:
    chunk: list[Value] = []
    size = 0
    for value in values:
        bytes_ = value.type.size * np.dtype(NUMPY[value.dtype]).itemsize
        if chunk and size + bytes_ > _CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(value)
        size += bytes_
    if chunk:
        yield chunk


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in Vela's memory plan. `rolls` if only some of its rows are kept at a time."""

    value: Value
    start: int
    end: int
    bricks: bool
    rolls: bool


@dataclass(frozen=True, slots=True)
class _Write:
    """What a command computes: the first TOSA operator of its group, and the tensor that it writes."""

    scheduled: str
    source: int
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Commands by offset, and tensors by name."""

    writes: Mapping[int, _Write]
    tensors: Mapping[str, tuple[_Tensor, ...]]

    @staticmethod
    def of(debug_db: str, graph: Graph) -> _Plan:
        tables = read_tables(debug_db)
        values = {name: value for value, name in names(graph).items()}
        sources = {row["id"]: row["ext_key"] for row in _rows(tables, "source")}
        shapes = {row["id"]: tuple(int(row[f"ofm_shape_{axis}"]) for axis in "nhwc") for row in _rows(tables, "perf_debug")}
        scheduled = {row["id"]: row for row in _rows(tables, "perf")}
        writes: dict[int, _Write] = {}
        for row in _rows(tables, "queue"):
            found = scheduled.get(row["scheduled_id"])
            if found is None:
                continue
            source = sources.get(found["source_id"], "")
            writes[int(row["offset"])] = _Write(
                row["scheduled_id"],
                int(source) if source.isdecimal() else -1,
                _COPY.sub("", found["name"]),
                shapes.get(row["scheduled_id"], ()),
            )
        tensors: dict[str, tuple[_Tensor, ...]] = {}
        for row in _rows(tables, "tensors"):
            name = _COPY.sub("", row["name"])
            value = values.get(name)
            if value is None or not all(_MEASURE.fullmatch(row[c]) for c in ("start_address", "end_address")):
                continue
            tensor = _Tensor(
                value,
                int(row["start_address"], 0),
                int(row["end_address"], 0),
                row["format"] == "NHCWB16",
                row["usage"] == "OpCascade",
            )
            tensors[name] = (*tensors.get(name, ()), tensor)
        return _Plan(writes, tensors)

    def wanted(self) -> list[Value]:
        """The values that commands write, each once."""
        written = (tensor.value for write in self.writes.values() for tensor in self.tensors.get(write.name, ()))
        return list(dict.fromkeys(value for value in written if value.op is not None))


def _rows(tables: Mapping[str, Table], name: str) -> Iterator[dict[str, str]]:
    table = tables.get(name, Table((), ()))
    return (dict(zip(table.columns, row, strict=False)) for row in table.rows)


class _Found(Exception):
    """Ends the simulation: the rest follows from the first error."""


@dataclass(slots=True)
class _Search:
    """Is called after each operation, and keeps the first one that wrote something wrong."""

    plan: _Plan
    truth: Mapping[Value, Array]
    first: tuple[int, _Write] | None = None
    _images: dict[tuple[_Tensor, tuple[int, ...]], _Image | None] = field(default_factory=dict)
    _rows: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __call__(self, offset: int, op: Op, memory: Memory) -> None:
        accesses, memory.accesses = memory.accesses, []
        write = self.plan.writes.get(offset)
        if write is None:
            return
        written = _list_written(op, memory) if accesses is None else [a for a in accesses if a.writes]
        if not all(self._is_right(op, memory, write, access) for access in written):
            self.first = (offset, write)
            raise _Found
