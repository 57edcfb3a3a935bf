"""Opens the files of a program for its profile and its HTML report."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tosaic.core.errors import Invalid
from tosaic.core.tensor_info import TensorInfo
from tosaic.formats import blob, external, foreign, pte
from tosaic.formats.blob import find_fast_scratch
from tosaic.formats.sidecar import Sidecar
from tosaic.npu.stream import parse
from tosaic.npu.system import find_options
from tosaic.report.contents import Contents, detect, open_sidecar, read
from tosaic.report.html import Accuracy, Advice, Check, ReportData
from tosaic.report.profile import Profile
from tosaic.report.profiler import make_profile
from tosaic.report.schema import MemoryReport
from tosaic.tools.vela_options import VelaOptions, place_regions


@dataclass(frozen=True, slots=True)
class Opened:
    """A program that was read: its bytes, those of its .ptd files, and the sidecar if one fits."""

    data: bytes
    files: tuple[bytes, ...]
    program: pte.Pte
    kept: Sidecar | None
    profile: Profile


def open_program(
    data: bytes,
    beside: bytes | None = None,
    files: Sequence[bytes] = (),
    *,
    method: str = "forward",
    max_memory: int | None = None,
) -> Opened:
    """Read an untrusted .pte and profile it; `beside` is its .tosaic file, `files` are its .ptd files."""
    check_is_program(data)
    program = external.read(data, files, max_memory=max_memory)
    kept, note = open_sidecar(data, beside, max_memory)
    why = "there is no .tosaic file next to the .pte" if beside is None else f"the .tosaic file is {note}"
    budget = program.make_budget(max_memory)
    profile = make_profile(program, kept, method=method, why_no_sidecar=why, budget=budget)
    return Opened(data, tuple(files), program, kept, profile)


def check_is_program(data: bytes) -> None:
    """Reject a file that is not a .pte."""
    if detect(data) != "pte":
        kind = foreign.recognize(data)
        raise Invalid(
            "only a .pte has layers",
            why=f"this is a file of type {kind}" if kind else "this file is of another kind",
            fix="pass the .pte that `tosaic compile` has written",
        )


def make_report(
    opened: Opened,
    title: str,
    *,
    version: str = "",
    options: VelaOptions | None = None,
    accuracy: Sequence[Accuracy] = (),
    check: Check | None = None,
    advice: Sequence[Advice] = (),
) -> ReportData:
    """Collect what the HTML report shows."""
    kept, profile = opened.kept, opened.profile
    plan = opened.program.find(profile.method)
    contents = read(opened.data, files=opened.files)
    inputs, outputs = _list_ports(contents, profile.method)
    cycles = [one.summary.get("cycles_total") for one in kept.delegates] if kept is not None else []
    size = len(opened.data) + sum(map(len, opened.files))
    target = kept.target if kept is not None else profile.accelerator
    return ReportData(
        title=title,
        profile=profile,
        target=target or next((delegate.id for delegate in plan.delegates), "the CPU"),
        uses=_measure_memory(plan, profile, options).list_uses(size) if profile.accelerator else {},
        program_bytes=size,
        sha256=hashlib.sha256(opened.data).hexdigest(),
        version=version,
        options={} if kept is None else {name: str(value) for name, value in kept.options.items()},
        inputs=kept.inputs if kept is not None else inputs,
        outputs=kept.outputs if kept is not None else outputs,
        reasons=None if kept is None else kept.reasons,
        warnings=kept.warnings if kept is not None else (),
        accuracy=tuple(accuracy),
        check=check,
        advice=tuple(advice),
        vela_cycles=sum(one for one in cycles if one is not None) if cycles and None not in cycles else None,
    )


def _list_ports(contents: Contents, method: str) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """List the inputs and outputs of a method as the .pte describes them."""
    methods = contents.pte.methods if contents.pte is not None else ()
    return next(((one.inputs, one.outputs) for one in methods if one.name == method), ((), ()))


def _measure_memory(plan: pte.Plan, profile: Profile, options: VelaOptions | None) -> MemoryReport:
    """Measure what the Ethos-U delegates of a method take; they share scratch, not weights."""
    found = [delegate for delegate in plan.delegates if blob.detect(delegate.blob)]
    parts = [blob.unpack(delegate.blob) for delegate in found]
    specs = found[0].compile_specs
    place = place_regions(options or find_options(parse(parts[0].cmd_data).accelerator.name, specs).with_config())
    planned = [b.end for one in profile.plans for b in one.buffers if b.memory == place.fast_scratch]
    fast = max(planned, default=find_fast_scratch(specs)) if place.fast_scratch else 0
    return MemoryReport(
        planned=plan.planned_sizes,
        network=sum(len(one.weight_data) for one in parts),
        network_in=place.network,
        scratch=max(one.scratch_size for one in parts),
        scratch_in=place.scratch,
        fast_scratch=fast,
        fast_scratch_in=place.fast_scratch,
        commands=sum(len(one.cmd_data) for one in parts),
    )
