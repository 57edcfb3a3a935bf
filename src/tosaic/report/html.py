"""The HTML report: one file for a person, which needs no network."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tosaic.core.reason import Reason
from tosaic.core.tensor_info import TensorInfo
from tosaic.report.causes import group_causes
from tosaic.report.charts import (
    classify,
    format_bytes,
    format_count,
    list_bars,
    list_memory_maps,
    make_roofline,
    name_modules,
)
from tosaic.report.cycles import describe_time
from tosaic.report.modules import fold_graph
from tosaic.report.profile import Layer, Profile, shorten_op

_CODE = re.compile("`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A figure for one output: what was compared, on how many samples, and the result in dB; None if it is exact."""

    output: str
    what: str
    samples: int
    sqnr: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that pays: what to change, what it gains, and the command that makes it."""

    what: str
    gain: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of `verify`: whether it passed, and its lines."""

    ok: bool
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that the report shows.

    uses        the bytes in each memory, by what they hold
    reasons     nodes on the CPU; None if they are not known
    vela_cycles Vela's own estimate
    """

    title: str
    profile: Profile
    target: str
    uses: Mapping[str, Mapping[str, int]]
    program_bytes: int
    sha256: str
    version: str
    options: Mapping[str, str]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    reasons: tuple[Reason, ...] | None = None
    warnings: tuple[str, ...] = ()
    accuracy: tuple[Accuracy, ...] = ()
    check: Check | None = None
    advice: tuple[Advice, ...] = ()
    vela_cycles: float | None = None

    @property
    def fallbacks(self) -> int:
        """The operators on the CPU that compute: conversions at the inputs and outputs are not counted."""
        return sum(layer.device == "CPU" and not is_conversion(layer.op) for layer in self.profile.layers)

    @property
    def verdict(self) -> str:
        """One sentence on where the program runs."""
        on_npu = sum(layer.device != "CPU" for layer in self.profile.layers)
        if not on_npu:
            return f"Nothing runs on {self.target}: the whole program is on the CPU."
        if not self.fallbacks:
            converts = any(layer.device == "CPU" for layer in self.profile.layers)
            rest = "; the CPU only converts inputs and outputs" if converts else ""
            return f"Everything runs on {self.target}{rest}."
        noun = "operator" if self.fallbacks == 1 else "operators"
        verb = "is" if self.fallbacks == 1 else "are"
        return f"{self.fallbacks:,} {noun} {verb} on the CPU, {on_npu:,} layers run on {self.target}."

    @property
    def is_good(self) -> bool:
        failed = self.check is not None and not self.check.ok
        return not failed and not self.fallbacks and any(x.device != "CPU" for x in self.profile.layers)


def is_conversion(op: str) -> bool:
    """Tell whether an operator only quantizes or dequantizes."""
    return op.startswith("quantized_decomposed")


def render(data: ReportData) -> str:
    """Render the report as one HTML file."""
    profile = data.profile
    cycles = profile.cycles is not None
    context: dict[str, Any] = {
        **_make_head(data),
        "sections": fold_graph(profile),
        "roofline": make_roofline(profile) if cycles else None,
        "maps": list_memory_maps(profile),
        "causes": None if data.reasons is None else group_causes(data.reasons),
        "by_operator": list_bars(profile, {layer.index: layer.short_op for layer in profile.layers}) if cycles else [],
        "by_module": list_bars(profile, name_modules(profile.layers)) if cycles else [],
        "by_layer": list_bars(profile, {layer.index: _name_uniquely(layer) for layer in profile.layers})
        if cycles
        else [],
        "memories": list(dict.fromkeys(name for layer in profile.layers for name in layer.traffic)),
        "limits": sorted({layer.limit for layer in profile.layers if layer.limit}),
        "devices": list(dict.fromkeys(layer.device for layer in profile.layers)),
    }
    return _load_templates().get_template("report.html").render(context)


def render_head(data: ReportData) -> str:
    """Render the verdict and the totals, for a notebook."""
    return _load_templates().get_template("notebook.html").render(_make_head(data))


def _name_uniquely(layer: Layer) -> str:
    name = f"{layer.module} {layer.short_op}" if layer.module else layer.node or layer.short_op
    return f"{name} #{layer.index}"


def _make_head(data: ReportData) -> dict[str, Any]:
    profile = data.profile
    return {
        "data": data,
        "profile": profile,
        "limit_parts": [
            (name, classify(name), cycles, cycles / profile.cycles)
            for name, cycles in profile.limits.items()
            if profile.cycles
        ],
        "seconds": profile.cycles / profile.clock if profile.cycles and profile.clock else None,
    }


@functools.cache
def _load_templates() -> Environment:
    """Load the templates; everything that they insert is escaped."""
    found = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions: dict[str, Any] = {
        "bytes": format_bytes,
        "short": format_count,
        "time": describe_time,
        "color": classify,
        "comma": _separate,
        "percent": _to_percent,
        "conversion": is_conversion,
        "operator": shorten_op,
        "marked": _mark_code,
    }
    for name, function in functions.items():
        found.filters[name] = function
    return found


def _mark_code(text: str) -> Markup:
    """Escape a text of a report, and show what is in backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704


def _separate(number: int) -> str:
    return f"{number:,}"


def _to_percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 or not share else "< 0.1%"
