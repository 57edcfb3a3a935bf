"""What must hold for a graph: typed errors only, every node near torch, engines bit for bit, both APIs alike."""

from __future__ import annotations

import logging
import re
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import tree_leaves

import tosaic
from support.fuzzer import cut
from support.fuzzer.graph import Graph, Model, example
from tosaic.api.build import make_spec
from tosaic.api.prepare import quantize
from tosaic.api.program import Program
from tosaic.api.torch_reference import judge
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import TosaicError, first_line
from tosaic.driver.exported import make_functional
from tosaic.driver.partition import partition
from tosaic.engines import engine, reference
from tosaic.engines.missing_kernel import MissingKernel
from tosaic.engines.reference import Undefined
from tosaic.ethosu import EthosUCompileSpec, EthosUPartitioner
from tosaic.fx.source import Source, overload
from tosaic.ops import registry
from tosaic.tosa import TosaCompileSpec, TOSAPartitioner
from tosaic.vgf import VgfCompileSpec, VgfPartitioner

NPUS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
PROFILES = ("int8", "fp", "vgf")
#: an output after more roundings than this may be off by more steps, if its signal to noise is at least this in dB
SHALLOW, LEAST_SQNR = 2, 15.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that does not hold. `kind` stays the same while a graph is shrunk."""

    kind: str
    detail: str


@dataclass(slots=True)
class Outcome:
    """What became of one graph."""

    failures: list[Failure] = field(default_factory=list)
    discarded: str = ""
    refused: list[str] = field(default_factory=list)
    records: set[str] = field(default_factory=set)
    nodes: int = 0
    compared: int = 0
    delegates: int = 0
    separated: int = 0
    differing: int = 0


#: stages of what the partitioner has taken or of a program that was compiled: any error is a failure there
COMPILED = ("nodes", "verify", "run")


class _Stop(Exception):
    """Nothing more can be checked."""


def target_of(profile: str, seed: int) -> str:
    """The target of a graph: the accelerators in turn."""
    if profile == "int8":
        return NPUS[seed % len(NPUS)]
    return "vgf" if profile == "vgf" else "TOSA-1.0+FP"


def is_quantized(profile: str, seed: int) -> bool:
    return profile == "int8" or (profile == "vgf" and seed % 2 == 0)


#: which checks can show a failure, by the first word of its kind; shrinking runs no others
_PARTS = {
    "ExecuTorch": frozenset({"compile", "executorch"}),
    "compile": frozenset({"compile"}),
    "verify": frozenset({"compile", "verify"}),
    "run": frozenset({"compile", "run"}),
    "front": frozenset({"compile", "front"}),
}
MOST = frozenset({"nodes", "compile", "verify", "run", "executorch"})
ALL = MOST | {"front"}


def parts_for(kind: str) -> frozenset[str]:
    """The checks that a failure of this kind needs to be seen again."""
    return _PARTS.get(re.split(r"[ :]", kind)[0], frozenset({"nodes"}))


def check(graph: Graph, target: str, quantized: bool, parts: frozenset[str] = MOST) -> Outcome:
    """Run the checks on one graph."""
    outcome = Outcome()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with torch.no_grad(), warnings.catch_warnings(), suppress(_Stop):
            warnings.simplefilter("ignore")
            _Check(graph, target, quantized, parts, outcome).run()
    finally:
        logging.disable(before)
    return outcome


class _Check:
    def __init__(self, graph: Graph, target: str, quantized: bool, parts: frozenset[str], outcome: Outcome) -> None:
        self.outcome, self.quantized, self.parts = outcome, quantized, parts
        self.spec: ArmCompileSpec = make_spec(target)
        self.model = Model(graph).eval()
        self.inputs = example(graph)
        #: whether torch's graph defines all of its results
        self.defined = True

    def run(self) -> None:
        try:
            program = torch.export.export(self.model, tuple(x.clone() for x in self.inputs))
        except Exception as error:
            self.outcome.discarded = f"torch.export: {first_line(error)[:100]}"
            raise _Stop from error
        self._count(program)
        module = self._quantize(program)
        source = Source.of_module(module) if isinstance(module, torch.fx.GraphModule) else Source.of_program(module)
        if "nodes" in self.parts:
            self._nodes(source)
        if "compile" in self.parts:
            first = self._compile(module)
            outputs = self._run(first, source)
            if "front" in self.parts:
                self._front(first)
            if "executorch" in self.parts:
                self._executorch(module, source, first, outputs)

    def _count(self, program: ExportedProgram) -> None:
        found = [registry().find(overload(n)) for n in program.graph.nodes if n.op == "call_function"]
        self.outcome.records |= {r.name for r in found if r is not None}
        self.outcome.nodes = len(found)

    @contextmanager
    def _stage(self, name: str) -> Generator[None]:
        """Note an error of the project's own as a refusal, and any other one as a failure."""
        try:
            yield
        except (_Stop, KeyboardInterrupt):
            raise
        except Undefined as error:
            self.outcome.refused.append(f"{name}: {error.what}")
            raise _Stop from error
        except MissingKernel as error:
            # What is left for the CPU is right, and no ExecuTorch can run it.
            self.outcome.refused.append(f"{name}: {error.what} ({error.why})")
            raise _Stop from error
        except TosaicError as error:
            why = f" ({error.why})" if error.why else ""
            if name in COMPILED or _is_internal(error):
                self.outcome.failures.append(Failure(f"{name}: {_shape_free(error.what + why)}", _trace(error)))
            else:
                self.outcome.refused.append(f"{name}: {error.what}{why}")
            raise _Stop from error
        except Exception as error:
            kind = f"{name}: {_shape_free(first_line(error))[:120]} at {_place(error)}"
            self.outcome.failures.append(Failure(kind, _trace(error)))
            raise _Stop from error

    def _fail(self, kind: str, detail: str) -> None:
        self.outcome.failures.append(Failure(kind, detail))

    def _quantize(self, program: ExportedProgram) -> Any:
        with self._stage("quantize"):
            functional = make_functional(program)
            values = [n.meta.get("val") for n in functional.graph.nodes]
            floats = any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)
            return quantize(functional, [self.inputs]) if self.quantized and floats else functional

    def _nodes(self, source: Source) -> None:
        with self._stage("torch runs the quantized graph"):
            seen = cut.run_torch(source, self.inputs)
            self.defined = not cut.quantizes_nan(source, seen)
        with self._stage("partition"):
            plan = partition(source, self.spec.target)
        for region in plan.partitions:
            with self._stage("nodes"):
                compared, wrong = cut.check_region(source, region, self.spec.target, seen)
                self.outcome.compared += compared
                for one in wrong:
                    self._fail(f"node: {one.op}", one.detail)

    def _compile(self, module: Any) -> Program:
        with self._stage("compile"):
            made = tosaic.compile(module, self.inputs, self.spec, quantized=self.quantized)
            self.outcome.delegates += len(made.delegates)
            self.outcome.separated += sum(d.separated for d in made.delegates)
            return made

    def _front(self, first: Program) -> None:
        """`compile` quantizes the module itself and must come to the same file."""
        with self._stage("front"):
            calibration = [self.inputs] if self.quantized else None
            made = tosaic.compile(self.model, self.inputs, self.spec, calibration=calibration, quantized=self.quantized)
            if made.pte != first.pte:
                self._fail("front: another file", f"{len(made.pte)} bytes instead of {len(first.pte)}")

    def _run(self, program: Program, source: Source) -> list[Any]:
        if "verify" in self.parts:
            with self._stage("verify"):
                verdict = program.verify(rounds=1)
                if verdict.differences:
                    self._fail("verify: the device differs from TOSA", str(verdict))
                elif not verdict.ok and self.defined and not any(map(cut.jumps_after_rounding, _list_results(source))):
                    self._fail("verify: the program differs from torch's graph", str(verdict))
        with self._stage("run"):
            outputs = program.run(*(x.clone() for x in self.inputs))
            if "run" in self.parts:
                self._judge("run", outputs, program, source)
                self._compare("run", outputs, _hybrid(program, source, self.inputs))
        return outputs

    def _compare(self, name: str, got: Sequence[Any], want: Sequence[Any]) -> None:
        """Outputs of a program against what torch and the reference model make of the same delegates."""
        if not self._has_types(name, got, want):
            return
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            if not _is_close(a, b):
                self._fail(f"{name}: other numbers", f"output {i}: {_difference(a, b)}")
                return

    def _has_types(self, name: str, got: Sequence[Any], want: Sequence[Any]) -> bool:
        types = [(a.dtype, a.shape) for a in got], [(b.dtype, b.shape) for b in want]
        if types[0] != types[1]:
            self._fail(f"{name}: outputs of another type", f"{types[0]} instead of {types[1]}")
        return types[0] == types[1]

    def _judge(self, name: str, outputs: Sequence[Any], program: Program, source: Source) -> None:
        """Outputs against torch's own graph: by steps where it is shallow, else the signal must be the same one."""
        if not self.defined:
            return
        sidecar = program._describe()
        for match, got, node in zip(judge([outputs], sidecar), outputs, _list_results(source), strict=True):
            # Each operator is compared on torch's own inputs, these too.
            if cut.jumps_after_rounding(node):
                continue
            noise = sqnr(got, sidecar.samples[0].torch[match.output]) if match.rule == "SQNR" else np.inf
            deep = cut.depth_of(node) > SHALLOW
            if not match.ok or noise < LEAST_SQNR or (match.rule == "SQNR" and not deep):
                detail = f"{match}, SQNR {noise:.1f} dB after {cut.depth_of(node)} roundings"
                self._fail(f"{name}: not what torch's graph gives", detail)
                return

    def _executorch(self, module: Any, source: Source, first: Program, want: Sequence[Any]) -> None:
        again = isinstance(module, torch.fx.GraphModule)
        program = torch.export.export(module, tuple(x.clone() for x in self.inputs)) if again else module
        if first.reasons and not _suits_exir(program):
            return
        with self._stage("ExecuTorch API"):
            edge = to_edge_transform_and_lower(
                program,
                partitioner=[_partitioner(self.spec)],
                compile_config=EdgeCompileConfig(_check_ir_validity=False),
            )
            pte = bytes(edge.to_executorch().buffer)
            lowered = edge.exported_program().graph_module
        names = [str(n.target) for n in lowered.graph.nodes if n.op == "get_attr" and "lowered" in str(n.target)]
        blobs = sorted(getattr(lowered, n).processed_bytes for n in names)
        same = blobs == sorted(d.blob for d in first.delegates)
        self.outcome.differing += not same
        if pte == first.pte:
            return
        with self._stage("ExecuTorch API run"):
            arrays = [x.contiguous().numpy() for x in self.inputs]
            # Exir returns the inputs that the model changes, before its results.
            changed = len(edge.exported_program().graph_signature.user_inputs_to_mutate)
            outputs = engine.run(pte, arrays).outputs[changed:]
            if same:
                self._compare("ExecuTorch API", outputs, want)
            elif self._has_types("ExecuTorch API", outputs, want):
                self._judge("ExecuTorch API", outputs, first, source)


