"""For tests of your own operators and models: compile one for a target, run it here, and compare it with torch.

from tosaic.testing import FLAVORS, Tester

@pytest.mark.parametrize("flavor", FLAVORS)
def test_my_block(flavor):
    Tester(MyBlock(), (torch.randn(1, 8, 16, 16),)).check(flavor)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torchao.quantization.pt2e.quantizer import Quantizer

from tosaic.api.build import compile
from tosaic.api.program import Program
from tosaic.core.errors import Invalid

__all__ = ["FLAVORS", "Tester"]

#: The target of each flavor. FP: computed in float; INT: quantized to int8.
FLAVORS: Mapping[str, str] = MappingProxyType(
    {
        "tosa_FP": "TOSA-1.0+FP",
        "tosa_INT": "TOSA-1.0+INT",
        "u55_INT": "ethos-u55-128",
        "u65_INT": "ethos-u65-256",
        "u85_INT": "ethos-u85-256",
        "vgf_FP": "vgf",
        "vgf": "vgf",
    }
)
#: The endings of flavors in TOSA 0.80, whose profiles had other names.
_OLD_ENDINGS: Mapping[str, str] = {"_MI": "_FP", "_BI": "_INT"}


class Tester:
    """Checks that a model runs on a target, all of it and with the right results.

    model        an nn.Module in eval mode
    inputs       a tuple of example inputs; torch's results for them are compared
    calibration  samples to measure ranges with; the example inputs by default
    quantizer    an own quantizer instead of int8 everywhere
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: Sequence[torch.Tensor],
        *,
        calibration: Iterable[Any] | None = None,
        quantizer: Quantizer | None = None,
    ) -> None:
        self.model, self.inputs = model, tuple(inputs)
        self.samples = [self.inputs] if calibration is None else list(calibration)
        self.quantizer = quantizer

    def compile(self, flavor: str) -> Program:
        """Compile the model."""
        target = FLAVORS.get(flavor)
        if target is None:
            raise Invalid(f"unknown flavor `{flavor}`", fix=f"use {_find_new_name(flavor) or ', '.join(FLAVORS)}")
        quantized = not flavor.endswith("_FP")
        samples = self.samples if quantized else None
        return compile(
            self.model, self.inputs, target, calibration=samples, quantizer=self.quantizer, quantized=quantized
        )

    def check(self, flavor: str, *, delegates: int | None = 1, fallbacks: Iterable[str] = ()) -> Program:
        """Compile the model, run it, and raise AssertionError if something is wrong.

        Every delegate has to equal the TOSA reference model bit for bit, and the outputs those of torch's quantized
        graph (of torch itself in a float flavor). `fallbacks` are the operators that may stay on the CPU, such as
        `aten.sort.default`, with what follows them; `delegates` the number of delegates, None for any.
        """
        program = self.compile(flavor)
        allowed = set(fallbacks)
        causes = {r.node for r in program.reasons if r.op in allowed}
        left = [r for r in program.reasons if not r.is_io and r.op not in allowed and r.cause not in causes]
        if left:
            raise AssertionError("\n".join([f"{flavor}: {len(left)} nodes are on the CPU", *map(str, left)]))
        if delegates is not None and len(program.delegates) != delegates:
            raise AssertionError(f"{flavor}: {len(program.delegates)} delegates instead of {delegates}")
        verdict = program.verify()
        if not verdict.ok:
            raise AssertionError(f"{flavor}: {verdict}")
        return program


def _find_new_name(flavor: str) -> str:
    ending = next((old for old in _OLD_ENDINGS if flavor.endswith(old)), "")
    name = flavor.removesuffix(ending) + _OLD_ENDINGS.get(ending, "")
    found = {known.lower(): known for known in FLAVORS}.get(name.lower(), "")
    return f"`{found}`, its name since TOSA 1.0" if ending and found else ""
