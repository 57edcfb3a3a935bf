"""What each layer of a model costs: cycles, SRAM and weights are traced back to TOSA operators, and to modules."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tosaic.core.budget import Budget
from tosaic.formats.sidecar import DelegateFiles, Json
from tosaic.formats.tosa_reader import read as read_tosa
from tosaic.formats.tosa_writer import names
from tosaic.npu.perf import Row
from tosaic.tools.vela_debug import Table, read_tables

#: Rows that no layer can be found for.
TRANSFERS, OTHERS = "(transfers)", "(others)"
_HEX = re.compile(r"0x[0-9a-f]{1,12}")
#: Vela copies a tensor to change its layout, and names the copy after it.
_COPY = re.compile(r"(_copy\d*)+$")


def count_layer_cycles(rows: Sequence[Row], files: DelegateFiles, budget: Budget) -> dict[str, int]:
    """Count the cycles of the commands of each layer, in the order of the commands.

    A layer is a module's path; an operator outside modules is a layer of its own. Commands overlap: the sum may be
    more than the estimate of the delegate.
    """
    layers = _name_commands(files, budget)
    counts: dict[str, int] = {}
    for row in rows:
        layer = layers.get(row.offset, TRANSFERS if row.kind == "DMA" else OTHERS)
        counts[layer] = counts.get(layer, 0) + row.cycles
    return counts


def name_operators(files: DelegateFiles) -> dict[str, str]:
    """Return the layer of each TOSA operator, by the operator's name in the origins (`t26:CONV2D`)."""
    layers: dict[str, str] = {}
    for origin in files.origins:
        made = origin.get("tosa")
        layer = str(origin.get("module") or origin.get("node") or OTHERS)
        for label in made if isinstance(made, list) else ():
            layers.setdefault(_get_text(label), layer)
    return layers


def _name_commands(files: DelegateFiles, budget: Budget) -> dict[int, str]:
    """Return the layer of each command, by its offset; empty if the debug database is damaged."""
    try:
        tables = read_tables(files.debug_db)
    except (ValueError, csv.Error):
        return {}
    graph = read_tosa(files.tosa, budget)
    values, layers = names(graph), name_operators(files)
    labels = [f"{values[op.outputs[0]]}:{op.kind}" if op.outputs else "" for op in graph.ops]
    operators = _map_column(tables, "source", "ext_key")
    scheduled = _map_column(tables, "perf", "source_id")
    found: dict[int, str] = {}
    for offset, number in _map_column(tables, "queue", "scheduled_id", key="offset").items():
        index = operators.get(scheduled.get(number, ""), "")
        position = int(index) if index.isdecimal() else len(labels)
        if offset.isdecimal() and position < len(labels):
            found[int(offset)] = layers.get(labels[position], OTHERS)
    return found


def _map_column(tables: Mapping[str, Table], name: str, column: str, key: str = "id") -> dict[str, str]:
    """Return the cells of a column of a table by those of its key; empty if there is no such column."""
    table = tables.get(name)
    if table is None or column not in table.columns or key not in table.columns:
        return {}
    at, by = table.columns.index(column), table.columns.index(key)
    return {row[by]: row[at] for row in table.rows if len(row) > max(at, by)}


def _get_text(value: Json) -> str:
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that a layer needs in a memory: the tensors it computes at the peak, or its weights."""

    layer: str
    what: str
    bytes: int


def list_peak_tensors(files: DelegateFiles) -> list[Held]:
    """List the tensors in SRAM at the time when Vela's memory plan needs most of it, the largest first."""
    try:
        table = read_tables(files.debug_db).get("tensors")
    except (ValueError, csv.Error):
        return []
    needed = ("name", "memory", "size", "start_time", "end_time", "usage")
    if table is None or any(column not in table.columns for column in needed):
        return []
    layers = {label.partition(":")[0]: layer for label, layer in name_operators(files).items()}
    at = [table.columns.index(column) for column in needed]
    rows = [tuple(row[i] for i in at) for row in table.rows if len(row) == len(table.columns)]
    live: list[tuple[int, int, Held]] = []
    for name, memory, size, start, end, usage in rows:
        if memory == "Sram" and start.isdecimal() and end.isdecimal() and _HEX.fullmatch(size):
            layer = layers.get(_COPY.sub("", name), "")
            what = "weights" if usage == "OpBuffering" else f"tensor `{name}`"
            live.append((int(start), int(end), Held(layer, what, int(size, 16))))
    peak: list[Held] = []
    for time in sorted({start for start, _, _ in live}):
        held = [one for start, end, one in live if start <= time <= end]
        if sum(one.bytes for one in held) > sum(one.bytes for one in peak):
            peak = held
    return sorted(peak, key=lambda one: -one.bytes)


def list_weights(files: DelegateFiles) -> list[Held]:
    """List the layers by the bytes of their stored weights, the largest first."""
    try:
        tables = read_tables(files.debug_db)
    except (ValueError, csv.Error):
        return []
    layers = {label.partition(":")[0]: layer for label, layer in name_operators(files).items()}
    sizes = _map_column(tables, "perf_debug", "weight_total_bytes")
    total: dict[str, int] = {}
    for number, name in _map_column(tables, "perf", "name").items():
        size = sizes.get(number, "")
        if size.isdecimal():
            layer = layers.get(_COPY.sub("", name), OTHERS)
            total[layer] = total.get(layer, 0) + int(size)
    return [Held(layer, "weights", size) for layer, size in sorted(total.items(), key=lambda item: -item[1]) if size]
