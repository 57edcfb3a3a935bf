"""Writes ETDump files, the record of a run that `executorch.devtools.Inspector` reads.

Times are in nanoseconds. What a delegate has done is recorded per layer, under a name that the ETRecord of the program
has too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tosaic.formats.flatbuffer_writer import Field, TableData, write_flatbuffer

IDENTIFIER = b"ED00"
#: The slots of the schema's tables.
_RUNS = 1
_RUN_NAME, _RUN_EVENTS = 0, 3
_PROFILE_EVENT = 0
_NAME, _CHAIN, _INSTRUCTION, _LAYER, _METADATA, _START, _END = 0, 1, 2, 4, 5, 6, 7


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time: a call of the instruction with this number, or a layer of the delegate that it calls.

    `instruction` is -1 for the whole run. `metadata` are bytes for a program that evaluates the file.
    """

    name: str
    instruction: int
    start: int
    end: int
    layer: str = ""
    metadata: bytes = b""


def name_layer(module: str, node: str) -> str:
    """Return the name of a layer, which no other layer of the program has."""
    return f"{module}.{node}" if module else node


def write(events: Sequence[Event], name: str = "Execute") -> bytes:
    """Return an ETDump with one run."""
    rows = [TableData({_PROFILE_EVENT: _describe(event)}) for event in events]
    run = TableData({_RUN_NAME: name, _RUN_EVENTS: rows})
    return write_flatbuffer(TableData({0: ("I", 0), _RUNS: [run]}), IDENTIFIER, size_prefixed=True)


def _describe(event: Event) -> TableData:
    fields: dict[int, Field] = {
        _NAME: event.name,
        _CHAIN: ("i", 0),
        _INSTRUCTION: ("i", event.instruction),
        _START: ("Q", event.start),
        _END: ("Q", event.end),
    }
    if event.layer:
        fields[_LAYER] = event.layer
    if event.metadata:
        fields[_METADATA] = event.metadata
    return TableData(fields)
