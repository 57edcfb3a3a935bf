"""Finds the first command of a stream whose result differs from TOSA, and the line of the model it comes from.

Vela's debug database names, for every command, the tensor that it writes and the tensor's location in memory. The
TOSA reference model computes every such tensor; what a command wrote is compared as soon as it is written.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tosaic import npu
from tosaic.core.errors import TosaicError
from tosaic.engines import reference
from tosaic.formats.npy import Array
from tosaic.formats.sidecar import DelegateFiles, Json
from tosaic.formats.tosa_writer import names, read, serialize
from tosaic.ir.graph import NUMPY, DType, Graph, Value
from tosaic.npu.memory import Access, Memory
from tosaic.npu.operation import Kind, Op, read_map, read_ofm_shape
from tosaic.tools.vela_debug import Table, list_rows, parse_number, read_tables

#: Bytes of intermediate values that one run of the reference model writes.
_CHUNK = 64 << 20
_BRICK = 16
#: Types that are in memory as the reference model writes them.
_PLAIN = (DType.BOOL, DType.I8, DType.I16, DType.I32)
#: Vela copies a tensor to change its layout, and names the copy after it.
_COPY = re.compile(r"(_copy\d*)+$")
#: Operators that become DMA commands, which the queue does not list.
_MOVES = ("Gather", "Scatter")


def locate(blob: bytes, inputs: Sequence[Array], files: DelegateFiles, fast_scratch_size: int) -> dict[str, str]:
    """Find the first wrong operator: `op`, `through` (the last one fused with it), `command`, `node` and `where`.

    The result is empty if no command that the debug database lists writes a wrong value.
    """
    graph = read(files.tosa)
    plan = _Plan.of(files.debug_db, graph)
    search = _Search(plan, _compute(graph, plan.list_values(), inputs))
    try:
        npu.run_blob(blob, inputs, fast_scratch_size=fast_scratch_size, trace=search)
    except _Found as found:
        return _describe(found.offset, found.write, graph, files.origins)
    except TosaicError:
        # A stream that does not run to its end is reported elsewhere.
        pass
    return {}


def _compute(graph: Graph, values: Sequence[Value], inputs: Sequence[Array]) -> dict[Value, Array]:
    """Compute these values with the reference model, in as many runs as their size requires."""
    results: dict[Value, Array] = {}
    for chunk in _cut(values):
        arrays = reference.run(serialize(Graph(graph.inputs, chunk, graph.ops)), inputs)
        results.update(zip(chunk, arrays, strict=True))
    return results


def _cut(values: Sequence[Value]) -> Iterator[list[Value]]:
    chunk: list[Value] = []
    total = 0
    for value in values:
        size = value.type.size * np.dtype(NUMPY[value.dtype]).itemsize
        if chunk and total + size > _CHUNK:
            yield chunk
            chunk, total = [], 0
        chunk.append(value)
        total += size
    if chunk:
        yield chunk


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in Vela's memory plan, from one time to another. `is_rolling`: only some of its rows are kept."""

    value: Value
    start: int
    end: int
    first: int
    last: int
    bricks: bool
    is_rolling: bool

    def holds(self, access: Access) -> bool:
        low, high = access.bounds
        return self.start <= low and high <= self.end


