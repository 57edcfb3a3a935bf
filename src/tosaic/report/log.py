"""The log of a run, as the lines that Arm's runner prints on a device, and as data.

Nothing here is measured on a device. An estimated figure is marked as such, with its origin; an unknown one is
omitted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from textwrap import indent
from typing import TypeAlias

import numpy as np

from tosaic.board.execution import Execution
from tosaic.core.dtypes import DTYPES
from tosaic.engines.interpreter import Call
from tosaic.formats import blob as ethosu_blob
from tosaic.formats.blob import BACKEND
from tosaic.formats.npy import Array
from tosaic.formats.pte import Delegate, Pte, Tensor
from tosaic.formats.sidecar import Sidecar
from tosaic.npu.accelerator import ACCELERATORS
from tosaic.npu.perf import Estimate
from tosaic.npu.pmu import PMU_EVENTS, count_events
from tosaic.npu.stream import parse
from tosaic.report.cycles import SOURCE, describe_row, describe_sum, estimate_delegate
from tosaic.report.device import describe_device
from tosaic.report.terminal import Page, describe_counts

#: Version 1 had its number under `version` and no name.
SCHEMA = "tosaic-run/2"

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_UNKNOWN = "(not known)"
#: Backends of ExecuTorch whose delegates run on the CPU.
_ON_CPU = frozenset({"XnnpackBackend"})
#: How many of a delegate's operations the text lists; the data include all.
_ROWS = 10


@dataclass(frozen=True, slots=True)
class DelegateInfo:
    """A loaded delegate: the offset of its blob in the file, the memory it needs to run, and the cost of a run.

    `estimate` comes from its commands, `vela` is the compiler's figure for the cycles; None if unknown.
    """

    backend: str
    offset: int
    size: int
    scratch: int = 0
    accelerator: str = ""
    estimate: Estimate | None = None
    vela: float | None = None

    @property
    def cycles(self) -> int | None:
        return None if self.estimate is None else self.estimate.cycles

    def count(self, event: str) -> int | None:
        """Return a counter of the NPU."""
        return None if self.estimate is None else count_events(self.estimate).get(event)


@dataclass(frozen=True, slots=True)
class RunLog:
    """One run."""

    file: str
    engine: str
    model_size: int
    methods: int
    method: str
    planned: tuple[int, ...]
    delegates: tuple[DelegateInfo, ...]
    calls: tuple[Call, ...]
    input_bytes: int
    outputs: tuple[Array, ...]
    execution: Execution | None = None
    device: str = ""

    @property
    def scratch(self) -> int:
        """The memory that delegates use while they run, one after the other."""
        return max((delegate.scratch for delegate in self.delegates), default=0)

    @property
    def target(self) -> str:
        """The accelerator that the delegates were compiled for; empty if none is for an Ethos-U."""
        return next((delegate.accelerator for delegate in self.delegates if delegate.accelerator), "")

    @property
    def events(self) -> tuple[str, ...]:
        """The counters of that accelerator's family."""
        return PMU_EVENTS[ACCELERATORS[self.target].family] if self.target else ()

    @property
    def ran(self) -> list[DelegateInfo]:
        """The delegate of every delegate call but those on the CPU."""
        called = [self.delegates[call.index] for call in self.calls if call.kind == "delegate"]
        return [delegate for delegate in called if delegate.backend not in _ON_CPU]

    @property
    def cycles(self) -> float | None:
        """The estimate for all delegate calls together; None if one of them is unknown."""
        return _add([delegate.cycles for delegate in self.ran])

    @property
    def vela(self) -> float | None:
        """Vela's estimate, likewise."""
        return _add([delegate.vela for delegate in self.ran])

    def count(self, event: str) -> float | None:
        """Return a counter of the NPU summed over all delegate calls."""
        return _add([delegate.count(event) for delegate in self.ran])

    def to_text(self, max_values: int | None = None) -> str:
        """Format the log, with at most `max_values` values of each output; that of a board is its firmware's own."""
        if self.execution is not None:
            return describe_device(self.execution, max_values)
        return "\n".join([*(f"I [tosaic] {line}" for line in self._lines()), *self._output_lines(max_values)])

    def _lines(self) -> Iterator[str]:
        yield f"Model `{self.file}`, engine {self.engine}"
        yield f"Model PTE file loaded. Size: {self.model_size} bytes."
        yield f"Model buffer loaded, has {self.methods} methods"
        yield f"Running method {self.method}"
        yield "Method allocator: no fixed-size pool, this engine allocates on demand"
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
        ran = [call for call in self.calls if call.kind == "delegate"]
        yield f"NPU Inferences : {len(self.ran)}"
        yield f"NPU delegations: {sum(delegate.backend not in _ON_CPU for delegate in self.delegates)}"
        yield "Profiler report, cycles per operator:"
        for call in ran:
            delegate = self.delegates[call.index]
            on_cpu = delegate.backend in _ON_CPU
            cycles = f"{_UNKNOWN} CPU cycles" if on_cpu else _show_cycles(delegate.cycles, delegate.vela)
            yield f"{call.name} {call.index} : cycle_cnt : {cycles}"
            yield from _operation_lines(delegate.estimate)
        for name, count in Counter(call.name for call in self.calls if call.kind == "kernel").items():
            yield f"{name} : {count} calls : cycle_cnt : {_UNKNOWN} CPU cycles"
        yield f"Operator(s) total: {_show_cycles(self.cycles, self.vela)}"
        yield f"Inference runtime: {_UNKNOWN} CPU cycles total"
        yield "NOTE: nothing was measured on a device; CPU cycles are not modeled"
        yield f"Inference CPU ratio: {_UNKNOWN}"
        yield f"Inference NPU ratio: {_UNKNOWN}"
        yield f"cpu_wait_for_npu_cntr : {_UNKNOWN} CPU cycles"
        if not self.events:
            return
        yield f"Ethos-U PMU report ({self.target}):"
        yield f"ethosu_pmu_cycle_cntr : {_show(self.cycles)}"
        for index, name in enumerate(self.events):
            yield f"ethosu_pmu_cntr{index} : {_show(self.count(name))}"
        yield f"Ethos-U PMU Events:[{', '.join(self.events)}]"

    def _memory_lines(self) -> Iterator[str]:
        planned = sum(self.planned)
        yield f"model_pte_loaded_size:     {self.model_size} bytes."
        yield f"method_allocator_used:     {planned + self.input_bytes} bytes without the runtime's own records"
        yield f"method_allocator_planned:  {planned} bytes"
        yield f"method_allocator_loaded:   {_UNKNOWN}, the runtime's own records"
        yield f"method_allocator_input:    {self.input_bytes} bytes"
        yield f"method_allocator_executor: {_UNKNOWN}, the runtime's own records"
        yield f"temp_allocator_used:       {self.scratch} bytes"

    def _output_lines(self, max_values: int | None) -> Iterator[str]:
        yield f"I [tosaic] {len(self.outputs)} outputs:"
        for index, array in enumerate(self.outputs):
            element = DTYPES.get(str(array.dtype))
            kind = element.c_name if element is not None and element.c_name else str(array.dtype)
            flat = array.reshape(-1)
            for position, value in enumerate(flat[:max_values].tolist()):
                text = f"{value:f}" if array.dtype.kind == "f" else str(int(value)) if kind == "bool" else str(value)
                yield f"Output[{index}][{position}]: ({kind}) {text}"
            if max_values is not None and flat.size > max_values:
                yield f"Output[{index}]: {flat.size - max_values} more values"
        yield "I [tosaic] Program complete, exiting."

    def to_json(self, max_values: int | None = None) -> dict[str, Json]:
        """Return the log under its schema name, ready for json.dumps; what is not known is null."""
        delegates: list[Json] = [
            {
                "backend": delegate.backend,
                "offset": delegate.offset,
                "size": delegate.size,
                "scratch": delegate.scratch,
                "vela_cycles": delegate.vela,
                "estimate": None if delegate.estimate is None else asdict(delegate.estimate),
            }
            for delegate in self.delegates
        ]
        return {
            "schema": SCHEMA,
            "file": self.file,
            "engine": self.engine,
            "vulkan_device": self.device,
            "model_size": self.model_size,
            "methods": self.methods,
            "method": self.method,
            "target": self.target,
            "delegates": delegates,
            "calls": [asdict(call) for call in self.calls],
            "estimate": {"source": SOURCE, "npu_cycles": self.cycles, "vela_cycles": self.vela},
            "pmu_events": {name: self.count(name) for name in self.events},
            "memory": {
                "planned": list(self.planned),
                "input": self.input_bytes,
                "scratch": self.scratch,
            },
            "outputs": [_array_to_json(array, max_values) for array in self.outputs],
            "device": None if self.execution is None else _device_to_json(self.execution),
        }