def _list_results(source: Source) -> list[Node]:
    return [n for n in tree_leaves(source.returned) if isinstance(n, Node)]


#: operators that exir decomposes into ones without an out variant, always or in channels last
_DOUBTFUL = ("native_channel_shuffle", "index_fill", "xlogy", "xlog1py")


def _suits_exir(program: Any) -> bool:
    """Whether exir takes a program without any backend; some operators of torch have no form in it, or a wrong one."""
    names = [str(n.target) for n in program.graph.nodes]
    # exir 1.4 makes a view of the memory of a pixel shuffle's input, also if that is in channels last.
    if any("pixel_" in str(n.target) and not n.args[0].meta["val"].is_contiguous() for n in program.graph.nodes):
        return False
    if not any(op in name for name in names for op in _DOUBTFUL):
        return True
    try:
        to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False)).to_executorch()
    except RuntimeError as error:
        return "Missing out variants" not in str(error)
    return True


def _partitioner(spec: ArmCompileSpec) -> Any:
    if isinstance(spec, EthosUCompileSpec):
        return EthosUPartitioner(spec)
    if isinstance(spec, VgfCompileSpec):
        return VgfPartitioner(spec)
    assert isinstance(spec, TosaCompileSpec)
    return TOSAPartitioner(spec)


def _hybrid(program: Program, source: Source, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The outputs with torch for the CPU's part and the reference model for the delegates."""
    region_of = {n: d for d in program.delegates for n in d.partition.outputs}
    values: dict[Node, Any] = {n: x.clone() for n, x in zip(source.inputs, inputs, strict=True)}
    values |= {n: t.detach() for n, t in source.constants.items()}
    values |= {n: s[0].clone() for n, s in source.states.items()}

    def value(node: Node) -> Any:
        if node not in values:
            if node in region_of:
                delegate = region_of[node]
                given = [value(n).contiguous().numpy() for n in delegate.partition.inputs]
                results = reference.run(delegate.tosa, given)
                values.update(zip(delegate.partition.outputs, map(torch.from_numpy, results), strict=True))
            else:
                values[node] = cut.call(node, value)
        return values[node]

    for node in source.graph.nodes:
        if node.op == "call_function":
            value(node)
    returned = tree_leaves(source.returned)
    return [value(n).contiguous().numpy() for n in returned if isinstance(n, Node)]


def sqnr(got: Any, want: Any) -> float:
    """Signal to noise in dB."""
    a, b = np.nan_to_num(got.astype(np.float64)), np.nan_to_num(want.astype(np.float64))
    noise = float(np.square(a - b).sum())
    return float("inf") if noise == 0 else 10.0 * float(np.log10(max(float(np.square(b).sum()), 1e-300) / noise))


def _is_close(got: Any, want: Any) -> bool:
    if got.dtype.kind != "f":
        return bool(np.array_equal(got, want))
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(got.astype(np.float64) - want.astype(np.float64))
        gap = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0.0, gap)
    finite = np.abs(want[np.isfinite(want)])
    return bool((np.nan_to_num(gap, nan=np.inf) <= 1e-4 * max(1.0, float(finite.max(initial=0.0)))).all())


