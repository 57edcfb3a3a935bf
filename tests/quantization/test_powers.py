"""The power under a square root: with activations of 16 bits it stays in the NPU's 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tosaic
from support.modules import Call
from tosaic.api.prepare import quantize
from tosaic.driver.exported import export
from tosaic.quantization.precisions import Precision


def make_inputs(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Numbers of all magnitudes, as in a spectrum; the first two reach the ends of the range."""
    random = torch.Generator().manual_seed(0)

    def make(most: float) -> torch.Tensor:
        numbers = torch.randn(3, 400, generator=random).clamp(-1, 1) * 2.0 ** (
            -16 * torch.rand(3, 400, generator=random)
        )
        numbers[0, :2] = torch.tensor([1.0, -1.0])
        return most * numbers

    return [(make(2.0), make(0.7)) for _ in range(count)]


def list_rounded(function: Callable[..., Any], precision: str) -> list[str]:
    """The calls whose results are quantized."""
    samples = make_inputs(1)
    exported = export(Call(function).eval(), samples[0])
    module = quantize(exported, samples, Precision(precision).make_quantizer(exported.graph, "float"))
    found: list[str] = []
    for node in module.graph.nodes:
        before = node.args[0] if node.args else None
        if ".quantize_per_tensor" in str(node.target) and isinstance(before, torch.fx.Node) and before.args:
            found.append(str(before.target).split(".")[1])
    return found


@pytest.mark.parametrize(
    ("function", "rounded"),
    [
        (lambda a, b: (a * a + b * b).sqrt(), ["sqrt"]),
        (lambda a, b: (a**2 + b.pow(2)).sqrt(), ["sqrt"]),
        (torch.hypot, ["sqrt"]),
        (lambda a, b: (a * a).mean(-1, keepdim=True).sqrt(), ["sqrt"]),
        (lambda a, b: ((a**2).sum((0, 1), keepdim=True) + 1e-5).rsqrt(), ["rsqrt"]),
        (lambda a, b: (a * a + b * b + 0.1).sqrt(), ["sqrt"]),
        (lambda a, b: (a * a + b * b - 0.1).relu().sqrt(), ["mul", "mul", "add", "relu", "sqrt"]),
        (lambda a, b: ((a * a).mean(-1, keepdim=True) + b.abs()).sqrt(), ["mul", "mean", "abs", "add", "sqrt"]),
        (lambda a, b: nn.functional.rms_norm(a, [400]), ["rsqrt", "mul"]),
        (lambda a, b: nn.functional.layer_norm(a, [400]), ["mean", "sub", "rsqrt", "mul"]),
        (lambda a, b: ((p := a * a + b * b).sqrt(), p), ["mul", "mul", "add", "sqrt"]),
        (lambda a, b: ((p := a * a) + b * b).sqrt() * p, ["mul", "mul", "add", "sqrt", "mul"]),
        (lambda a, b: (a * a + b * b).exp(), ["mul", "mul", "add", "exp"]),
        (lambda a, b: (a * a + (a * b).relu()).sqrt(), ["mul", "relu", "add", "sqrt"]),
        (lambda a, b: torch.add(a * a, b * b, alpha=0.5).sqrt(), ["mul", "mul", "add", "sqrt"]),
    ],
    ids=[
        "mul",
        "pow",
        "hypot",
        "mean",
        "sum",
        "number",
        "relu",
        "tensor",
        "rms_norm",
        "layer_norm",
        "returned",
        "read",
        "exp",
        "no square",
        "alpha",
    ],
)
def test_what_is_rounded(function: Callable[..., Any], rounded: list[str]) -> None:
    assert list_rounded(function, "a16w8") == rounded


def test_powers_of_8_bits_are_rounded() -> None:
    assert "add" in list_rounded(lambda a, b: (a * a + b * b).sqrt(), "int8")


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
@pytest.mark.parametrize("name", ["root", "other scales", "clamped", "sum", "inverse", "large number", "layer_norm"])
def test_a_root_has_the_precision_of_its_own_16_bits(name: str, target: str) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "root": lambda a, b: ((c := torch.cat((a, b), 1)) * c + (d := c.flip(1)) * d).sqrt(),
        "other scales": lambda a, b: (a * a + b * b).sqrt(),
        "sum": lambda a, b: (a * a).sum(-1, keepdim=True).sqrt(),
        "inverse": lambda a, b: ((b * b).mean(-1, keepdim=True) + 1e-9).rsqrt(),
        "large number": lambda a, b: ((b * b).mean(-1, keepdim=True) + 500.0).rsqrt(),
        # The rows have deviations of all magnitudes.
        "layer_norm": lambda a, b: nn.functional.layer_norm(a * torch.tensor([[1.0], [0.1], [0.01]]), [400]),
        "clamped": lambda a, b: (a * a + b * b).sqrt().clamp(max=1.9),
    }
    model, samples = Call(functions[name]).eval(), make_inputs(4)
    program = tosaic.compile(model, samples[0], target, precision="a16w8", calibration=samples)
    assert [r.why for r in program.reasons if not r.is_io] == []
    assert program.verify(rounds=1).ok
    # The smallest row of a norm has few steps of its own: one of these is about 150 of the result.
    most = 150 if name == "layer_norm" else 4
    for sample in samples:
        wanted = model(*sample).numpy()
        assert np.abs(program.run(*sample)[0] - wanted).max() <= most * wanted.max() / 32767
