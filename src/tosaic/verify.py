"""Proof: what the NPU computes equals what TOSA means, bit for bit, and how far both are from float."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tosaic.errors import Invalid
from tosaic.runtime.engine import references
from tosaic.runtime.host import BACKEND as NPU_BACKEND
from tosaic.runtime.host import Executor, Method, Npu, find_fast_scratch
from tosaic.runtime.npy import Array
from tosaic.runtime.pte import DelegateCall, Plan, Pte, Tensor, read
from tosaic.runtime.sidecar import Sidecar
from tosaic.runtime.tensors import TensorType, type_of
from tosaic.tools.reference import Undefined
from tosaic.verify_locate import locate

SCHEMA = "tosaic-verify/1"
#: full-range random inputs per delegate, beside the samples
ROUNDS = 2


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

    @property
    def ok(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        # JSON has no infinity: without any noise there is no figure.
        sqnr = [figure if math.isfinite(figure) else None for figure in self.sqnr]
        return {"schema": SCHEMA, "ok": self.ok, **asdict(self), "sqnr": sqnr}

    def __str__(self) -> str:
        lines = [f"{self.compared} delegate runs compared with the TOSA reference model, bit for bit"]
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
            gap = a.reshape(-1).astype(np.float64) - b.reshape(-1).astype(np.float64)
            wrong = int(np.count_nonzero(gap))
            if not wrong:
                continue
            if first is None:
                first = locate(blob, inputs, self.sidecar.delegates[index], find_fast_scratch(specs))
            largest = float(np.abs(gap).max())
            self.differences.append(Difference(index, self.label, position, wrong, gap.size, largest, first))
        return got


def verify(pte: bytes, sidecar: Sidecar | None, *, rounds: int = ROUNDS, seed: int = 0) -> Verdict:
    """Compare every Ethos-U delegate of a .pte with its TOSA, on random and on sample inputs."""
    if sidecar is None:
        raise Invalid(
            "there is no .tosaic file to compare with",
            why="it holds the TOSA graphs, the samples and the source lines",
            fix="compile again without --no-sidecar, and keep both files together",
        )
    sidecar.check(pte)
    program = read(pte)
    plan = program.find("forward")
    truth = references(plan, sidecar)[NPU_BACKEND]
    compare = _Compare(Npu(), truth, plan, sidecar)
    others = sorted({d.id for d in plan.delegates} - {NPU_BACKEND})
    if others:
        raise Invalid(
            f"the program has delegates for {', '.join(others)}",
            why="what can be compared with TOSA is the simulated NPU",
            fix="compile for an Ethos-U, or compare the outputs of `tosaic run` with two engines",
        )
    skipped = [] if plan.delegates else ["the NPU: nothing of the program runs on it"]
    generator = np.random.default_rng(seed)
    for round_ in range(rounds):
        compare.label = f"random {round_}"
        for call in _delegate_calls(plan):
            try:
                _feed(program, plan, call, compare, generator)
            except Undefined as error:
                skipped.append(f"delegate {call.delegate} on {compare.label} inputs: {error.what} ({error.why})")
    method = Method(program, executors={NPU_BACKEND: compare})
    results: list[list[Array]] = []
    for number, sample in enumerate(sidecar.samples):
        compare.label = f"sample {number}"
        results.append(method.run(_as_called(sample.inputs, sidecar)))
    if not sidecar.samples:
        skipped.append("the distance from float: the .tosaic file holds no samples")
    return Verdict(compare.compared, tuple(compare.differences), tuple(skipped), _sqnr(results, sidecar))


def _delegate_calls(plan: Plan) -> list[DelegateCall]:
    calls = [i for chain in plan.chains for i in chain.instructions if isinstance(i, DelegateCall)]
    return [c for c in calls if plan.delegates[c.delegate].id == NPU_BACKEND]


def _feed(program: Pte, plan: Plan, call: DelegateCall, compare: _Compare, generator: np.random.Generator) -> None:
    """Run one delegate on random numbers over the full range of its input types."""
    given, taken = Method(program, executors={}).split(call)
    inputs: list[Array] = []
    for index in given:
        value = plan.values[index]
        assert isinstance(value, Tensor)
        inputs.append(_random(type_of(value), generator))
    outputs = [type_of(v) for i in taken if isinstance(v := plan.values[i], Tensor)]
    delegate = plan.delegates[call.delegate]
    compare(delegate.blob, delegate.compile_specs, inputs, outputs)


def _random(kind: TensorType, generator: np.random.Generator) -> Array:
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
        if border.scale is not None and border.zero_point is not None and array.dtype == np.float32:
            steps = np.rint(value.astype(np.float32) * np.float32(1.0 / border.scale)) + border.zero_point
            value = np.clip(steps, -128, 127).astype(np.int8)
        out.append(np.ascontiguousarray(value))
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
