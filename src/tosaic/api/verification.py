"""Verification: the NPU or the Vulkan device computes what TOSA specifies, and what torch computes.

Against TOSA, integers must be equal bit for bit, and so must floats that are only converted from or to integers. Other
floats may differ slightly: TOSA does not specify the order of a sum. That the TOSA graph matches the model is checked
on the samples: there the whole program is compared with the compiled graph, run by torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tosaic.api.bundle_check import BundleVerdict, check_cases
from tosaic.api.locate import locate
from tosaic.api.sidecar_file import match_tosa
from tosaic.api.torch_reference import Match, allow, as_real, check_samples, decode_real, find_sqnr, judge, measure_gap
from tosaic.backends.registry import BACKENDS
from tosaic.core.budget import Budget
from tosaic.core.dtypes import SMALL_FLOATS
from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint
from tosaic.engines.engine import ENGINES, find_engines
from tosaic.engines.interpreter import Executor, Method, Npu
from tosaic.engines.reference import Undefined
from tosaic.engines.tosa import make_reference
from tosaic.formats.blob import find_fast_scratch
from tosaic.formats.bpte import Case
from tosaic.formats.external import read
from tosaic.formats.npy import Array
from tosaic.formats.pte import DelegateCall, Plan, Pte, Tensor
from tosaic.formats.sidecar import Sidecar
from tosaic.formats.tensors import TensorType, type_of
from tosaic.formats.tosa_writer import read as read_tosa
from tosaic.ir.encode import decode
from tosaic.ir.graph import DType, Graph

SCHEMA = "tosaic-verify/1"
#: full-range random inputs per delegate, in addition to the samples
ROUNDS = 2
#: the range of random floats
_FLOATS = 4.0
#: The range of random int32 numbers without samples: sums and products that overflow are undefined in TOSA.
_SHORT = (-(1 << 15), (1 << 15) - 1)
#: operators that only move or convert floats, or compute them with one constant and one rounding
_CONVERSIONS = frozenset({"ADD", "CAST", "CLAMP", "GATHER", "MUL", "SUB"}) | frozenset(
    {"CONCAT", "CONST", "IDENTITY", "PAD", "RESHAPE", "REVERSE", "SLICE", "TILE", "TRANSPOSE"}
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One output of one delegate that differs from TOSA."""

    delegate: int
    inputs: str
    output: int
    count: int
    size: int
    largest: float
    first: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was compared, what differed, what could not be checked, and the distance from float in dB per output.

    `torch` compares every output of the program with the compiled graph, run by torch, and `bundle` with the expected
    outputs of a .bpte.
    """

    compared: int
    differences: tuple[Difference, ...]
    skipped: tuple[str, ...]
    sqnr: tuple[float, ...]
    #: the engine of the delegates, and whether all their outputs had to be equal bit for bit
    engine: str = "npu"
    exact: bool = True
    torch: tuple[Match, ...] = ()
    bundle: BundleVerdict | None = None

    @property
    def ok(self) -> bool:
        checked = self.bundle is None or self.bundle.ok
        return checked and not self.differences and all(match.ok for match in self.torch)

    def to_json(self) -> dict[str, Any]:
        # JSON has no infinity: there is no figure without noise, or where a number became NaN.
        sqnr = [figure if math.isfinite(figure) else None for figure in self.sqnr]
        largest = [d.largest if math.isfinite(d.largest) else None for d in self.differences]
        wrong = [asdict(d) | {"largest": n} for d, n in zip(self.differences, largest, strict=True)]
        torch = [match.to_json() for match in self.torch]
        plain = asdict(self) | {"sqnr": sqnr, "differences": wrong, "torch": torch}
        return {"schema": SCHEMA, "ok": self.ok, **plain, "bundle": self.bundle and self.bundle.to_json()}

    def __str__(self) -> str:
        where = "" if self.engine == "npu" else f" on {self.engine.capitalize()}"
        how = "bit for bit" if self.exact else "integers bit for bit, floats by their tolerance"
        lines = [f"{self.compared} delegate runs{where} compared with the TOSA reference model, {how}"]
        if self.engine == "tosa":
            lines = ["delegates run by the TOSA reference model"]
        if self.bundle is not None:
            lines = [str(self.bundle), *(lines if self.compared else ())]
        for d in self.differences:
            lines.append(
                f"DIFFERENT: delegate {d.delegate}, output {d.output}, {d.inputs} inputs: {d.count} of {d.size} "
                f"elements, by up to {d.largest:g}"
            )
            if d.first:
                lines.append("  first at " + ", ".join(f"{k} {v}" for k, v in d.first.items() if v))
        lines += [f"not checked: {s}" for s in self.skipped]
        lines += map(str, self.torch)
        graphs = {m.output: f" (torch's quantized graph: {m.torch_sqnr:.1f} dB)" for m in self.torch if m.is_measured}
        for i, figure in enumerate(self.sqnr):
            lines.append(f"output {i}: SQNR vs. float {figure:.1f} dB{graphs.get(i, '')}")
        lines.append(self._summarize())
        return "\n".join(lines)

    def _summarize(self) -> str:
        if not self.ok:
            return "FAIL"
        return "PASS: bit-exact" if self.exact and self.compared else "PASS"


class _Compare:
    """An executor that runs a delegate on the device and on the reference model, and collects differences."""

    def __init__(self, device: Executor, truth: Executor, plan: Plan, sidecar: Sidecar, budget: Budget) -> None:
        self.device, self.truth, self.sidecar = device, truth, sidecar
        self.index = {d.blob: i for i, d in enumerate(plan.delegates)}
        # A delegate of another backend has no graph, and is never called.
        graphs = {i: read_tosa(files.tosa, budget) for i, files in enumerate(sidecar.delegates) if files.tosa}
        self.types = {i: [value.dtype for value in graph.outputs] for i, graph in graphs.items()}
        self.exact = {i: is_exact(graph) for i, graph in graphs.items()}
        self.label, self.compared = "", 0
        #: the smallest and the largest number in each input of each delegate, over the samples
        self.ranges: dict[tuple[bytes, int], tuple[int, int]] = {}
        self.differences: list[Difference] = []
        self.skipped: list[str] = []

    def __call__(
        self, blob: bytes, specs: Sequence[tuple[str, bytes]], inputs: list[Array], outputs: list[TensorType]
    ) -> list[Array]:
        index = self.index[blob]
        is_sample = not self.label.startswith("random")
        try:
            want = self.truth(blob, specs, inputs, outputs)
        except Undefined as error:
            self.skipped.append(f"delegate {index} on {self.label} inputs: {error.what} ({error.why})")
            # The program goes on with a sample, and its result is compared with torch's.
            return self.device(blob, specs, inputs, outputs) if is_sample else []
        got = self.device(blob, specs, inputs, outputs)
        if is_sample:
            self._note_ranges(blob, inputs)
        self.compared += 1
        first: dict[str, str] | None = None
        for position, (a, b) in enumerate(zip(got, want, strict=True)):
            gap, allowed = measure(a, b, self.types[index][position], self.exact[index])
            wrong = int(np.count_nonzero(gap > allowed))
            if not wrong:
                continue
            if first is None:
                files, fast = self.sidecar.delegates[index], find_fast_scratch(specs)
                # A Vulkan device exposes only its outputs, and the .tosa of another compiler has no debug database.
                is_open = isinstance(self.device, Npu) and bool(files.debug_db)
                first = locate(blob, inputs, files, fast) if is_open else {}
            largest = float(gap.max())
            self.differences.append(Difference(index, self.label, position, wrong, gap.size, largest, first))
        return got

    def _note_ranges(self, blob: bytes, inputs: Sequence[Array]) -> None:
        for position, array in enumerate(inputs):
            if array.dtype.kind == "i" and array.size:
                low, high = self.ranges.get((blob, position), (int(array.min()), int(array.max())))
                self.ranges[blob, position] = min(low, int(array.min())), max(high, int(array.max()))


def is_exact(graph: Graph) -> bool:
    """Tell whether every float of the graph is exactly determined: it is moved, or converted with constants."""
    for op in graph.ops:
        floats = [v for v in op.inputs if v.dtype.is_float and (v.op is None or v.op.kind != "CONST")]
        if not floats and not any(v.dtype.is_float for v in op.outputs):
            continue
        if op.kind not in _CONVERSIONS or (len(floats) > 1 and op.kind != "CONCAT"):
            return False
    return True


def measure(got: Array, want: Array, dtype: DType, exact: bool) -> tuple[npt.NDArray[np.float64], float]:
    """Return the distance of each number, and the tolerance."""
    a, b = (decode(array, dtype).reshape(-1).astype(np.float64) for array in (got, want))
    gap = measure_gap(a, b)
    if exact or not dtype.is_float:
        return gap, 0.0
    return gap, allow(float(np.abs(b[np.isfinite(b)]).max(initial=0.0)), dtype.torch_name)


def verify(
    pte: bytes,
    sidecar: Sidecar | None,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    max_memory: int | None = None,
    data: Sequence[bytes] = (),
    tosa: Sequence[bytes] = (),
    cases: Sequence[Case] = (),
) -> Verdict:
    """Compare every delegate of a .pte with its TOSA, on random and on sample inputs, and the samples with torch.

    `data` are the .ptd files of the program. `tosa` are .tosa files of its delegates, in their order, which replace the
    sidecar. `cases` are the test cases of a bundle; with them, the sidecar may be missing.
    """
    program = read(pte, data, max_memory=max_memory)
    if tosa:
        sidecar = match_tosa(pte, program, tosa, max_memory)
    plan = program.find("forward")
    foreign = _list_foreign(plan)
    if sidecar is None and (foreign or not cases):
        raise _miss_sidecar()
    if sidecar is not None:
        sidecar.check(pte)
        check_samples(sidecar)
    budget = Budget(len(pte) + program.data_size, max_memory)
    budget.take(sum(plan.planned_sizes), "the memory plan of the program")
    engine, truth = _choose(plan), make_reference(plan, sidecar)
    device = None if engine == "tosa" else ENGINES[engine].open(plan, sidecar, budget)
    compare = None if device is None or sidecar is None else _Compare(device, truth, plan, sidecar, budget)
    executors = {delegate.id: compare or device or truth for delegate in plan.delegates}
    skipped = [*([] if plan.delegates else ["the NPU: no part of the program runs on it"]), *foreign]

    def run(inputs: Sequence[Array], label: str) -> list[Array]:
        if compare is not None:
            compare.label = label
        # A new one each time: a program may write to its buffers.
        return Method(program, executors=executors, max_memory=max_memory).run(inputs)

    checked = None
    if cases and foreign:
        skipped.append("the test cases: `tosaic run --engine executorch` runs them with delegates of other backends")
    elif cases:
        checked = check_cases(plan, cases, [run(case.inputs, f"case {i}") for i, case in enumerate(cases)])
    if sidecar is None:
        skipped.append("the delegates against TOSA: there is neither a .tosaic file nor `--tosa`")
        return Verdict(0, (), tuple(skipped), (), engine, exact=False, bundle=checked)
    results = [run(sidecar.as_called(sample.inputs), f"sample {i}") for i, sample in enumerate(sidecar.samples)]
    if compare is not None:
        _run_random(program, plan, compare, rounds, np.random.default_rng(seed), max_memory)
        skipped += compare.skipped
    skipped += _list_missing(sidecar)
    matches = judge(results, sidecar) if results and all(sample.torch for sample in sidecar.samples) else ()
    differences = () if compare is None else tuple(compare.differences)
    compared, exact = (0, False) if compare is None else (compare.compared, all(compare.exact.values()))
    sqnr = _compute_sqnr(results, sidecar)
    return Verdict(compared, differences, tuple(skipped), sqnr, engine, exact, matches, checked)


def _miss_sidecar() -> Invalid:
    return Invalid(
        "the .tosaic file is missing",
        why="it contains the TOSA graphs, the samples and the source lines",
        fix=Hint(
            "compile without `with_sidecar=False` and keep both files together; after ExecuTorch's own API call "
            "`tosaic.write_sidecar`, or pass `tosa`",
            "compile without `--no-sidecar` and keep both files together; after ExecuTorch's own API call "
            "`tosaic.write_sidecar`, or pass the .tosa files with `--tosa`",
        ),
    )


def _list_foreign(plan: Plan) -> list[str]:
    """List the delegates of other backends, which are not checked."""
    return [f"delegate {i}: it is for `{d.id}`" for i, d in enumerate(plan.delegates) if d.id not in BACKENDS]


def _run_random(
    program: Pte,
    plan: Plan,
    compare: _Compare,
    rounds: int,
    generator: np.random.Generator,
    max_memory: int | None,
) -> None:
    """Run every delegate on random inputs."""
    ready = Method(program, executors={}, max_memory=max_memory)
    for round_ in range(rounds):
        compare.label = f"random {round_}"
        for call in plan.instructions:
            if isinstance(call, DelegateCall) and plan.delegates[call.delegate].id in BACKENDS:
                _feed(ready, call, compare, generator)


def _list_missing(sidecar: Sidecar) -> list[str]:
    """List the checks that the .tosaic file has no data for."""
    if not sidecar.samples:
        return ["the distance from torch and from float: there are no samples"]
    missing: list[str] = []
    if not all(sample.torch for sample in sidecar.samples):
        missing.append("the distance from torch: the .tosaic file has an older format; compile the model again")
    elif any(trait.quantized for trait in sidecar.traits) and not all(sample.outputs for sample in sidecar.samples):
        missing.append("the distance from float: the model was already quantized")
    return missing


def _choose(plan: Plan) -> str:
    """Choose the engine that runs the delegates."""
    engines = find_engines(plan) or {"npu"}
    known = engines - {""}
    if len(known) == 1:
        return known.pop()
    backends = sorted({d.id for d in plan.delegates})
    titles = ", ".join(engine.title for engine in ENGINES.values())
    raise Invalid(
        f"the program has delegates for {', '.join(backends)}",
        why=f"verify takes programs whose delegates all run on one of: {titles}",
        fix="compile for one target, or compare the outputs of `tosaic run` with two engines",
    )


def _feed(method: Method, call: DelegateCall, compare: _Compare, generator: np.random.Generator) -> None:
    """Run one delegate on random numbers over the full range of its input types."""
    plan = method.plan
    given, taken = method.split(call)
    delegate = plan.delegates[call.delegate]
    inputs: list[Array] = []
    for position, index in enumerate(given):
        value = plan.values[index]
        assert isinstance(value, Tensor)
        inputs.append(_random(value, generator, compare.ranges.get((delegate.blob, position), _SHORT)))
    outputs = [type_of(v) for i in taken if isinstance(v := plan.values[i], Tensor)]
    compare(delegate.blob, delegate.compile_specs, inputs, outputs)


def _random(tensor: Tensor, generator: np.random.Generator, wide: tuple[int, int]) -> Array:
    """Draw numbers: `wide` is the range of those of 32 bits."""
    kind = type_of(tensor)
    if tensor.dtype in ("float32", "float16"):
        return generator.uniform(-_FLOATS, _FLOATS, kind.shape).astype(kind.dtype)
    if tensor.dtype in SMALL_FLOATS:
        numbers = generator.uniform(-_FLOATS, _FLOATS, kind.shape)
        return numbers.astype(SMALL_FLOATS[tensor.dtype]).view(kind.dtype)
    if kind.dtype == np.bool_:
        return generator.integers(0, 2, kind.shape).astype(np.bool_)
    info = np.iinfo(kind.dtype.name)
    low, high = wide if info.bits == 32 else (info.min, info.max)
    return generator.integers(low, high + 1, kind.shape).astype(kind.dtype)


def _compute_sqnr(results: Sequence[list[Array]], sidecar: Sidecar) -> tuple[float, ...]:
    """Compute the signal-to-quantization-noise ratio of every output, over all samples."""
    if not results or not all(sample.outputs for sample in sidecar.samples):
        return ()
    figures: list[float] = []
    for i, declared in enumerate(sidecar.outputs):
        floats = [decode_real(sample.outputs[i], declared.dtype) for sample in sidecar.samples]
        figures.append(find_sqnr([as_real(result[i], declared) for result in results], floats))
    return tuple(figures)
