"""Tensors that leave a VGF delegate twice, or as they came, and inputs with channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import to_edge_transform_and_lower

import tosaic
from support.samples import Call
from tosaic.engines import engine, vulkan
from tosaic.vgf import VgfCompileSpec, VgfPartitioner

pytestmark = pytest.mark.skipif(not vulkan.probe().ok, reason=f"{vulkan.probe().reason}; {vulkan.probe().fix}")
X = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(3)) * 3.0


@pytest.mark.parametrize("quantized", [True, False], ids=["int8", "fp"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.mean([2, 3]), x.mean([2, 3]).clamp(0.0)),
        lambda x: (x + 1.0, (x + 1.0).reshape(48), x * 2.0),
        lambda x: ((x > 1.0), (x > 1.0).reshape(3, 16)),
        lambda x: (x.to(torch.int32), x.to(torch.int32).view(1, 3, 4, 4)),
        lambda x: (x + 1.0, (x + 1.0).amin(0, keepdim=True), (x + 1.0).sum(0, keepdim=True)),
        lambda x: (x + 1.0, (x + 1.0).flip(0), (x + 1.0).repeat(1, 1, 1, 1)),
    ],
    ids=["clamp", "reshape", "bool", "int", "reduce", "move"],
)
def test_a_tensor_that_leaves_twice(function: Callable[..., Any], quantized: bool) -> None:
    model = Call(function).eval()
    program = tosaic.compile(model, (X,), "vgf", calibration=[(X,)], quantized=quantized)
    assert program.verify(rounds=1).ok
    for got, want in zip(program.run(X), model(X), strict=True):
        np.testing.assert_allclose(got, want.numpy(), atol=0.05)


def find_means(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    means = x.reshape(-1).repeat(48)[:714].reshape(1, 17, 6, 7).mean([2, 3])
    return means, means.clamp(0.0)


def test_a_result_that_leaves_as_it_is_and_bounded() -> None:
    x = torch.rand(3, 5, generator=torch.Generator().manual_seed(33687)) * 3.684 - 0.833
    program = tosaic.compile(Call(find_means).eval(), (x,), "vgf", calibration=[(x,)])
    assert program.verify(rounds=1).ok


@pytest.mark.parametrize("function", [lambda x: x + 1.0, lambda x: x.sum(1)], ids=["image", "sum"])
def test_an_input_with_channels_last(function: Callable[..., Any]) -> None:
    x = X.contiguous(memory_format=torch.channels_last)
    model = Call(function).eval()
    edge = to_edge_transform_and_lower(torch.export.export(model, (x,)), partitioner=[VgfPartitioner(VgfCompileSpec())])
    (got,) = engine.run(bytes(edge.to_executorch().buffer), [x.numpy()]).outputs
    torch.testing.assert_close(torch.from_numpy(got), model(x), rtol=0, atol=1e-5)
