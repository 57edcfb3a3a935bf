"""A compiled program: the .pte, its contents, and its methods."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tosaic
from tosaic.api import html_report
from tosaic.api.layouts import find_layout_cost
from tosaic.api.session import Session, decode_outputs, encode_inputs
from tosaic.api.verification import ROUNDS, Verdict, verify
from tosaic.backends.ethosu import EthosUCompileSpec
from tosaic.backends.registry import find_backend
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid
from tosaic.core.hints import get_cli_form
from tosaic.core.output import write_files
from tosaic.core.reason import Reason
from tosaic.core.targets import Target
from tosaic.core.tensor_info import TensorInfo
from tosaic.driver.bundle import make_bundle
from tosaic.driver.delegate import CompiledGraph, Delegate
from tosaic.driver.kept import make_files, shorten_path
from tosaic.driver.named_data import list_data_files
from tosaic.driver.pack import Signature
from tosaic.engines import engine as engines
from tosaic.formats import external, sidecar
from tosaic.fx.arrays import to_torch
from tosaic.npu.weights import WeightCache
from tosaic.report.files import Opened
from tosaic.report.html import ReportData, render, render_head
from tosaic.report.profile import Profile
from tosaic.report.profiler import make_profile
from tosaic.report.schema import DelegateReport, MemoryReport, Report
from tosaic.tools.vela_options import VelaOptions


@dataclass(frozen=True, eq=False)
class Program:
    """The result of `tosaic.compile`. Prints as a short table.

    `data` are the .ptd files with parts of the delegates that are outside the .pte, by placement. `precision` says
    what is not int8, in the words of the options. `etrecord` is for ExecuTorch's developer tools, if it was asked for.
    """

    pte: bytes
    target: Target
    delegates: tuple[Delegate, ...]
    cpu_ops: Mapping[str, int]
    reasons: tuple[Reason, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    memory: MemoryReport
    seconds: Mapping[str, float]
    warnings: tuple[str, ...]
    samples: tuple[sidecar.Sample, ...]
    traits: tuple[sidecar.Trait, ...]
    spec: ArmCompileSpec
    data: Mapping[str, bytes]
    precision: Mapping[str, str]
    etrecord: bytes | None = None
    _weights: WeightCache = field(default_factory=WeightCache, init=False)

    @staticmethod
    def make(
        spec: ArmCompileSpec,
        built: CompiledGraph,
        signature: Signature,
        program: Any,
        samples: Sequence[sidecar.Sample],
        traits: Sequence[sidecar.Trait],
        seconds: Mapping[str, float],
        notes: Sequence[str],
        precision: Mapping[str, str],
        etrecord: bytes | None = None,
    ) -> Program:
        """Collect the results of the stages of a compile."""
        plan = program.executorch_program.execution_plan[0]
        planned = tuple(int(n) for n in plan.non_const_buffer_sizes[1:])
        return Program(
            bytes(program.buffer),
            spec.target,
            built.delegates,
            _count_kernels(plan),
            # Nodes that io="int8" leaves to the caller run nowhere in the program.
            tuple(reason for node, reason in built.plan.reasons.items() if node not in signature.caller_quantizes),
            signature.inputs,
            signature.outputs,
            _measure_memory(spec, built, planned),
            dict(seconds),
            tuple(notes),
            tuple(samples),
            tuple(traits),
            spec,
            list_data_files(program),
            dict(precision),
            etrecord,
        )

    def tosa(self, index: int = 0) -> bytes:
        """Return the .tosa of a delegate."""
        if not 0 <= index < len(self.delegates):
            raise Invalid(f"there is no delegate {index}", why=f"the program has {len(self.delegates)}")
        return self.delegates[index].tosa

    def save(self, path: str | Path, *, with_sidecar: bool = True) -> Path:
        """Write the .pte and, next to it, its .ptd files and the .tosaic file that `verify` and reports read."""
        path = Path(path)
        write_files(self.files(path, with_sidecar=with_sidecar))
        return path

    def files(self, path: Path, *, with_sidecar: bool = True) -> dict[Path, bytes]:
        """Return the files that `save` writes, by path."""
        external.check_name(path)
        if path.is_dir():
            raise Invalid(f"`{path}` is a folder", fix=f"pass a file name such as `{path / 'model.pte'}`")
        beside = {path.with_suffix(".tosaic"): self.sidecar()} if with_sidecar else {}
        data = {path.with_name(external.name_file(path.stem, tag)): content for tag, content in self.data.items()}
        return {path: self.pte, **data, **beside}

    def sidecar(self) -> bytes:
        """Return the bytes of the .tosaic file."""
        return sidecar.write(self._describe())

    def _describe(self) -> sidecar.Sidecar:
        """Make the content of the .tosaic file."""
        return sidecar.Sidecar(
            pte_sha256=hashlib.sha256(self.pte).hexdigest(),
            tosaic_version=tosaic.__version__,
            target=self.target.name,
            options=self._options(),
            inputs=self.inputs,
            outputs=self.outputs,
            delegates=tuple(map(make_files, self.delegates)),
            samples=self.samples,
            traits=self.traits,
            reasons=tuple(_keep(reason) for reason in self.reasons),
            warnings=tuple(get_cli_form(warning) for warning in self.warnings),
        )

    def _options(self) -> dict[str, str]:
        return {**find_backend(self.spec).describe_options(self.spec), **self.precision}

    def run(self, *inputs: Any, engine: str = "auto") -> list[np.ndarray[Any, Any]]:
        """Run the .pte here; engine auto is the simulated NPU for Ethos-U, and Vulkan for VGF where that is usable.

        Mutable buffers start with their first values in every run; `load` keeps them.
        """
        arrays = encode_inputs(inputs, self.inputs)
        data = tuple(self.data.values())
        outcome = engines.run(
            self.pte, arrays, engine=engine, sidecar=self._describe(), data=data, weights=self._weights
        )
        return decode_outputs(outcome.outputs, self.outputs)

    def load(self, engine: str = "auto") -> Session:
        """Load the program for several runs in which its mutable buffers keep their values: caches, streams."""
        data = tuple(self.data.values())
        method = engines.load(self.pte, engine=engine, sidecar=self._describe(), data=data, weights=self._weights)
        return Session(method, self.inputs, self.outputs)

    def verify(self, *, rounds: int = ROUNDS) -> Verdict:
        """Compare the NPU or the Vulkan device with the TOSA reference model, and with torch on the samples."""
        return verify(self.pte, self._describe(), rounds=rounds, data=tuple(self.data.values()))

    def bundle(self) -> bytes:
        """Return a .bpte file: the program with its samples, and the outputs that this machine computes for them."""
        if self.data:
            raise Invalid("a bundled program has no .ptd files", fix="compile without `external`")
        if not self.samples:
            raise Invalid("there are no samples to bundle", why="the model has inputs of a type that cannot be kept")
        cases: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        for sample in self.samples:
            inputs = self._describe().as_called(sample.inputs)
            cases.append(([*map(to_torch, inputs)], [*map(to_torch, self.run(*inputs))]))
        return make_bundle(self.pte, cases)

    def report(self) -> Report:
        """Return everything about the program, as plain data with a versioned schema."""
        layout = find_layout_cost(self.delegates)
        return Report(
            target=self.target.name,
            options=self._options(),
            pte_bytes=len(self.pte),
            data_bytes=sum(map(len, self.data.values())),
            delegates=tuple(map(_describe_delegate, self.delegates)),
            cpu_ops=dict(self.cpu_ops),
            reasons=self.reasons,
            inputs=self.inputs,
            outputs=self.outputs,
            memory=self.memory,
            seconds=dict(self.seconds),
            warnings=self.warnings if layout is None else (*self.warnings, layout),
        )

    def profile(self) -> Profile:
        """Return the layer profile: cycles and what limits them, bytes, shapes and source lines of every layer."""
        return self._open().profile

    def to_html(self, title: str = "program") -> str:
        """Return the HTML report: one file, the same as that of `tosaic report`."""
        return render(self._describe_report(title))

    def _open(self) -> Opened:
        files = tuple(self.data.values())
        read, kept = external.read(self.pte, files), self._describe()
        return Opened(self.pte, files, read, kept, make_profile(read, kept, options=self._vela_options()))

    def _vela_options(self) -> VelaOptions | None:
        return self.spec.options if isinstance(self.spec, EthosUCompileSpec) else None

    def _describe_report(self, title: str) -> ReportData:
        return html_report.describe(self._open(), title, options=self._vela_options())

    def _rows(self) -> list[tuple[str, str]]:
        compute = sum(1 for r in self.reasons if not r.is_io)
        rows = [
            ("target", self.target.name),
            (".pte", f"{len(self.pte):,} bytes"),
            *((f".ptd `{tag}`", f"{len(content):,} bytes") for tag, content in self.data.items()),
            ("delegates", str(len(self.delegates))),
            ("CPU operators", ", ".join(f"{n} x{c}" for n, c in self.cpu_ops.items()) or "none"),
            ("fallback nodes", str(compute)),
        ]
        found = [e for d in self.delegates if (e := d.artifact.estimate_cycles()) is not None]
        if found:
            rows.append(("NPU cycles (estimate)", f"{sum(e.cycles for e in found):,}"))
        return rows

    def __str__(self) -> str:
        width = max(len(k) for k, _ in self._rows())
        return "\n".join(f"{k:<{width}}  {v}" for k, v in self._rows())

    def __repr__(self) -> str:
        return f"<Program for {self.target.name}: {len(self.delegates)} delegates, {len(self.pte)} bytes>"

    def _repr_html_(self) -> str:
        return render_head(self._describe_report("program"))


def _keep(reason: Reason) -> Reason:
    # The command reads this file, so the fix has its words.
    return replace(reason, where=shorten_path(reason.where), fix=get_cli_form(reason.fix))


def describe(signature: Signature) -> dict[str, str]:
    """Describe the I/O tensors as a constant method of the .pte, so that a device can query scale and zero point."""
    sides = {"inputs": [asdict(b) for b in signature.inputs], "outputs": [asdict(b) for b in signature.outputs]}
    return {"tosaic_io": json.dumps(sides, sort_keys=True)}


def _count_kernels(plan: Any) -> dict[str, int]:
    """Count the operators that the runtime calls on the CPU."""
    counts: Counter[str] = Counter()
    for chain in plan.chains:
        for instruction in chain.instructions:
            index = getattr(instruction.instr_args, "op_index", None)
            if index is not None:
                operator = plan.operators[index]
                counts[f"{operator.name}.{operator.overload}" if operator.overload else operator.name] += 1
    return dict(counts)


def _measure_memory(spec: ArmCompileSpec, built: CompiledGraph, planned: tuple[int, ...]) -> MemoryReport:
    used = find_backend(spec).measure_memory(spec, [d.artifact for d in built.delegates])
    return MemoryReport(planned=planned, **asdict(used))


def _describe_delegate(delegate: Delegate) -> DelegateReport:
    kinds = Counter(op.kind for op in delegate.ops)
    return DelegateReport(
        nodes=len(delegate.partition.nodes),
        tosa_ops=dict(sorted(kinds.items())),
        tosa_bytes=len(delegate.tosa),
        blob_bytes=len(delegate.blob),
        # JSON has no infinity, and Vela's rates may be infinite when divided by zero.
        vela={k: v for k, v in delegate.artifact.summary.items() if isfinite(v)},
        estimate=delegate.artifact.estimate_cycles(),
    )
