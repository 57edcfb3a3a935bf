"""What a run did, as the lines that Arm's runner prints on a device, and as data.

Nothing here is measured on a device. A figure that is an estimate says so, and by whom; one that nobody estimates is
left open.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from tosaic.ethosu import blob as ethosu_blob
from tosaic.runtime.host import BACKEND, Call
from tosaic.runtime.npy import Array
from tosaic.runtime.pte import Plan, Pte, Tensor
from tosaic.targets import ACCELERATORS, Family

VERSION = 1

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_U55_EVENTS = (
    "ETHOSU_PMU_AXI0_RD_DATA_BEAT_RECEIVED",
    "ETHOSU_PMU_AXI1_RD_DATA_BEAT_RECEIVED",
    "ETHOSU_PMU_AXI0_WR_DATA_BEAT_WRITTEN",
    "ETHOSU_PMU_NPU_IDLE",
)
_U85_EVENTS = (
    "ETHOSU_PMU_SRAM_RD_DATA_BEAT_RECEIVED",
    "ETHOSU_PMU_SRAM_WR_DATA_BEAT_WRITTEN",
    "ETHOSU_PMU_EXT_RD_DATA_BEAT_RECEIVED",
    "ETHOSU_PMU_EXT_WR_DATA_BEAT_WRITTEN",
    "ETHOSU_PMU_NPU_IDLE",
    "ETHOSU_PMU_MAC_ACTIVE",
    "ETHOSU_PMU_WD_ACTIVE",
)
#: The events that the runner counts, by family.
PMU_EVENTS: Mapping[Family, tuple[str, ...]] = MappingProxyType(
    {"u55": _U55_EVENTS, "u65": _U55_EVENTS, "u85": _U85_EVENTS, "tosa": ()}
)
#: The bytes that one beat moves: the width of the family's memory ports.
_BEAT: Mapping[Family, int] = MappingProxyType({"u55": 8, "u65": 16, "u85": 16})
_OUTSIDE = ("dram", "on_chip_flash", "off_chip_flash")
#: What C calls each type in an output line.
_C_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "float32": "float",
        "float64": "double",
        "float16": "half",
        "int8": "char",
        "uint8": "byte",
        "int16": "short",
        "int32": "int",
        "int64": "long",
        "bool": "bool",
    }
)


@dataclass(frozen=True, slots=True)
class Figures:
    """An estimate for one run of a delegate: NPU cycles, PMU events by name, and who says so."""

    cycles: float | None = None
    events: Mapping[str, float] = field(default_factory=dict[str, float])
    source: str = ""


def estimate(summary: Mapping[str, float], family: Family) -> Figures:
    """Figures from Vela's summary: its cycles, and its bytes per memory as beats of the family's ports."""
    if "cycles_total" not in summary:
        return Figures()

    def count(memories: Sequence[str], direction: str) -> float:
        names = [f"{memory}_{what}_{direction}_bytes" for memory in memories for what in ("feature_map", "weight")]
        return math.ceil(sum(summary.get(name, 0.0) for name in names) / _BEAT.get(family, 16))

    read, write = (count(("sram",), direction) for direction in ("read", "write"))
    outside_read, outside_write = (count(_OUTSIDE, direction) for direction in ("read", "write"))
    beats = {
        "ETHOSU_PMU_AXI0_RD_DATA_BEAT_RECEIVED": read,
        "ETHOSU_PMU_AXI1_RD_DATA_BEAT_RECEIVED": outside_read,
        "ETHOSU_PMU_AXI0_WR_DATA_BEAT_WRITTEN": write,
        "ETHOSU_PMU_SRAM_RD_DATA_BEAT_RECEIVED": read,
        "ETHOSU_PMU_SRAM_WR_DATA_BEAT_WRITTEN": write,
        "ETHOSU_PMU_EXT_RD_DATA_BEAT_RECEIVED": outside_read,
        "ETHOSU_PMU_EXT_WR_DATA_BEAT_WRITTEN": outside_write,
    }
    events = {name: beats[name] for name in PMU_EVENTS[family] if name in beats}
    return Figures(summary["cycles_total"], events, "Vela's estimate")


@dataclass(frozen=True, slots=True)
class Init:
    """A delegate as it is loaded: where its blob begins in the file, and what memory it needs to run."""

    backend: str
    offset: int
    size: int
    scratch: int


@dataclass(frozen=True, slots=True)
class RunLog:
    """One run. `figures` has one entry per delegate."""

    file: str
    engine: str
    model_size: int
    methods: int
    method: str
    planned: tuple[int, ...]
    delegates: tuple[Init, ...]
    calls: tuple[Call, ...]
    input_bytes: int
    target: str
    events: tuple[str, ...]
    figures: tuple[Figures, ...]
    outputs: tuple[Array, ...]

    @property
    def scratch(self) -> int:
        """The memory that delegates take while they run, one after the other."""
        return max((delegate.scratch for delegate in self.delegates), default=0)

    def total(self) -> Figures:
        """The figures of all delegate calls together; open where one of them is."""
        ran = [self.figures[call.index] for call in self.calls if call.kind == "delegate"]
        known = [figures.cycles for figures in ran if figures.cycles is not None]
        events = {
            name: sum(figures.events[name] for figures in ran)
            for name in self.events
            if ran and all(name in figures.events for figures in ran)
        }
        sources = ", ".join(dict.fromkeys(figures.source for figures in ran if figures.source))
        return Figures(sum(known) if ran and len(known) == len(ran) else None, events, sources)

    def to_text(self, max_values: int | None = None) -> str:
        """The log; of each output at most so many values."""
        return "\n".join([*(f"I [tosaic] {line}" for line in self._lines()), *self._output_lines(max_values)])

    def _lines(self) -> Iterator[str]:
        yield f"Model `{self.file}`, engine {self.engine}"
        yield f"Model PTE file loaded. Size: {self.model_size} bytes."
        yield f"Model buffer loaded, has {self.methods} methods"
        yield f"Running method {self.method}"
        yield "Method allocator: no pool of fixed size, this engine takes what it needs"
        for index, size in enumerate(self.planned):
            yield f"Setting up planned buffer {index}, size {size}."
        for delegate in self.delegates:
            yield f"{delegate.backend}::init at 0x{delegate.offset:x} of the file, {delegate.size} bytes"
        yield "Method loaded."
        yield "Preparing inputs..."
        yield f"Input prepared, {self.input_bytes} bytes"
        yield "Starting the model execution..."
        for call in self.calls:
            if call.kind == "delegate":
                yield f"{call.name}::execute at 0x{self.delegates[call.index].offset:x} of the file"
        yield from self._profile_lines()
        yield from self._memory_lines()
        yield "Model executed successfully."

    def _profile_lines(self) -> Iterator[str]:
        total = self.total()
        ran = [call for call in self.calls if call.kind == "delegate"]
        yield f"NPU Inferences : {len(ran)}"
        yield f"NPU delegations: {len(self.delegates)}"
        yield "Profiler report, cycles per operator:"
        for call in ran:
            cycles = self.figures[call.index]
            yield f"{call.name} {call.index} : cycle_cnt : {_show(cycles.cycles, cycles.source)} NPU cycles"
        for name, count in Counter(call.name for call in self.calls if call.kind == "kernel").items():
            yield f"{name} : {count} calls : cycle_cnt : {_show(None)} CPU cycles"
        yield f"Operator(s) total: {_show(total.cycles, total.source)} NPU cycles"
        yield f"Inference runtime: {_show(None)} CPU cycles total"
        yield "NOTE: nothing was measured on a device; no CPU is modelled, so its cycles and the ratio are open"
        yield f"Inference CPU ratio: {_show(None)}"
        yield f"Inference NPU ratio: {_show(None)}"
        yield f"cpu_wait_for_npu_cntr : {_show(None)} CPU cycles"
        if not self.events:
            return
        yield f"Ethos-U PMU report ({self.target}):"
        yield f"ethosu_pmu_cycle_cntr : {_show(total.cycles, total.source)}"
        for index, name in enumerate(self.events):
            yield f"ethosu_pmu_cntr{index} : {_show(total.events.get(name), total.source)}"
        yield f"Ethos-U PMU Events:[{', '.join(self.events)}]"

    def _memory_lines(self) -> Iterator[str]:
        planned = sum(self.planned)
        yield f"model_pte_loaded_size:     {self.model_size} bytes."
        yield f"method_allocator_used:     {planned + self.input_bytes} bytes without the runtime's own records"
        yield f"method_allocator_planned:  {planned} bytes"
        yield f"method_allocator_loaded:   {_show(None)}, the runtime's own records"
        yield f"method_allocator_input:    {self.input_bytes} bytes"
        yield f"method_allocator_executor: {_show(None)}, the runtime's own records"
        yield f"temp_allocator_used:       {self.scratch} bytes"

    def _output_lines(self, max_values: int | None) -> Iterator[str]:
        yield f"I [tosaic] {len(self.outputs)} outputs:"
        for index, array in enumerate(self.outputs):
            kind = _C_NAMES.get(str(array.dtype), str(array.dtype))
            flat = array.reshape(-1)
            for position, value in enumerate(flat[:max_values].tolist()):
                text = f"{value:f}" if array.dtype.kind == "f" else str(int(value)) if kind == "bool" else str(value)
                yield f"Output[{index}][{position}]: ({kind}) {text}"
            if max_values is not None and flat.size > max_values:
                yield f"Output[{index}]: {flat.size - max_values} values more"
        yield "I [tosaic] Program complete, exiting."

    def to_dict(self, max_values: int | None = None) -> dict[str, Json]:
        """The same as data that JSON takes; what is not known is null."""
        total = self.total()
        calls: list[Json] = [{"kind": call.kind, "name": call.name, "index": call.index} for call in self.calls]
        delegates: list[Json] = [
            {
                "backend": delegate.backend,
                "offset": delegate.offset,
                "size": delegate.size,
                "scratch": delegate.scratch,
                "estimate": _figures_to_dict(figures),
            }
            for delegate, figures in zip(self.delegates, self.figures, strict=True)
        ]
        return {
            "version": VERSION,
            "file": self.file,
            "engine": self.engine,
            "model_size": self.model_size,
            "methods": self.methods,
            "method": self.method,
            "target": self.target,
            "delegates": delegates,
            "calls": calls,
            "estimate": _figures_to_dict(total),
            "pmu_events": list(self.events),
            "memory": {
                "planned": list(self.planned),
                "input": self.input_bytes,
                "scratch": self.scratch,
            },
            "outputs": [_array_to_dict(array, max_values) for array in self.outputs],
        }


def make_log(
    pte: Pte,
    method: str,
    *,
    file: str,
    engine: str,
    calls: Sequence[Call],
    outputs: Sequence[Array],
    figures: Sequence[Figures] = (),
) -> RunLog:
    """The log of a run. `figures` are those of the delegates in order; without them, figures are open."""
    plan = pte.find(method)
    target = find_target(plan)
    family: Family = ACCELERATORS[target].family if target else "tosa"
    delegates = tuple(
        Init(
            delegate.id,
            delegate.offset,
            len(delegate.blob),
            ethosu_blob.unpack(delegate.blob, named=pte.named_data).scratch_size if delegate.id == BACKEND else 0,
        )
        for delegate in plan.delegates
    )
    return RunLog(
        file=file,
        engine=engine,
        model_size=pte.size,
        methods=len(pte.plans),
        method=method,
        planned=plan.planned_sizes,
        delegates=delegates,
        calls=tuple(calls),
        input_bytes=sum(v.nbytes for i in plan.inputs if isinstance(v := plan.values[i], Tensor)),
        target=target,
        events=PMU_EVENTS[family],
        figures=(*figures, *[Figures()] * len(delegates))[: len(delegates)],
        outputs=tuple(outputs),
    )


def find_target(plan: Plan) -> str:
    """The accelerator that a program was compiled for, as its delegates say; empty if there is none."""
    for delegate in plan.delegates:
        name = dict(delegate.compile_specs).get("target", b"").decode("ascii", "replace")
        if delegate.id == BACKEND and name in ACCELERATORS:
            return name
    return ""


def _show(value: float | None, source: str = "") -> str:
    return "(not known)" if value is None else f"{value:.0f} ({source or 'an estimate'})"


def _figures_to_dict(figures: Figures) -> Json:
    return {"npu_cycles": figures.cycles, "events": dict(figures.events), "source": figures.source or None}


def _array_to_dict(array: Array, max_values: int | None) -> Json:
    flat = array.reshape(-1)
    values: list[Json] = flat[:max_values].tolist()
    if array.dtype.kind == "f" and not np.isfinite(flat[:max_values].astype(np.float64)).all():
        # JSON has no infinity and no NaN.
        values = [value if isinstance(value, float) and math.isfinite(value) else str(value) for value in values]
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": values}