def _difference(got: Any, want: Any) -> str:
    a, b = got.astype(np.float64).reshape(-1), want.astype(np.float64).reshape(-1)
    gap = np.nan_to_num(np.abs(a - b), nan=np.inf)
    at = int(gap.argmax())
    return (
        f"{got.dtype}{list(got.shape)}, {int((gap > 0).sum())} of {gap.size} differ, SQNR {sqnr(got, want):.1f} dB, "
        f"at {at} {a[at]:g} instead of {b[at]:g}"
    )


def _is_internal(error: TosaicError) -> bool:
    """Whether a typed error hides an exception that nobody meant: not torch's and not ExecuTorch's."""
    cause = error.__cause__
    while cause is not None:
        if not isinstance(cause, TosaicError) and "tosaic" in _place(cause):
            return True
        cause = cause.__cause__
    return "internal error" in error.what


def _place(error: BaseException) -> str:
    """The innermost frame, as file:line with a short path."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "?"
    path = Path(frames[-1].filename)
    return f"{'/'.join(path.parts[-3:])}:{frames[-1].lineno}"


def _trace(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    lines = [f"{'/'.join(Path(f.filename).parts[-3:])}:{f.lineno} {f.name}" for f in frames]
    return "\n".join([str(error)[:600], *lines])


def _shape_free(text: str) -> str:
    """A message without numbers and names of nodes, which change while a graph is shrunk."""
    return "".join("#" if c.isdigit() else c for c in text)
