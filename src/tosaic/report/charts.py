"""The geometry of the charts in the HTML report: plain numbers and labels, which a template draws as SVG."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tosaic.report.profile import Layer, MemoryPlan, Profile
from tosaic.report.schedule import Buffer

#: how many bars a list has before the rest becomes one bar
_MOST_BARS = 8
_KINDS = {"MACs": "mac", "output stage": "output", "issue of blocks": "issue", "DMA": "dma"}


def classify(limit: str) -> str:
    """Return the color class of a bottleneck."""
    if limit in _KINDS:
        return _KINDS[limit]
    name = limit.lower()
    return next((kind for kind in ("sram", "dram", "flash") if kind in name), "other")


def format_bytes(size: float) -> str:
    """Format a size in three digits."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def format_count(number: float) -> str:
    """Format a large number in three digits."""
    for unit in ("", " k", " M", " G"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its label, its value, its share of the whole, the color of each part, and a layer to link to."""

    label: str
    value: int
    share: float
    parts: tuple[tuple[str, float], ...]
    layer: int | None = None


def list_bars(profile: Profile, names: Mapping[int, str]) -> list[Bar]:
    """Add up the cycles of layers under these names, most first; each bar is divided by bottleneck."""
    total = profile.cycles or 0
    groups: dict[str, Counter[str]] = {}
    members: dict[str, list[int]] = {}
    for layer in profile.layers:
        if layer.cycles and layer.index in names:
            groups.setdefault(names[layer.index], Counter()).update(layer.limits)
            members.setdefault(names[layer.index], []).append(layer.index)
    ordered = sorted(groups, key=lambda name: -groups[name].total())
    shown, rest = ordered[:_MOST_BARS], ordered[_MOST_BARS:]
    if len(rest) == 1:
        shown, rest = ordered, []
    bars = [_make_bar(name, groups[name], total, members[name]) for name in shown]
    if rest:
        other = Counter[str]()
        for name in rest:
            other.update(groups[name])
        bars.append(_make_bar(f"{len(rest)} more", other, total, []))
    return bars


def _make_bar(label: str, limits: Counter[str], total: int, members: Sequence[int]) -> Bar:
    parts = tuple((classify(name), cycles / total) for name, cycles in limits.most_common())
    return Bar(label, limits.total(), limits.total() / total, parts, members[0] if len(members) == 1 else None)


def name_modules(layers: Iterable[Layer]) -> dict[int, str]:
    """Name each layer by its module, as deep as it takes to have a few groups."""
    found = [layer for layer in layers if layer.cycles]
    for depth in range(1, 4):
        names = {layer.index: ".".join(layer.module.split(".")[:depth]) or "(the model itself)" for layer in found}
        if len(set(names.values())) > 3:
            return names
    return {layer.index: layer.module or "(the model itself)" for layer in found}


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Point:
    """A layer in the roofline."""

    x: float
    y: float
    radius: float
    kind: str
    layer: int
    title: str


@dataclass(frozen=True, slots=True)
class Roof:
    """A limit in the roofline: a line with its name."""

    x1: float
    y1: float
    x2: float
    y2: float
    label: str
    kind: str

    @property
    def angle(self) -> float:
        return round(math.degrees(math.atan2(self.y2 - self.y1, self.x2 - self.x1)), 1)


@dataclass(frozen=True, slots=True)
class Roofline:
    """MACs per cycle against MACs per byte, both logarithmic, in a box of `width` x `height`.

    `without` is the share of the cycles in layers without MACs, which cannot be shown.
    """

    width: int
    height: int
    points: tuple[Point, ...]
    roofs: tuple[Roof, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    without: float


def make_roofline(profile: Profile, width: int = 1120, height: int = 400) -> Roofline | None:
    """Place every layer with MACs: against the memory that takes it longest."""
    found: list[tuple[Layer, float, float, str]] = []
    for layer in profile.layers:
        times = {name: moved.read + moved.written for name, moved in layer.traffic.items() if name in profile.bandwidth}
        slowest = max(times, key=lambda name: times[name] / profile.bandwidth[name], default="")
        if layer.macs and layer.cycles and slowest and times[slowest]:
            found.append((layer, layer.macs / times[slowest], layer.macs / layer.cycles, slowest))
    if not found or not profile.macs_per_cycle:
        return None
    peak = profile.macs_per_cycle
    low_x = min(*(x for _, x, _, _ in found), 1.0)
    high_x = max(*(x for _, x, _, _ in found), peak / min(profile.bandwidth.values()))
    low_y = min(*(y for _, _, y, _ in found), peak / 100)
    x_axis = _LogAxis(low_x / 1.5, high_x * 1.5, 0.0, float(width))
    y_axis = _LogAxis(low_y / 1.5, peak * 1.6, float(height), 0.0)
    points = [
        Point(
            x_axis.place(x),
            y_axis.place(y),
            3.0 + 16.0 * math.sqrt(profile.share(layer)),
            classify(layer.limit),
            layer.index,
            f"{layer.name} {layer.short_op}: {y:.3g} MACs per cycle, {x:.3g} per byte of {memory},"
            f" {profile.share(layer):.1%} of the cycles, limited by {layer.limit}",
        )
        for layer, x, y, memory in sorted(found, key=lambda item: -(item[0].cycles or 0))
    ]
    shown = sum(layer.cycles or 0 for layer, _, _, _ in found)
    return Roofline(
        width,
        height,
        tuple(points),
        tuple(_list_roofs(profile, x_axis, y_axis)),
        x_axis.list_ticks(),
        y_axis.list_ticks(),
        1.0 - shown / profile.cycles if profile.cycles else 0.0,
    )


@dataclass(frozen=True, slots=True)
class _LogAxis:
    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        part = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + part * (self.end - self.start), 1)

    def list_ticks(self) -> tuple[Tick, ...]:
        powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
        return tuple(Tick(self.place(10.0**power), f"{10.0**power:g}") for power in powers)


def _list_roofs(profile: Profile, x_axis: _LogAxis, y_axis: _LogAxis) -> Iterator[Roof]:
    peak = profile.macs_per_cycle
    knee = peak / max(profile.bandwidth.values())
    yield Roof(
        x_axis.place(max(knee, x_axis.low)),
        y_axis.place(peak),
        x_axis.end,
        y_axis.place(peak),
        f"{peak} MACs per cycle",
        "mac",
    )
    for name, bandwidth in profile.bandwidth.items():
        begin = max(x_axis.low, y_axis.low / bandwidth)
        end = min(x_axis.high, peak / bandwidth)
        if begin < end:
            yield Roof(
                x_axis.place(begin),
                y_axis.place(begin * bandwidth),
                x_axis.place(end),
                y_axis.place(end * bandwidth),
                f"{name}, {bandwidth:g} B/cycle",
                classify(name),
            )


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A tensor in the memory map."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    label: str
    title: str
    layer: int | None


@dataclass(frozen=True, slots=True)
class Holder:
    """A tensor that is in memory at the peak."""

    label: str
    size: int
    first: int
    last: int
    layer: int | None


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """One memory of one delegate over time: addresses upward, steps of the schedule to the right."""

    delegate: int
    memory: str
    width: int
    height: int
    size: int
    peak: int
    peak_x: float
    peak_layer: int | None
    steps: int
    outline: str
    rectangles: tuple[Rectangle, ...]
    holders: tuple[Holder, ...]
    y_ticks: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...] = field(default=())


def list_memory_maps(profile: Profile, width: int = 1120, height: int = 360) -> list[MemoryMap]:
    """Draw the memory plan of every delegate, one map per memory."""
    return [_draw(profile, plan, memory, width, height) for plan in profile.plans for memory in plan.list_memories()]


def _draw(profile: Profile, plan: MemoryPlan, memory: str, width: int, height: int) -> MemoryMap:
    buffers = [buffer for buffer in plan.buffers if buffer.memory == memory]
    size = max(buffer.end for buffer in buffers)
    first, last = min(b.first for b in buffers), max(b.last for b in buffers)
    steps = last + 1 - first

    def place_x(time: int) -> float:
        return round((time - first) / steps * width, 2)

    def place_y(address: int) -> float:
        return round(height - address / size * height, 2)

    used = plan.measure(memory)
    peak_time, peak = max(used, key=lambda item: item[1])
    outline = [f"M0 {height}"]
    for time, live in used:
        outline.append(f"H{place_x(time)}V{place_y(live)}")
    rectangles: list[Rectangle] = []
    for buffer in sorted(buffers, key=lambda buffer: buffer.first):
        label, layer = _name_buffer(profile, plan, buffer)
        x, right = place_x(buffer.first), place_x(buffer.last + 1)
        y, bottom = place_y(buffer.end), place_y(buffer.start)
        wide = right - x > 7.0 * len(label) and bottom - y > 13
        title = f"{label}: {buffer.size:,} bytes at {buffer.start:,}, steps {buffer.first} to {buffer.last}"
        kind = "weights" if buffer.holds_weights else "map"
        box = (x, y, round(right - x, 2), round(bottom - y, 2))
        rectangles.append(Rectangle(*box, kind, label if wide else "", title, layer))
    at_peak = sorted((b for b in buffers if b.first <= peak_time <= b.last), key=lambda buffer: -buffer.size)
    holders = [(buffer, *_name_buffer(profile, plan, buffer)) for buffer in at_peak]
    return MemoryMap(
        delegate=plan.delegate,
        memory=memory,
        width=width,
        height=height,
        size=size,
        peak=peak,
        peak_x=place_x(peak_time),
        peak_layer=_find_layer(plan, peak_time),
        steps=steps,
        outline="".join(outline),
        rectangles=tuple(rectangles),
        holders=tuple(Holder(label, b.size, b.first, b.last, layer) for b, label, layer in holders),
        y_ticks=tuple(Tick(place_y(value), format_bytes(value)) for value in _list_round(size)),
        x_ticks=tuple(Tick(place_x(first + value), str(first + value)) for value in _list_round(steps)),
    )


def _list_round(top: int) -> list[int]:
    """List a few round numbers from 0 to this one."""
    step = 10 ** max(0, int(math.log10(max(1, top))))
    for part in (10, 5, 4, 2, 1):
        if step // part and top / (step / part) <= 6:
            step //= part
            break
    return list(range(0, top + 1, max(1, step)))


def _find_layer(plan: MemoryPlan, time: int) -> int | None:
    """Find the layer that runs at a time, or the last one before it."""
    times = [one for one in plan.layers if one <= time]
    return plan.layers[max(times)] if times else None


def _name_buffer(profile: Profile, plan: MemoryPlan, buffer: Buffer) -> tuple[str, int | None]:
    """Name a tensor after the layer that writes it, weights after the one that reads them."""
    index = plan.find_layer(buffer)
    layer = "" if index is None else _name(profile.layers[index])
    if buffer.holds_weights:
        return f"weights of {layer}" if layer else "weights", index
    return layer or buffer.name, index


def _name(layer: Layer) -> str:
    return f"{layer.module} {layer.short_op}" if layer.module else layer.node or layer.short_op
