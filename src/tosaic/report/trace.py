"""The layer profile as a trace, in the JSON format that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Times are those of the estimate: a microsecond of the trace is one of the NPU at its clock. Operators on the CPU have
no duration, because their time is not modeled; they are marks between the delegates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tosaic.report.profile import Layer, MemoryPlan, Profile, Span

Event = dict[str, Any]

_PROCESS = 1
_LAYERS, _COMMANDS, _TRANSFERS, _CPU = range(1, 5)
_TRACKS = {_LAYERS: "layers", _COMMANDS: "NPU operations", _TRANSFERS: "DMA", _CPU: "operators on the CPU"}


def make_trace(profile: Profile) -> dict[str, Any]:
    """Make the trace of a profile: a track each for layers, operations and DMAs, and the bytes in use."""
    name = profile.accelerator or "program"
    events: list[Event] = [_mark("process_name", 0, {"name": f"{name}, method {profile.method}"})]
    for number, track in _TRACKS.items():
        events.append(_mark("thread_name", number, {"name": track}))
        events.append(_mark("thread_sort_index", number, {"sort_index": number}))
    clock = profile.clock or 1e9
    now = 0
    for layer in profile.layers:
        if layer.device == "CPU":
            events.append(_make_mark(layer, now, clock))
        events += _list_spans(layer, clock)
        now = max([now, *(span.start + span.cycles for span in layer.spans)])
    for plan in profile.plans:
        events += _count_memory(profile, plan, clock)
    about = {"source": "tosaic: an estimate from the commands, not a measurement", "clock": profile.clock}
    return {"displayTimeUnit": "ns", "otherData": about, "traceEvents": events}


def _mark(what: str, track: int, args: Mapping[str, Any]) -> Event:
    return {"name": what, "ph": "M", "pid": _PROCESS, "tid": track, "args": dict(args)}


def _to_microseconds(cycles: int, clock: float) -> float:
    return round(cycles / clock * 1e6, 6)


def _make_mark(layer: Layer, now: int, clock: float) -> Event:
    args = {"operator": layer.op, "module": layer.module, "source": layer.where, "reason": layer.reason}
    return {
        "name": f"{layer.name} {layer.short_op}" if layer.module else layer.short_op,
        "cat": "cpu",
        "ph": "i",
        "s": "t",
        "ts": _to_microseconds(now, clock),
        "pid": _PROCESS,
        "tid": _CPU,
        "args": {key: value for key, value in args.items() if value},
    }


def _list_spans(layer: Layer, clock: float) -> Iterator[Event]:
    for span in _join(layer):
        args = {
            "operator": layer.op,
            "fused": " ".join(layer.fused),
            "node": layer.node,
            "source": layer.where,
            "inputs": " ".join(layer.inputs),
            "outputs": " ".join(layer.outputs),
            "MACs": layer.macs,
            "limited by": layer.limit,
            "weight bytes": layer.weight_bytes,
            "activation bytes": layer.activation_bytes,
            "cycles of the layer": layer.cycles,
        }
        yield _make_slice(span, "layer", _LAYERS, clock, {key: value for key, value in args.items() if value})
    for kind, track, spans in (("command", _COMMANDS, layer.spans), ("dma", _TRANSFERS, layer.transfers)):
        yield from (_make_slice(span, kind, track, clock, {"layer": layer.name}) for span in spans)


def _join(layer: Layer) -> Iterator[Span]:
    """Join the operations of a layer that follow each other without a gap."""
    name = f"{layer.module or layer.node} {layer.short_op}".strip()
    start = end = -1
    for span in sorted(layer.spans, key=lambda span: span.start):
        if span.start != end:
            if end > start:
                yield Span(name, start, end - start)
            start = span.start
        end = span.start + span.cycles
    if end > start:
        yield Span(name, start, end - start)


def _make_slice(span: Span, kind: str, track: int, clock: float, args: Mapping[str, Any]) -> Event:
    begin, end = _to_microseconds(span.start, clock), _to_microseconds(span.start + span.cycles, clock)
    return {
        "name": span.name,
        "cat": kind,
        "ph": "X",
        "ts": begin,
        "dur": round(end - begin, 6),
        "pid": _PROCESS,
        "tid": track,
        "args": {"cycles": span.cycles, **args},
    }


def _count_memory(profile: Profile, plan: MemoryPlan, clock: float) -> Iterator[Event]:
    """Yield the bytes in use at the start of each layer, one counter per memory."""
    starts = {layer.index: layer.spans[0].start for layer in profile.layers if layer.spans}
    for memory in plan.list_memories():
        used = dict(plan.measure(memory))
        now = 0
        found: dict[int, int] = {}
        times = sorted({*plan.layers, *used})
        for time in times:
            now = used.get(time, now)
            if time in plan.layers and plan.layers[time] in starts:
                start = starts[plan.layers[time]]
                found[start] = max(found.get(start, 0), now)
        for start in sorted(found):
            yield {
                "name": f"{memory} in use",
                "ph": "C",
                "ts": _to_microseconds(start, clock),
                "pid": _PROCESS,
                "tid": 0,
                "args": {"bytes": found[start]},
            }
