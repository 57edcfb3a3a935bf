"""Sums of products: 16 bits go in, and a recurrent cell keeps its state in 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx import Node
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

import tosaic
from support import samples
from tosaic.api.prepare import quantize
from tosaic.api.verification import verify
from tosaic.driver.exported import export
from tosaic.formats import sidecar
from tosaic.quantization import quantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config
from tosaic.quantizer import TOSAQuantizer


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.cell = nn.LSTMCell(6, 8)
        # Its forget gate stays nearly open, so that what is added up becomes large.
        self.cell.bias_ih.data[8:16] = 4.0

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        return self.cell(x * 2.0, (h, c))


def list_wide(module: Any) -> list[str]:
    """The operators behind every quantize to 16 bits."""
    found: list[str] = []
    for node in module.graph.nodes:
        if node.op == "call_function" and "quantize_per_tensor" in str(node.target) and torch.int16 in node.args:
            before = node.args[0]
            assert isinstance(before, Node)
            if not str(node.target).startswith("quantized_decomposed.dequantize"):
                found.append(str(before.target).split(".")[1] if before.op == "call_function" else before.name)
    return found


@pytest.mark.parametrize(
    ("function", "wide"),
    [
        (lambda a, b, c: a * b + b * c, ["mul", "mul"]),
        (lambda a, b, c: a * b - b * c, ["mul", "mul"]),
        (lambda a, b, c: (a * b).relu() + b * c, []),
        (lambda a, b, c: a * b + c, []),
        (lambda a, b, c: a * 0.5 + b * c, []),
        (lambda a, b, c: a * torch.ones(1) + b * c, []),
        (lambda a, b, c: a * torch.ones(5) + b * c, ["mul", "mul"]),
        (lambda a, b, c: a * a + b * c, []),
        (lambda a, b, c: (a * a + b * b).sqrt() + c, ["add", "mul", "mul"]),
        (lambda a, b, c: (a**2 + b**2).reshape(5, 2).sqrt(), ["add", "pow", "pow", "reshape"]),
        (lambda a, b, c: (a**2 + b * c).abs().sqrt(), []),
        (lambda a, b, c: ((s := a * a + b * b).sqrt(), s), []),
        (lambda a, b, c: (a * a + torch.ones(5)).sqrt(), []),
        (lambda a, b, c: (s := a * b) + b * c - s.exp(), []),
        (lambda a, b, c: (s := a * b)[0] + (b * c)[0] + (s[1] + c[1]), []),
        (lambda a, b, c: (s := a * b)[0] + (t := b * c)[1] + (s[1] - t[0]), ["mul"] * 2 + ["select"] * 4),
    ],
    ids=[
        "add",
        "sub",
        "relu",
        "one",
        "number",
        "constant",
        "constants",
        "square",
        "root",
        "moved root",
        "no root",
        "another reader of a power",
        "one square",
        "another reader",
        "another sum",
        "two sums",
    ],
)
def test_where_products_are_wide(function: Any, wide: list[str]) -> None:
    inputs = tuple(rand(2, 5, seed=i) for i in range(3))
    assert sorted(list_wide(quantize(export(samples.Call(function).eval(), inputs), [inputs]))) == wide


def inputs_of_cell() -> tuple[torch.Tensor, ...]:
    return rand(1, 6), rand(1, 8, seed=1).tanh(), rand(1, 8, seed=2) * 3


def test_state_of_a_cell() -> None:
    inputs = inputs_of_cell()
    module = quantize(export(Cell().eval(), inputs), [inputs])
    assert sorted(list_wide(module)) == ["add", "c", "linear", "linear", "mul", "mul"]


def test_state_of_a_layer() -> None:
    """Every state is kept in 16 bits, also the last one, which is read by its tanh alone."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(6, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)[0]

    x = rand(4, 1, 6)
    wide = list_wide(quantize(export(Layer().eval(), (x,)), [(x,)]))
    assert wide.count("add") == 4


def test_quantization_aware_training() -> None:
    inputs = inputs_of_cell()
    chosen = quantizer.TosaQuantizer().set_global(get_symmetric_quantization_config(is_qat=True))
    prepared = prepare_qat_pt2e(export(Cell().eval(), inputs).module(), chosen)
    prepared(*inputs)
    module = convert_pt2e(prepared)
    assert sorted(list_wide(module)) == ["add", "c", "linear", "linear", "mul", "mul"]
    program = tosaic.compile(module, inputs, "ethos-u55-128")
    assert len(program.delegates) == 1
    assert all(r.is_io for r in program.reasons)


def measure(module: Any, model: nn.Module) -> float:
    """Decibels over 200 steps, the state carried along."""
    signal = noise = 0.0
    exact = given = (torch.zeros(1, 8), torch.zeros(1, 8))
    with torch.no_grad():
        for step in range(200):
            x = rand(1, 6, seed=100 + step)
            exact, given = model(x, *exact), module(x, *given)
            signal += float((exact[0] ** 2).sum())
            noise += float(((exact[0] - given[0]) ** 2).sum())
    return 10 * np.log10(signal / noise)


def test_long_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = Cell().eval(), []
    state = (torch.zeros(1, 8), torch.zeros(1, 8))
    for step in range(40):
        calls.append((rand(1, 6, seed=step), *state))
        state = tuple(s.detach() for s in model(*calls[-1]))
    wide = measure(quantize(export(model, calls[0]), calls), model)
    monkeypatch.setattr(quantizer, "widen_sums", lambda graph, stores_int16: None)
    narrow = measure(quantize(export(model, calls[0]), calls), model)
    assert wide > narrow + 1.0


def test_codes_of_the_state() -> None:
    inputs = inputs_of_cell()
    program = tosaic.compile(Cell().eval(), inputs, "ethos-u55-128", calibration=[inputs], io="int8")
    assert [b.dtype for b in program.inputs] == ["int8", "int8", "int16"]
    assert [b.dtype for b in program.outputs] == ["int8", "int16"]
    assert program.cpu_ops == {}
    assert verify(program.pte, sidecar.read(program.sidecar())).ok


def make_magnitude() -> torch.nn.Module:
    return samples.Call(lambda a, b: (a * a + b * b).sqrt()).eval()


@pytest.mark.parametrize(("target", "wide"), [("TOSA-1.0+INT", 0), ("TOSA-1.0+INT+int16", 3)])
def test_magnitudes_on_plain_tosa(target: str, wide: int) -> None:
    """Without the extension int16 the power stays in 8 bits, so that all of it is delegated, with both APIs."""
    inputs = (rand(1, 9), rand(1, 9))
    model = make_magnitude()
    program = tosaic.compile(model, inputs, target)
    assert len(program.delegates) == 1
    assert all(reason.is_io for reason in program.reasons)
    own = TOSAQuantizer(target).set_global(get_symmetric_quantization_config())
    assert len(list_wide(quantize(export(model, inputs), [inputs], own))) == wide


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
def test_magnitudes_near_zero(target: str) -> None:
    """Most magnitudes of a spectrum are small: with a power of 8 bits, this has 18 dB."""
    calls = [tuple(rand(1, 65, 4, seed=2 * i + j) ** 3 for j in (0, 1)) for i in range(4)]
    program = tosaic.compile(make_magnitude(), calls[0], target, calibration=calls)
    assert len(program.delegates) == 1
    result = program.verify()
    assert result.ok
    assert result.sqnr[0] > 30.0
