"""The layer profile as a table on the terminal and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from tosaic.report.cycles import describe_duration, describe_traffic
from tosaic.report.profile import Layer, Profile, shorten_op
from tosaic.report.terminal import Page, count

_COLUMNS = ("cycles", "share", "limited by", "layer")
#: the columns of the CSV file, before two for each memory
_FIELDS = (
    *("index", "device", "delegate", "module", "node", "op", "fused", "where", "inputs", "outputs"),
    *("macs", "cycles", "share", "limit", "utilization", "dma_cycles", "weight_bytes", "activation_bytes", "commands"),
    *("reason", "fix"),
)
#: A spreadsheet takes a text that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def show_profile(page: Page, profile: Profile, file: str) -> None:
    """Print the output of `tosaic inspect --layers`."""
    page.title(f"layers of method `{profile.method}`: `{file}`", gap=False)
    page.pairs(_pair_totals(profile))
    page.title("layers in the order of execution")
    page.rows(_COLUMNS, [_describe_row(profile, layer) for layer in profile.layers])


def _pair_totals(profile: Profile) -> Iterator[tuple[str, str]]:
    if profile.cycles is not None:
        when = describe_duration(profile.cycles / profile.clock, profile.clock)
        used = f"{profile.utilization:.0%} of the MACs used"
        yield "NPU cycles", f"{profile.cycles:,} ({when}, {used}) on {profile.accelerator}, an estimate"
        yield "limited by", ", ".join(f"{name} {cycles:,}" for name, cycles in profile.limits.items())
    devices = dict.fromkeys(layer.device for layer in profile.layers)
    yield "layers", ", ".join(f"{sum(x.device == name for x in profile.layers)} on the {name}" for name in devices)
    for text in profile.missing:
        yield "not known", text


def _describe_row(profile: Profile, layer: Layer) -> tuple[str, ...]:
    cycles = "" if layer.cycles is None else f"{layer.cycles:,}"
    share = f"{profile.share(layer):.1%}" if cycles else ""
    return cycles, share, layer.limit if cycles else f"on the {layer.device}", describe_layer(layer)


def describe_layer(layer: Layer) -> str:
    """Describe a layer in one line: its name, its operators, its tensors, and what it costs."""
    operators = " + ".join([layer.short_op, *(shorten_op(op) for op in layer.fused if "." in op)])
    name = "" if layer.name == layer.op else f"`{layer.name}` "
    parts = [f"{name}{operators}"]
    # Vela adds operations that no operator of the model and no tensor of the TOSA graph stands for.
    is_known = bool(layer.inputs or layer.outputs)
    parts += [f"{', '.join(layer.inputs)} -> {', '.join(layer.outputs)}"] if is_known else []
    if layer.macs:
        parts.append(f"{count(layer.macs, 'MAC')} ({layer.utilization:.0%} used)")
    if layer.weight_bytes:
        parts.append(f"weights {layer.weight_bytes:,}")
    parts += [f"activations {layer.activation_bytes:,} bytes"] if is_known else []
    if layer.traffic:
        parts.append(f"moves {describe_traffic(layer.traffic)}")
    parts += [f"at {layer.where}"] if layer.where else []
    parts += [f"because {layer.reason}"] if layer.reason else []
    return ", ".join(parts)


def write_csv(profile: Profile) -> str:
    """Write the layers as CSV, one row each; a figure that is not known is empty."""
    memories = list(dict.fromkeys(name for layer in profile.layers for name in layer.traffic))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIELDS, *(f"{name}_{way}" for name in memories for way in ("read", "written"))])
    for layer in profile.layers:
        cells: list[object] = [_make_cell(profile, layer, name) for name in _FIELDS]
        for name in memories:
            moved = layer.traffic.get(name)
            cells += ["", ""] if moved is None else [moved.read, moved.written]
        writer.writerow(cells)
    return text.getvalue()


def _make_cell(profile: Profile, layer: Layer, name: str) -> object:
    if name == "share":
        return "" if layer.cycles is None else f"{profile.share(layer):.6f}"
    if name == "utilization":
        return f"{layer.utilization:.6f}" if layer.macs else ""
    value: str | float | tuple[str, ...] | None = getattr(layer, name)
    if isinstance(value, tuple):
        value = " ".join(value)
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return "" if value is None else value