def make_log(
    pte: Pte,
    method: str,
    *,
    file: str,
    engine: str,
    calls: Sequence[Call],
    outputs: Sequence[Array],
    beside: Sidecar | None = None,
    execution: Execution | None = None,
    device: str = "",
) -> RunLog:
    """Make the log of a run. Vela's figures come from the .tosaic file next to the program."""
    plan = pte.find(method)
    summaries = [files.summary for files in beside.delegates] if beside is not None else []
    vela = [summary.get("cycles_total") for summary in summaries]
    if len(vela) != len(plan.delegates):
        vela = [None] * len(plan.delegates)
    return RunLog(
        file=file,
        engine=engine,
        model_size=pte.size,
        methods=len(pte.plans),
        method=method,
        planned=plan.planned_sizes,
        delegates=tuple(_load(d, v) for d, v in zip(plan.delegates, vela, strict=True)),
        calls=tuple(calls),
        input_bytes=sum(v.nbytes for i in plan.inputs if isinstance(v := plan.values[i], Tensor)),
        outputs=tuple(outputs),
        execution=execution,
        device=device,
    )


def _load(delegate: Delegate, vela: float | None) -> DelegateInfo:
    if delegate.id != BACKEND:
        return DelegateInfo(delegate.id, delegate.offset, delegate.size, vela=vela)
    parts = ethosu_blob.unpack(delegate.blob)
    found = estimate_delegate(parts.cmd_data, delegate.compile_specs)
    accelerator = parse(parts.cmd_data).accelerator.name
    return DelegateInfo(delegate.id, delegate.offset, delegate.size, parts.scratch_size, accelerator, found, vela)


