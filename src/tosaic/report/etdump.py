"""The ETDump of a run: for every call and every layer of the NPU the time that the cycle model estimates.

Nothing in it is measured. The CPU is not modeled, so its calls take no time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tosaic.formats import etdump
from tosaic.formats.etdump import Event, name_layer
from tosaic.report.cycles import SOURCE
from tosaic.report.log import RunLog
from tosaic.report.profile import Layer, Profile

_NANOSECONDS = 1e9
#: how the runtime names the events of a run
_RUN, _DELEGATE, _KERNEL = "Method::execute", "DELEGATE_CALL", "native_call_"


def make_etdump(log: RunLog, profile: Profile) -> bytes:
    """Return the ETDump of a run, with the layers of the program's profile."""
    events: list[Event] = []
    now = 0
    for call in log.calls:
        start = now
        if call.kind == "delegate":
            layers = list(_time_layers(profile, call.index, call.instruction, start))
            now = layers[-1].end if layers else start
            events += [Event(_DELEGATE, call.instruction, start, now), *layers]
        else:
            events.append(Event(f"{_KERNEL}{call.name.rpartition('::')[2]}", call.instruction, start, now))
    return etdump.write([Event(_RUN, -1, 0, now), *events])


def _time_layers(profile: Profile, delegate: int, instruction: int, start: int) -> Iterator[Event]:
    """Yield one event per layer, one after the other; their times add up to that of the delegate."""
    begin, cycles = start, 0
    for layer in profile.layers:
        if layer.delegate != delegate or layer.cycles is None:
            continue
        cycles += layer.cycles
        end = start + round(cycles / profile.clock * _NANOSECONDS)
        yield Event("", instruction, begin, end, _name_layer(layer), json.dumps(_describe(layer)).encode())
        begin = end


def _name_layer(layer: Layer) -> str:
    """Name a layer as the ETRecord does; without a .tosaic file it is an operation of the NPU."""
    return name_layer(layer.module, layer.node) if layer.node else f"0x{layer.offset or 0:06x} {layer.op}"


def _describe(layer: Layer) -> dict[str, str | int | None]:
    return {
        "source": SOURCE,
        "cycles": layer.cycles,
        "limit": layer.limit,
        "macs": layer.macs,
        "op": layer.op,
        "where": layer.where,
    }