@dataclass(frozen=True, slots=True)
class _Write:
    """What Vela scheduled at a time: the first TOSA operator of its group, and the tensors that it writes."""

    scheduled: str
    source: int
    shape: tuple[int, ...]
    tensors: tuple[_Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The writes of each command, by offset, and of DMA commands that the queue does not list."""

    writes: Mapping[int, _Write]
    moves: tuple[_Write, ...]

    @staticmethod
    def of(debug_db: str, graph: Graph) -> _Plan:
        tables = read_tables(debug_db)
        tensors = _read_tensors(tables, graph)
        sources = {row["id"]: row["ext_key"] for row in list_rows(tables, "source")}
        details = {row["id"]: row for row in list_rows(tables, "perf_debug")}
        scheduled: dict[str, _Write] = {}
        moves: list[str] = []
        for row in list_rows(tables, "perf"):
            number, detail = row["id"], details.get(row["id"], {})
            time = parse_number(detail.get("time_index", ""))
            found = tensors.get(_COPY.sub("", row["name"]), ())
            scheduled[number] = _Write(
                number,
                parse_number(sources.get(row["source_id"], "")),
                tuple(parse_number(detail.get(f"ofm_shape_{axis}", "")) for axis in "nhwc"),
                tuple(tensor for tensor in found if tensor.first <= time <= tensor.last),
            )
            if row["operator"] in _MOVES:
                moves.append(number)
        queue = {parse_number(row["offset"]): row["scheduled_id"] for row in list_rows(tables, "queue")}
        listed = set(queue.values())
        return _Plan(
            {offset: scheduled[number] for offset, number in queue.items() if number in scheduled},
            tuple(scheduled[number] for number in moves if number not in listed),
        )

    def list_values(self) -> list[Value]:
        """List the values that commands write, each once."""
        writes = (*self.writes.values(), *self.moves)
        return list(dict.fromkeys(tensor.value for write in writes for tensor in write.tensors))


def _read_tensors(tables: Mapping[str, Table], graph: Graph) -> dict[str, tuple[_Tensor, ...]]:
    """Read the tensors that hold a TOSA value, by its name."""
    values = {name: value for value, name in names(graph).items()}
    plain: dict[str, _Tensor] = {}
    copies: dict[str, list[_Tensor]] = {}
    for row in list_rows(tables, "tensors"):
        name = _COPY.sub("", row["name"])
        value = values.get(name)
        if value is None or value.op is None or value.dtype not in _PLAIN:
            continue
        tensor = _Tensor(
            value,
            parse_number(row["start_address"]),
            parse_number(row["end_address"]),
            parse_number(row["start_time"]),
            parse_number(row["end_time"]),
            row["format"] == "NHCWB16",
            row["usage"] == "OpCascade",
        )
        if name != row["name"]:
            copies.setdefault(name, []).append(tensor)
        elif name not in plain or plain[name].first < tensor.first:
            # Where Vela has split an operator into several, each result may have the name; the last one has the value.
            plain[name] = tensor
    return {name: (tensor, *copies.get(name, ())) for name, tensor in plain.items()}


class _Found(Exception):
    """Ends the simulation: later errors follow from the first."""

    def __init__(self, offset: int, write: _Write) -> None:
        super().__init__()
        self.offset, self.write = offset, write


@dataclass(slots=True)
class _Search:
    """Called after each operation; stops at the first one that wrote a wrong value."""

    plan: _Plan
    truth: Mapping[Value, Array]
    _images: dict[_Tensor, _Image | None] = field(default_factory=dict["_Tensor", "_Image | None"])
    _places: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def __call__(self, offset: int, op: Op, memory: Memory) -> None:
        accesses, memory.accesses = memory.accesses, []
        write = self.plan.writes.get(offset)
        candidates = (write,) if write is not None else self.plan.moves if _is_indexed(op) else ()
        # No accesses were recorded while the first operation ran.
        written = self._guess(op, candidates) if accesses is None else [a for a in accesses if a.writes]
        verdicts = [(c, self._matches(c, op, written, memory)) for c in candidates]
        wrong = next((c for c, verdict in verdicts if verdict is False), None)
        if wrong is not None and not any(verdict for _, verdict in verdicts):
            raise _Found(offset, wrong)

    def _guess(self, op: Op, candidates: Sequence[_Write]) -> list[Access]:
        """Return all of a tensor that only one command writes, or whose first rows it writes."""
        writers = Counter(t for write in (*self.plan.writes.values(), *self.plan.moves) for t in write.tensors)
        alone = [t for write in candidates for t in write.tensors if writers[t] == 1 or t.is_rolling]
        region = op.get("OFM_REGION") if op.kind.is_kernel else op.get("DMA0_DST_REGION", "region")
        return [Access(region, t.start, (t.end - t.start,), (1,), writes=True) for t in alone]

    def _matches(self, write: _Write, op: Op, written: Sequence[Access], memory: Memory) -> bool | None:
        """Tell whether a command wrote the expected values; None if that cannot be decided."""
        verdicts: list[bool] = []
        for tensor in write.tensors:
            held = [access for access in written if tensor.holds(access)]
            if held and tensor.is_rolling:
                verdicts.append(self._matches_rows(tensor, write, op, memory))
            elif held:
                image = self._find_image(tensor, write)
                verdicts += [image.matches(access, memory) for access in held if image is not None]
        return all(verdicts) if verdicts else None

    def _find_image(self, tensor: _Tensor, write: _Write) -> _Image | None:
        if tensor not in self._images:
            self._images[tensor] = _Image.of(tensor, _as_nhwc(self.truth[tensor.value], write.shape))
        return self._images[tensor]

    def _matches_rows(self, tensor: _Tensor, write: _Write, op: Op, memory: Memory) -> bool:
        """Compare the rows that stay in memory, the last ones: the commands of a cascade write from the top."""
        shape = read_ofm_shape(op)
        top, channel = self._places.get(write.scheduled, (0, 0))
        bottom, last = top + shape.height, channel + shape.depth
        wanted = _as_nhwc(self.truth[tensor.value], write.shape)
        self._places[write.scheduled] = (bottom, 0) if last >= wanted.shape[3] else (top, last)
        expected = wanted[0, top:bottom, :, channel:last]
        if expected.shape != tuple(shape):
            return True
        return bool(np.array_equal(expected, memory.load(read_map(op, "OFM"), shape)))


def _is_indexed(op: Op) -> bool:
    """Tell whether a DMA gathers or scatters."""
    if op.kind is not Kind.DMA or not op.family.has_u85_units:
        return False
    return any(op.get(f"DMA0_{side}_REGION", "idx_mode") for side in ("SRC", "DST"))


def _as_nhwc(array: Array, shape: tuple[int, ...]) -> Array:
    """Return a value in the four dimensions that Vela gives it."""
    if math.prod(shape) == array.size:
        return array.reshape(shape)
    return array.reshape(-1, *(1, 1, 1, *array.shape)[-3:])


@dataclass(frozen=True, slots=True)
class _Image:
    """The expected bytes of a tensor in memory; `known` marks those that are defined."""

    start: int
    data: npt.NDArray[np.uint8]
    known: npt.NDArray[np.bool_]
    is_bool: bool

    @staticmethod
    def of(tensor: _Tensor, value: Array) -> _Image | None:
        known: Array = np.ones(value.shape, np.bool_)
        if tensor.bricks:
            value, known = _to_bricks(value), _to_bricks(known)
        data = np.frombuffer(value.tobytes(), np.uint8)
        room = tensor.end - tensor.start - data.size
        if room < 0:
            return None
        marks = np.repeat(known.reshape(-1).astype(np.bool_), value.dtype.itemsize)
        return _Image(tensor.start, np.pad(data, (0, room)), np.pad(marks, (0, room)), value.dtype == np.bool_)

    def matches(self, access: Access, memory: Memory) -> bool:
        start = access.start - self.start
        shape, strides = access.shape, access.strides
        got: Array = np.ndarray(shape, np.uint8, memory.regions[access.region].data, access.start, strides)
        wanted: Array = np.ndarray(shape, np.uint8, self.data, start, strides)
        known: Array = np.ndarray(shape, np.bool_, self.known, start, strides)
        # Between operators, true is any nonzero number; only at the boundary is it 1.
        differs = (got != 0) != (wanted != 0) if self.is_bool else got != wanted
        return not bool((differs & known).any())


def _to_bricks(array: Array) -> Array:
    """Convert [n, h, w, c] to [n, h, c / 16, w, 16]."""
    n, h, w, c = array.shape
    full = np.zeros((n, h, w, c + -c % _BRICK), array.dtype)
    full[..., :c] = array
    return full.reshape(n, h, w, -1, _BRICK).transpose(0, 1, 3, 2, 4)


def _describe(offset: int, write: _Write, graph: Graph, origins: Sequence[Mapping[str, Json]]) -> dict[str, str]:
    """Describe the operators, the command and the user's line behind a wrong write."""
    labels = names(graph)
    last = write.tensors[0].value.op
    op = graph.ops[write.source] if 0 <= write.source < len(graph.ops) else last
    texts = [f"{labels[o.outputs[0]]}:{o.kind}" for o in (op, last) if o is not None and o.outputs]
    nothing: Mapping[str, Json] = {}
    origin = next((o for text in texts for o in origins if _was_lowered_to(o, text)), nothing)
    return {
        "op": texts[0],
        "through": texts[-1] if texts[-1] != texts[0] else "",
        "command": f"0x{offset:04x}",
        "node": str(origin.get("node", "")),
        "where": str(origin.get("where", "")),
    }


def _was_lowered_to(origin: Mapping[str, Json], text: str) -> bool:
    """Tell whether a torch node was lowered to this TOSA operator (`name:KIND`)."""
    made = origin.get("tosa")
    return isinstance(made, list) and text in made
