"""Compares the outputs of a program with those that a bundle expects, by the rules of `verify`.

A bundle does not say how its outputs were made, so the rule comes from the types in the program: if all are integers
of 32 and 64 bits, the outputs must be equal; integers of 8 and 16 bits count as quantized values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tosaic.api.sidecar_file import list_tensors
from tosaic.api.torch_reference import Match, judge
from tosaic.core.dtypes import BY_SCALAR_TYPE
from tosaic.core.errors import Invalid
from tosaic.core.tensor_info import TensorInfo
from tosaic.formats.blob import BACKEND
from tosaic.formats.bpte import Case
from tosaic.formats.npy import Array
from tosaic.formats.pte import KernelCall, Plan, Tensor
from tosaic.formats.sidecar import Sample, Sidecar, Trait
from tosaic.report.terminal import count

_QUANTIZE = "quantized_decomposed::"
_DEQUANTIZE = "quantized_decomposed::dequantize_per_tensor"
_SHORT = ("int8", "uint8", "int16")
_EXACT = ("int32", "int64", "bool")


@dataclass(frozen=True, slots=True)
class BundleVerdict:
    """How the outputs of all test cases match, and the first value that differs where an output does not."""

    cases: int
    matches: tuple[Match, ...]
    first: str = ""

    @property
    def ok(self) -> bool:
        return all(match.ok for match in self.matches)

    def to_json(self) -> dict[str, Any]:
        matches = [match.to_json() for match in self.matches]
        return {"ok": self.ok, "cases": self.cases, "outputs": matches, "first": self.first}

    def __str__(self) -> str:
        lines = [f"{count(self.cases, 'test case')} of the bundle"]
        lines += [match.describe("the expected values") for match in self.matches]
        return "\n".join([*lines, *([f"  first at {self.first}"] if self.first else [])])


def check_cases(plan: Plan, cases: Sequence[Case], results: Sequence[Sequence[Array]]) -> BundleVerdict:
    """Compare the outputs of a method for every test case with the expected ones."""
    outputs = list_tensors(plan, plan.outputs, "output")
    if len(outputs) != len(plan.outputs):
        raise Invalid(
            f"method `{plan.name}` returns a plain number, which is not compared", fix="pass inputs to run it unchecked"
        )
    for index, (case, result) in enumerate(zip(cases, results, strict=True)):
        _check_types(index, case, result)
    sidecar = Sidecar(
        pte_sha256=hashlib.sha256().hexdigest(),
        tosaic_version="",
        target="",
        options={},
        inputs=list_tensors(plan, plan.inputs, "input"),
        outputs=tuple(map(_widen_info, outputs)),
        samples=tuple(Sample(case.inputs, torch=tuple(map(_widen, case.outputs))) for case in cases),
        traits=tuple(_find_trait(plan, index) for index in plan.outputs),
    )
    matches = judge([[*map(_widen, result)] for result in results], sidecar)
    wrong = next((match.output for match in matches if not match.ok), None)
    return BundleVerdict(len(cases), matches, "" if wrong is None else _find_first(cases, results, wrong))


def _check_types(index: int, case: Case, results: Sequence[Array]) -> None:
    if [(a.dtype, a.shape) for a in case.outputs] != [(a.dtype, a.shape) for a in results]:
        wanted, found = (", ".join(f"{a.dtype}{list(a.shape)}" for a in side) for side in (case.outputs, results))
        raise Invalid(f"test case {index} expects {wanted or 'nothing'}", why=f"the program returns {found}")


def _widen(array: Array) -> Array:
    """Return quantized values as floats, which are compared in steps."""
    return array.astype(np.float32) if str(array.dtype) in _SHORT else array


def _widen_info(info: TensorInfo) -> TensorInfo:
    return TensorInfo(info.name, info.shape, "float32") if info.dtype in _SHORT else info


def _find_trait(plan: Plan, output: int) -> Trait:
    """Find how closely an output must match, from the operators and types of the program."""
    value = plan.values[output]
    if isinstance(value, Tensor) and value.dtype in _SHORT:
        return Trait(rounded=True, quantized=True, scale=1.0, dtype=value.dtype)
    types = {tensor.dtype for tensor in plan.values if isinstance(tensor, Tensor)}
    if types <= {*_EXACT}:
        return Trait()
    kernels = [step for step in plan.instructions if isinstance(step, KernelCall)]
    names = [str(plan.operators[step.operator]) for step in kernels]
    for step, name in zip(kernels, names, strict=True):
        # Arguments: input, scale, zero point, bounds, type, ..., the output.
        if name.startswith(_DEQUANTIZE) and output in step.args[6:]:
            scale, code = plan.values[step.args[1]], plan.values[step.args[5]]
            element = BY_SCALAR_TYPE.get(code) if isinstance(code, int) else None
            if isinstance(scale, float) and scale > 0 and element is not None:
                return Trait(rounded=True, quantized=True, scale=scale, dtype=element.name)
    quantized = any(name.startswith(_QUANTIZE) for name in names) or any(d.id == BACKEND for d in plan.delegates)
    narrow = next((name for name in ("bfloat16", "float16") if name in types), "")
    return Trait(rounded=True, quantized=quantized, dtype=narrow)


def _find_first(cases: Sequence[Case], results: Sequence[Sequence[Array]], output: int) -> str:
    """Describe the first value of an output that is not the expected one."""
    for index, (case, result) in enumerate(zip(cases, results, strict=True)):
        want, got = case.outputs[output], result[output]
        places = np.argwhere(want != got)
        if len(places):
            place = tuple(places[0].tolist())
            return f"case {index}, output {output}, element {list(place)}: {got[place]} instead of {want[place]}"
    return ""
