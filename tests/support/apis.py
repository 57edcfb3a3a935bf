"""One program through both APIs, run by the engines that are in the box."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import nn
from torch.utils._pytree import tree_leaves

import tosaic
from tosaic.api.build import make_spec
from tosaic.api.prepare import quantize
from tosaic.driver.exir import TosaicPartitioner
from tosaic.driver.exported import export
from tosaic.engines import engine
from tosaic.ethosu import EthosUPartitioner
from tosaic.tosa import TOSAPartitioner
from tosaic.vgf import VgfPartitioner


class Call(nn.Module):
    """A function as a model, with a layer that it may use."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.layer = nn.Linear(8, 8)
        random = torch.Generator().manual_seed(3)
        for parameter in self.layer.parameters():
            parameter.data.uniform_(-0.4, 0.4, generator=random)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self.layer, *inputs)


def partitioner(target: str) -> TosaicPartitioner:
    kinds: dict[str, Any] = {"vgf": VgfPartitioner, "tosa": TOSAPartitioner}
    spec = make_spec(target)
    return kinds.get(spec.target.family, EthosUPartitioner)(spec)


def check_numbers(got: Any, model: nn.Module, inputs: Any) -> None:
    """What torch computes, up to quantization."""
    with torch.no_grad():
        expected = tree_leaves(model(*inputs))
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == tuple(b.shape)
        np.testing.assert_allclose(
            a.astype(np.float64), b.double().numpy(), atol=0.03 * float(b.double().abs().max()) + 1e-6
        )


def compile_both(
    function: Any, inputs: Any, target: str, model: nn.Module | None = None
) -> tuple[tosaic.Program, TosaicPartitioner]:
    """Compile through both APIs, run both files, and compare with torch. `model` calls the function if it is given."""
    model = model or Call(function).eval()
    program = tosaic.compile(model, inputs, target)
    # The Vulkan driver of a machine without a GPU takes half a minute.
    for name in ("tosa",) if target == "vgf" else ("auto", "tosa"):
        check_numbers(program.run(*inputs, engine=name), model, inputs)
    exported = export(model, inputs)
    if "INT" in program.target.tosa_spec:
        exported = torch.export.export(quantize(exported, [inputs]), inputs)
    used = partitioner(target)
    pte = bytes(to_edge_transform_and_lower(exported, partitioner=[used]).to_executorch().buffer)
    if program.target.family != "vgf":
        check_numbers(engine.run(pte, [x.numpy() for x in inputs]).outputs, model, inputs)
    return program, used


def list_left(program: tosaic.Program, used: TosaicPartitioner) -> tuple[list[str], list[str]]:
    """The operators that each API leaves to the CPU."""
    return [r.op for r in program.reasons if not r.is_io], [r.op for r in used.reasons if not r.is_io]
