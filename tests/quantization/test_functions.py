"""Elementwise functions of one tensor: rounded once, whatever they consist of, and one table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Node

import tosaic
from support import samples
from tosaic.api.prepare import quantize
from tosaic.driver.exported import export
from tosaic.formats.tosa_writer import read
from tosaic.fx.source import QUANTIZE, overload
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_a16w8_quantization_config


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 5


def list_rounded(module: Any) -> list[str]:
    """The operators whose results are quantized."""
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    behind = [n.args[0] for n in calls if overload(n) == QUANTIZE]
    return [overload(n).split(".")[1] for n in behind if isinstance(n, Node) and n.op == "call_function"]


def hardswish(x: torch.Tensor) -> torch.Tensor:
    return x * (x + 3).clamp(0, 6) / 6


@pytest.mark.parametrize(
    ("function", "rounded"),
    [
        (lambda x, y: hardswish(x), ["div"]),
        (lambda x, y: hardswish(x * torch.full((1,), 0.3) + 0.7) * 0.2 - 0.1, ["sub"]),
        (lambda x, y: hardswish(x + y), ["add", "div"]),
        (lambda x, y: (x + 1) * y, ["add", "mul"]),
        (lambda x, y: ((t := x + 1) * 2, t), ["add", "mul"]),
        (lambda x, y: (t := x + 1) * x + t * y, ["add", "mul", "mul", "add"]),
        (lambda x, y: (x * torch.arange(5.0) + 1).exp(), ["mul", "exp"]),
        (lambda x, y: (x * torch.full((1, 1, 1), 2.0) + 1).exp(), ["mul", "exp"]),
        (lambda x, y: ((x + 1).reshape(-1) * 2).exp(), ["add", "reshape", "exp"]),
    ],
    ids=["one", "affine", "sum", "other tensor", "two results", "two readers", "constants", "rank", "movement"],
)
def test_what_is_rounded(function: Any, rounded: list[str]) -> None:
    inputs = rand(4, 5), rand(4, 5, seed=1)
    assert list_rounded(quantize(export(samples.Call(function).eval(), inputs), [inputs])) == rounded


def test_a_product_with_a_movement_of_itself_is_no_function() -> None:
    x = rand(5, 5)
    module = quantize(export(samples.Call(lambda x: (x + 1) * (x + 1).t()).eval(), (x,)), [(x,)])
    assert list_rounded(module)[-1] == "mul" and list_rounded(module).count("add") >= 1


def test_16_bits_are_rounded_everywhere() -> None:
    """A table has an entry for each of 256 numbers."""
    x = rand(4, 5)
    config = get_symmetric_a16w8_quantization_config()
    quantizer = TosaQuantizer().set_global(config)
    module = quantize(export(samples.Call(hardswish).eval(), (x,)), [(x,)], quantizer)
    assert list_rounded(module) == ["clamp", "mul", "div"]


class Affine(nn.Module):
    """A convolution whose result is scaled, shifted and bent, and the next one, which sums up what is wrong with it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)
        self.scale, self.shift = nn.Parameter(torch.full((1,), 1.9)), nn.Parameter(torch.full((1,), 0.8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(hardswish(self.scale * self.first(x) + self.shift) * 0.6 - 0.5)


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_one_table(target: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Affine().eval()
    x = rand(1, 3, 10, 10)
    program = tosaic.compile(model, (x,), target)
    assert program.verify().ok
    kinds = [op.kind for op in read(program.tosa()).ops]
    assert kinds.count("TABLE") == 1 and "MUL" not in kinds


def test_the_rounding_is_that_of_the_result() -> None:
    """The int8 function of an int8 number is the nearest to what torch computes for it."""
    x = rand(64, 64)
    module = quantize(export(samples.Call(hardswish).eval(), (x,)), [(x,)])
    given, result = [n for n in module.graph.nodes if n.op == "call_function" and overload(n) == QUANTIZE]
    scale, zero_point = given.args[1:3]
    stored = torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero_point), -128, 127)
    error = (module(x) - hardswish(stored)).abs()
    top = (127 - int(result.args[2])) * float(result.args[1])
    assert error[hardswish(stored) < top].max() <= 0.5001 * float(result.args[1])