def _add(numbers: Sequence[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None


def _show(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.0f} ({SOURCE})"


def _show_cycles(cycles: float | None, vela: float | None) -> str:
    ours = f"{_UNKNOWN} NPU cycles" if cycles is None else f"{cycles:.0f} NPU cycles ({SOURCE})"
    return ours if vela is None else f"{ours}, {vela:.0f} (Vela's estimate)"


def _operation_lines(found: Estimate | None) -> Iterator[str]:
    """Yield the operations that take longest, in the order of the stream, with their bottleneck."""
    if found is None:
        return
    chosen = sorted(sorted(found.rows, key=lambda row: -row.cycles)[:_ROWS], key=lambda row: row.offset)
    for row in chosen:
        yield f"  {describe_row(row)}"
    if len(found.rows) > len(chosen):
        yield f"  {len(found.rows) - len(chosen)} more operations, each shorter; `tosaic inspect` lists all"


def _device_to_json(done: Execution) -> Json:
    return {
        "place": done.place,
        "exit_code": done.exit_code,
        "log": done.log,
        "npu_faults": list(done.notes),
        "instructions": done.instructions,
    }


def _array_to_json(array: Array, max_values: int | None) -> Json:
    flat = array.reshape(-1)
    values: list[Json] = flat[:max_values].tolist()
    if array.dtype.kind == "f" and not np.isfinite(flat[:max_values].astype(np.float64)).all():
        # JSON has no infinity and no NaN.
        values = [value if isinstance(value, float) and math.isfinite(value) else str(value) for value in values]
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": values}


def show_summary(page: Page, log: RunLog, max_values: int) -> None:
    """Print the results of a run: where it ran, the cycles if known, and the outputs."""
    if log.execution is not None:
        page.raw(describe_device(log.execution, max_values))
        return
    npu = f" for {log.target}" if log.target else ""
    where = f" on `{log.device}`" if log.device else ""
    page.line(f"`{log.file}`{npu}, method `{log.method}`, engine {log.engine}{where}")
    page.pairs(_pair_summary(log))
    for index, array in enumerate(log.outputs):
        shown = np.array2string(array.reshape(-1)[:max_values], max_line_width=72, threshold=max_values + 1)
        more = array.size - max_values
        rest = f" and {more:,} more values (`-o FILE.npz` saves all)" if more > 0 else ""
        page.line(f"output {index}  {array.dtype} {list(array.shape)}")
        page.raw(f"{indent(shown, '  ')}{rest}")


def _pair_summary(log: RunLog) -> Iterator[tuple[str, str]]:
    found = [delegate.estimate for delegate in log.ran if delegate.estimate is not None]
    if found:
        yield "NPU cycles", describe_sum(found)
    kernels = Counter(call.name for call in log.calls if call.kind == "kernel" or call.name in _ON_CPU)
    if kernels:
        yield "on the CPU", describe_counts(kernels)
