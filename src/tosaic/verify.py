"""Proof: what the NPU or the Vulkan device computes is what TOSA means, and how far both are from float.

Integers must be equal bit for bit, and so must floats that are only converted from or to integers. Other floats may be
off by a little: TOSA does not say in which order a sum is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tosaic.errors import Invalid
from tosaic.runtime.engine import VGF_BACKEND, references
from tosaic.runtime.host import BACKEND as NPU_BACKEND
from tosaic.runtime.host import Executor, Method, Npu, find_fast_scratch
from tosaic.runtime.npy import Array
from tosaic.runtime.pte import DelegateCall, Plan, Pte, Tensor, read
from tosaic.runtime.sidecar import Sidecar
from tosaic.runtime.tensors import TensorType, type_of
from tosaic.tools.reference import Undefined
from tosaic.tosa.encode import decode
from tosaic.tosa.flatbuffer import read as read_tosa
from tosaic.tosa.ir import DType, Graph
from tosaic.verify_locate import locate

SCHEMA = "tosaic-verify/1"
#: full-range random inputs per delegate, beside the samples
ROUNDS = 2
#: the range of random floats
_FLOATS = 4.0
#: how far float32 may be off, as a part of the largest magnitude, and 16-bit floats in steps at that magnitude
_SHARE, _STEPS = 1e-5, 16
_FRACTION_BITS = {DType.F16: 10, DType.BF16: 7}
#: what only moves or converts floats, or computes them with one constant in one rounding
_CONVERSIONS = frozenset({"ADD", "CAST", "CLAMP", "GATHER", "MUL", "SUB"}) | frozenset(
    {"CONCAT", "CONST", "IDENTITY", "PAD", "RESHAPE", "REVERSE", "SLICE", "TILE", "TRANSPOSE"}
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One output of one delegate that is not what TOSA says."""

    delegate: int
    inputs: str
    output: int
    count: int
    size: int
    largest: float
    first: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was compared, what differed, what could not be checked, and the distance from float in dB per output."""

    compared: int
    differences: tuple[Difference, ...]
    skipped: tuple[str, ...]
    sqnr: tuple[float, ...]
    #: where the delegates ran, and whether all that they gave had to be equal bit for bit
    engine: str = "npu"
    exact: bool = True

    @property
    def ok(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        # JSON has no infinity: without any noise there is no figure, and none for a number that became none.
        sqnr = [figure if math.isfinite(figure) else None for figure in self.sqnr]
        largest = [d.largest if math.isfinite(d.largest) else None for d in self.differences]
        wrong = [asdict(d) | {"largest": n} for d, n in zip(self.differences, largest, strict=True)]
        return {"schema": SCHEMA, "ok": self.ok, **asdict(self), "sqnr": sqnr, "differences": wrong}

    def __str__(self) -> str:
        where = "" if self.engine == "npu" else f" on {self.engine.capitalize()}"
        how = "bit for bit" if self.exact else "integers bit for bit, floats by their tolerance"
        lines = [f"{self.compared} delegate runs{where} compared with the TOSA reference model, {how}"]
        for d in self.differences:
            lines.append(
                f"DIFFERENT: delegate {d.delegate}, output {d.output}, {d.inputs} inputs: {d.count} of {d.size} "
                f"elements, by up to {d.largest:g}"
            )
            if d.first:
                lines.append("  first at " + ", ".join(f"{k} {v}" for k, v in d.first.items() if v))
        lines += [f"not checked: {s}" for s in self.skipped]
        lines += [f"output {i}: {s:.1f} dB from float (SQNR over the samples)" for i, s in enumerate(self.sqnr)]
        lines.append("equal" if self.ok else "NOT equal")
        return "\n".join(lines)


class _Compare:
    """An executor that runs a delegate on the device and on the reference model, and keeps what differs."""

    def __init__(self, device: Executor, truth: Executor, plan: Plan, sidecar: Sidecar) -> None:
        self.device, self.truth, self.sidecar = device, truth, sidecar
        self.index = {d.blob: i for i, d in enumerate(plan.delegates)}
        graphs = [read_tosa(files.tosa) for files in sidecar.delegates]
        self.types = [[value.dtype for value in graph.outputs] for graph in graphs]
        self.exact = [is_exact(graph) for graph in graphs]
        self.label, self.compared = "", 0
        self.differences: list[Difference] = []

    def __call__(
        self, blob: bytes, specs: Sequence[tuple[str, bytes]], inputs: list[Array], outputs: list[TensorType]
    ) -> list[Array]:
        index = self.index[blob]
        want = self.truth(blob, specs, inputs, outputs)
        got = self.device(blob, specs, inputs, outputs)
        self.compared += 1
        first: dict[str, str] | None = None
        for position, (a, b) in enumerate(zip(got, want, strict=True)):
            gap, allowed = measure(a, b, self.types[index][position], self.exact[index])
            wrong = int(np.count_nonzero(gap > allowed))
            if not wrong:
                continue
            if first is None:
                # A Vulkan device shows nothing but its outputs.
                on_npu = isinstance(self.device, Npu)
                files, fast = self.sidecar.delegates[index], find_fast_scratch(specs)
                first = locate(blob, inputs, files, fast) if on_npu else {}
            largest = float(gap.max())
            self.differences.append(Difference(index, self.label, position, wrong, gap.size, largest, first))
        return got


def is_exact(graph: Graph) -> bool:
    """Whether every float of the graph is determined to the last bit: it is moved, or converted with constants."""
    for op in graph.ops:
        floats = [v for v in op.inputs if v.dtype.is_float and (v.op is None or v.op.kind != "CONST")]
        if not floats and not any(v.dtype.is_float for v in op.outputs):
            continue
        if op.kind not in _CONVERSIONS or (len(floats) > 1 and op.kind != "CONCAT"):
            return False
    return True


def measure(got: Array, want: Array, dtype: DType, exact: bool) -> tuple[npt.NDArray[np.float64], float]:
    """How far each number is off, and how far it may be."""
    a, b = (decode(array, dtype).reshape(-1).astype(np.float64) for array in (got, want))
    with np.errstate(invalid="ignore"):
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    # Not a number on one side only, or infinity against a number.
    gap = np.where(np.isnan(gap), np.inf, gap)
    if exact or not dtype.is_float:
        return gap, 0.0
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    if dtype is DType.F32:
        return gap, _SHARE * max(1.0, largest)
    return gap, _STEPS * 2.0 ** (math.frexp(largest)[1] - 1 - _FRACTION_BITS[dtype]) if largest else 0.0


def verify(pte: bytes, sidecar: Sidecar | None, *, rounds: int = ROUNDS, seed: int = 0) -> Verdict:
    """Compare every delegate of a .pte with its TOSA, on random and on sample inputs."""
    if sidecar is None:
        raise Invalid(
            "there is no .tosaic file to compare with",
            why="it holds the TOSA graphs, the samples and the source lines",
            fix="compile again without `with_sidecar=False`, and keep both files together",
        )
    sidecar.check(pte)
    program = read(pte)
    plan = program.find("forward")
    engine, backend = _choose(plan)
    compare = _Compare(_open(engine), references(plan, sidecar)[backend], plan, sidecar)
    skipped = [] if plan.delegates else ["the NPU: nothing of the program runs on it"]
    generator = np.random.default_rng(seed)
    for round_ in range(rounds):
        compare.label = f"random {round_}"
        for call in _delegate_calls(plan):
            try:
                _feed(program, plan, call, compare, generator)
            except Undefined as error:
                skipped.append(f"delegate {call.delegate} on {compare.label} inputs: {error.what} ({error.why})")
    results: list[list[Array]] = []
    for number, sample in enumerate(sidecar.samples):
        compare.label = f"sample {number}"
        # Anew each time: a program may write to its buffers.
        results.append(Method(program, executors={backend: compare}).run(_as_called(sample.inputs, sidecar)))
    if not sidecar.samples:
        skipped.append("the distance from float: the .tosaic file holds no samples")
    differences, sqnr = tuple(compare.differences), _sqnr(results, sidecar)
    return Verdict(compare.compared, differences, tuple(skipped), sqnr, engine, all(compare.exact))


def _choose(plan: Plan) -> tuple[str, str]:
    """The engine that runs the delegates, and their backend."""
    backends = {d.id for d in plan.delegates}
    if backends <= {NPU_BACKEND}:
        return "npu", NPU_BACKEND
    if backends == {VGF_BACKEND}:
        return "vulkan", VGF_BACKEND
    raise Invalid(
        f"the program has delegates for {', '.join(sorted(backends))}",
        why="what can be compared with TOSA is the simulated NPU or a Vulkan device",
        fix="compile for an Ethos-U or for VGF, or compare the outputs of `tosaic run` with two engines",
    )


def _open(engine: str) -> Executor:
    if engine == "npu":
        return Npu()
    from tosaic.runtime import vulkan

    vulkan.require()
    return vulkan.Vulkan()


def _delegate_calls(plan: Plan) -> list[DelegateCall]:
    return [i for chain in plan.chains for i in chain.instructions if isinstance(i, DelegateCall)]


def _feed(program: Pte, plan: Plan, call: DelegateCall, compare: _Compare, generator: np.random.Generator) -> None:
    """Run one delegate on random numbers over the full range of its input types."""
    given, taken = Method(program, executors={}).split(call)
    inputs: list[Array] = []
    for index in given:
        value = plan.values[index]
        assert isinstance(value, Tensor)
        inputs.append(_random(value, generator))
    outputs = [type_of(v) for i in taken if isinstance(v := plan.values[i], Tensor)]
    delegate = plan.delegates[call.delegate]
    compare(delegate.blob, delegate.compile_specs, inputs, outputs)


def _random(tensor: Tensor, generator: np.random.Generator) -> Array:
    kind = type_of(tensor)
    if tensor.dtype in ("float32", "float16"):
        return generator.uniform(-_FLOATS, _FLOATS, kind.shape).astype(kind.dtype)
    if tensor.dtype == "bfloat16":
        return generator.uniform(-_FLOATS, _FLOATS, kind.shape).astype(ml_dtypes.bfloat16).view(kind.dtype)
    if kind.dtype == np.bool_:
        return generator.integers(0, 2, kind.shape).astype(np.bool_)
    info = np.iinfo(kind.dtype.name)
    # Sums and products of int32 overflow in TOSA, where they are not defined: stay within 16 bits there.
    low, high = (max(info.min, -(1 << 15)), min(info.max, (1 << 15) - 1))
    return generator.integers(low, high + 1, kind.shape).astype(kind.dtype)


def _as_called(arrays: Sequence[Array], sidecar: Sidecar) -> list[Array]:
    """Float samples in the layout and codes that the program is called with."""
    out: list[Array] = []
    for array, border in zip(arrays, sidecar.inputs, strict=True):
        value = array.transpose(0, 2, 3, 1) if border.layout == "nhwc" and array.ndim == 4 else array
        if border.scale is not None and border.zero_point is not None and array.dtype.kind == "f":
            steps = np.rint(value.astype(np.float32) * np.float32(1.0 / border.scale)) + border.zero_point
            info = np.iinfo(border.dtype)
            value = np.clip(steps, info.min, info.max).astype(border.dtype)
        out.append(np.require(value, requirements="C"))
    return out


def _as_float(array: Array, position: int, sidecar: Sidecar) -> npt.NDArray[np.float64]:
    border = sidecar.outputs[position]
    value = array.astype(np.float64)
    if border.scale is not None and border.zero_point is not None:
        value = (value - border.zero_point) * border.scale
    return value.transpose(0, 3, 1, 2) if border.layout == "nhwc" and value.ndim == 4 else value


def _sqnr(results: Sequence[list[Array]], sidecar: Sidecar) -> tuple[float, ...]:
    """Signal to quantisation noise of every float output, over all samples."""
    if not results:
        return ()
    figures: list[float] = []
    for position in range(len(results[0])):
        signal = noise = 0.0
        for got, sample in zip(results, sidecar.samples, strict=True):
            want = sample.outputs[position].astype(np.float64)
            signal += float(np.square(want).sum())
            noise += float(np.square(_as_float(got[position], position, sidecar) - want).sum())
        figures.append(float("inf") if noise == 0 else 10.0 * float(np.log10(max(signal, 1e-300) / noise)))
    return tuple(figures)
