"""The ETDump of a run: for every call and every layer of the NPU the time that the cycle model estimates.

Nothing in it is measured. The CPU is not modeled, so its calls take no time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tosaic.formats import etdump
from tosaic.formats.etdump import Event, name_layer
from tosaic.formats.sidecar import DelegateFiles, Json, Sidecar
from tosaic.formats.tosa_reader import read as read_tosa
from tosaic.formats.tosa_writer import names
from tosaic.ir.graph import Graph
from tosaic.npu.operation import Kind
from tosaic.npu.perf import Estimate, Row
from tosaic.report.cycles import SOURCE, name_limit
from tosaic.report.log import DelegateInfo, RunLog
from tosaic.tools.vela_debug import Table, read_tables

_NANOSECONDS = 1e9
#: how the runtime names the events of a run
_RUN, _DELEGATE, _KERNEL = "Method::execute", "DELEGATE_CALL", "native_call_"
_QUANTIZE = "quantized_decomposed."
_NO_FILES = DelegateFiles(tosa=b"")


def make_etdump(log: RunLog, beside: Sidecar | None = None) -> bytes:
    """Return the ETDump of a run. The layers are named if the .tosaic file of the program is given."""
    files = list(beside.delegates) if beside is not None else []
    events: list[Event] = []
    now = 0
    for call in log.calls:
        start = now
        if call.kind == "delegate":
            delegate = log.delegates[call.index]
            known = files[call.index] if call.index < len(files) else _NO_FILES
            layers = list(_time_layers(delegate, known, call.instruction, start))
            now += _count_ns(delegate.estimate, delegate.cycles)
            events += [Event(_DELEGATE, call.instruction, start, now), *layers]
        else:
            events.append(Event(f"{_KERNEL}{call.name.rpartition('::')[2]}", call.instruction, start, now))
    return etdump.write([Event(_RUN, -1, 0, now), *events])


def _count_ns(found: Estimate | None, cycles: int | None) -> int:
    return 0 if found is None or cycles is None else round(cycles / found.clock * _NANOSECONDS)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer of a delegate, from the origins in the .tosaic file; without one, an operation of the NPU."""

    name: str
    op: str
    where: str


def _time_layers(delegate: DelegateInfo, files: DelegateFiles, instruction: int, start: int) -> Iterator[Event]:
    """Yield one event per layer, in the order in which they begin; DMAs run beside them and have none."""
    found = delegate.estimate
    if found is None:
        return
    layers = _find_layers(files)
    rows: dict[_Layer, list[Row]] = {}
    last: _Layer | None = None
    for row in (row for row in found.rows if row.kind != Kind.DMA.name):
        # The database lists only the first of several commands of one operator.
        last = layers.get(str(row.offset)) or last
        rows.setdefault(last or _Layer(f"0x{row.offset:06x} {row.name}", row.name, ""), []).append(row)
    for layer, own in rows.items():
        cycles = sum(row.cycles for row in own)
        slowest = max(own, key=lambda row: row.cycles)
        metadata = {
            "source": SOURCE,
            "cycles": cycles,
            "limit": name_limit(slowest),
            "macs": sum(row.macs for row in own),
            "op": layer.op,
            "where": layer.where,
        }
        end = start + _count_ns(found, cycles)
        yield Event("", instruction, start, end, layer.name, json.dumps(metadata).encode())
        start = end


def _find_layers(files: DelegateFiles) -> dict[str, _Layer]:
    """Find the layer of every command that Vela's debug database lists, by its offset as text."""
    if not files.tosa or not files.debug_db:
        return {}
    tables = read_tables(files.debug_db)
    keys = _read_column(tables, "source", "ext_key")
    sources = _read_column(tables, "perf", "source_id")
    owners = _find_owners(read_tosa(files.tosa), files)
    found: dict[str, _Layer] = {}
    for offset, number in _read_column(tables, "queue", "scheduled_id", key="offset").items():
        layer = owners.get(keys.get(sources.get(number, ""), ""))
        if layer is not None:
            found[offset] = layer
    return found


def _find_owners(graph: Graph, files: DelegateFiles) -> dict[str, _Layer]:
    """Find the layer of every operator of a TOSA graph, by its position as text.

    Where several nodes were lowered to one operator, it belongs to the first that is not a quantize or dequantize.
    """
    makers: dict[str, Mapping[str, Json]] = {}
    for origin in files.origins:
        made = origin.get("tosa")
        for text in made if isinstance(made, list) else ():
            held = makers.get(str(text))
            if held is None or (_is_quantize(held) and not _is_quantize(origin)):
                makers[str(text)] = origin
    labels = names(graph)
    owners: dict[str, _Layer] = {}
    for position, op in enumerate(graph.ops):
        origin = next((makers[t] for v in op.outputs if (t := f"{labels[v]}:{op.kind}") in makers), None)
        if origin is not None:
            module, node, name, where = (str(origin.get(key, "")) for key in ("module", "node", "op", "where"))
            owners[str(position)] = _Layer(name_layer(module, node), name, where)
    return owners


def _is_quantize(origin: Mapping[str, Json]) -> bool:
    return str(origin.get("op", "")).startswith(_QUANTIZE)


def _read_column(tables: Mapping[str, Table], name: str, column: str, key: str = "id") -> dict[str, str]:
    """Read a column of a table by the values of another; empty if the database lacks one of them."""
    table = tables.get(name, Table((), ()))
    if column not in table.columns or key not in table.columns:
        return {}
    of, to = table.columns.index(key), table.columns.index(column)
    return {row[of]: row[to] for row in table.rows if len(row) == len(table.columns)}
