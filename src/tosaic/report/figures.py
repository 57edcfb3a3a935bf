"""The figures of a compiled program: bytes, memory, cycles, operators, and the cycles of each layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats import external, pte, sidecar
from tosaic.npu.system import find_options
from tosaic.report.contents import Contents, DelegateContents, read
from tosaic.report.profiler import make_profile
from tosaic.report.schema import MemoryReport
from tosaic.tools.vela_options import place_regions

_KIB = 1024


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one program.

    memory  bytes in SRAM, DRAM and flash; empty if no delegate is for an Ethos-U that Vela's configuration file has
    cycles  of all delegates, an estimate from the commands; None without an Ethos-U
    layers  cycles of each layer, which add up to those of the delegates; empty without the .tosaic file
    note    what is missing, and why
    """

    file: str
    bytes: int
    sha256: str
    accelerators: tuple[str, ...]
    memory: Mapping[str, int]
    cycles: int | None
    seconds: float | None
    macs: int | None
    delegates: int
    cpu_operators: Mapping[str, int]
    tosa_operators: Mapping[str, int]
    layers: Mapping[str, int]
    note: str = ""


def read_figures(
    file: str, data: bytes, beside: bytes | None, files: Sequence[bytes] = (), *, max_memory: int | None = None
) -> Figures:
    """Read the figures of an untrusted .pte, with the bytes of its .tosaic file and of its .ptd files."""
    contents = read(data, beside=beside, files=files, max_memory=max_memory)
    if contents.pte is None:
        raise Invalid(f"`{file}` is not a .pte file", why=f"it is a file of the kind `{contents.kind}`")
    methods = contents.pte.methods
    delegates = [delegate for method in methods for delegate in method.delegates]
    found = [d.blob.estimate for d in delegates if d.blob is not None and d.blob.estimate is not None]
    is_complete = bool(found) and len(found) == len(delegates)
    kept = (
        sidecar.read(beside, max_memory=max_memory) if beside is not None and contents.pte.sidecar == "fits" else None
    )
    budget = Budget(len(data) + len(beside or b""), max_memory)
    tosa: Counter[str] = Counter()
    cpu: Counter[str] = Counter()
    for delegate in delegates:
        tosa.update(delegate.tosa.ops if delegate.tosa is not None else {})
    for method in methods:
        cpu.update(method.operators)
    return Figures(
        file=file,
        bytes=len(data) + sum(map(len, files)),
        sha256=contents.sha256,
        accelerators=tuple(dict.fromkeys(estimate.accelerator for estimate in found)),
        memory=_measure_memory(contents, delegates, kept, sum(map(len, files))) if is_complete else {},
        cycles=sum(estimate.cycles for estimate in found) if is_complete else None,
        seconds=sum(estimate.seconds for estimate in found) if is_complete else None,
        macs=sum(estimate.macs for estimate in found) if is_complete else None,
        delegates=len(delegates),
        cpu_operators=dict(sorted(cpu.items())),
        tosa_operators=dict(sorted(tosa.items())),
        layers={} if kept is None else _count_layers(external.read(data, files, max_memory=max_memory), kept, budget),
        note=_describe_sidecar(contents.pte.sidecar),
    )


def _describe_sidecar(state: str) -> str:
    if state == "fits":
        return ""
    why = "there is no .tosaic file next to it" if state == "none" else f"its .tosaic file is {state}"
    return f"no layers and TOSA operators: {why}"


def _measure_memory(
    contents: Contents, delegates: Sequence[DelegateContents], kept: sidecar.Sidecar | None, data_bytes: int
) -> dict[str, int]:
    """Measure what SRAM, DRAM and flash hold; delegates share scratch."""
    assert contents.pte is not None
    blobs = [(delegate.blob, delegate.settings) for delegate in delegates if delegate.blob is not None]
    largest, settings = max(blobs, key=lambda pair: pair[0].scratch)
    assert largest.estimate is not None
    specs = [(name, text.encode()) for name, text in settings.items()]
    place = place_regions(find_options(largest.estimate.accelerator, specs))
    summaries = [files.summary for files in kept.delegates] if kept is not None and place.fast_scratch else []
    whole = MemoryReport(
        planned=tuple(size for method in contents.pte.methods for size in method.planned),
        network_in=place.network,
        scratch=largest.scratch,
        scratch_in=place.scratch,
        fast_scratch=max((int(one.get("sram_memory_used", 0.0) * _KIB) for one in summaries), default=0),
        fast_scratch_in=place.fast_scratch,
    )
    uses = whole.list_uses(contents.bytes + data_bytes)
    return {memory: sum(held.values()) for memory, held in uses.items()}


def _count_layers(program: pte.Pte, kept: sidecar.Sidecar, budget: Budget) -> dict[str, int]:
    """Count the cycles of the layers by name: the path of a module, or an operator outside modules."""
    total: Counter[str] = Counter()
    if len(kept.delegates) == sum(len(plan.delegates) for plan in program.plans):
        for plan in program.plans:
            for layer in make_profile(program, kept, method=plan.name, budget=budget).layers:
                total.update({layer.name: layer.cycles} if layer.cycles else {})
    return dict(total)
