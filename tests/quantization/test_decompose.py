"""Operators without a record become those that torch makes of them, or stay whole on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import tosaic


class Net(torch.nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.function = torch.nn.Linear(8, 8), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


class Layer(torch.nn.Module):
    """All steps in one call; all that comes out is part of one tensor."""

    def __init__(self, kind: Callable[..., torch.nn.Module], **options: Any) -> None:
        super().__init__()
        self.layer = kind(8, 8, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, state = self.layer(x)
        last = state if isinstance(state, tuple) else (state,)
        return torch.cat([part.flatten() for part in (outputs, *last)])


class Product(torch.nn.Module):
    """A matrix product with a parameter, written in some way."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.randn(5, 8)), torch.nn.Parameter(torch.randn(5))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.weight, self.bias)


class Cell(torch.nn.Module):
    """One step; the state is part of the same input."""

    def __init__(self, kind: Callable[..., torch.nn.Module], **options: Any) -> None:
        super().__init__()
        self.cell = kind(8, 8, **options)

    def forward(self, x: torch.Tensor) -> Any:
        if isinstance(self.cell, torch.nn.LSTMCell):
            return torch.cat(self.cell(x[0], (x[1], x[1].sin())))
        return self.cell(x[0], x[1])


WHOLE = {
    "lstm": Layer(torch.nn.LSTM, batch_first=True),
    "lstm_both_ways": Layer(torch.nn.LSTM, bidirectional=True, num_layers=2),
    "lstm_projected": Layer(torch.nn.LSTM, proj_size=4, num_layers=2, bidirectional=True, batch_first=True),
    "lstm_projected_without_bias": Layer(torch.nn.LSTM, proj_size=4, bias=False),
    "gru": Layer(torch.nn.GRU, batch_first=True),
    "gru_both_ways": Layer(torch.nn.GRU, bidirectional=True, num_layers=2, batch_first=True),
    "rnn_tanh": Layer(torch.nn.RNN, bias=False, bidirectional=True),
    "gru_without_bias": Layer(torch.nn.GRU, bias=False),
    "rnn_relu": Layer(torch.nn.RNN, nonlinearity="relu"),
    "lstm_cell": Cell(torch.nn.LSTMCell),
    "lstm_cell_without_bias": Cell(torch.nn.LSTMCell, bias=False),
    "gru_cell": Cell(torch.nn.GRUCell),
    "rnn_cell": Cell(torch.nn.RNNCell),
    "einsum": lambda y: torch.einsum("bij,bkj->bik", y, y),
    "glu": functional.glu,
    "tril": torch.tril,
    "normalize": functional.normalize,
    "unfold": lambda y: functional.unfold(y[None], 2),
    "std": lambda y: y.std(-1),
}


PRODUCTS = {
    "transposed": lambda x, w, b: x @ w.T,
    "permuted": lambda x, w, b: x @ w.permute(1, 0),
    "swapped": lambda x, w, b: torch.matmul(x, w.transpose(-1, -2)),
    "with_bias": lambda x, w, b: torch.addmm(b, x[0], w.t()),
    "with_half_a_bias": lambda x, w, b: torch.addmm(b, x[0], w.t(), beta=0.5),
    "reshaped": lambda x, w, b: x @ w.reshape(8, 5),
    "scaled": lambda x, w, b: x @ (w.T * 0.5),
    "of_a_square": lambda x, w, b: x @ (w.T @ w),
    "not_transposed": lambda x, w, b: x[..., :5] @ w.permute(0, 1),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_a_parameter(name: str) -> None:
    torch.manual_seed(0)
    check(Product(PRODUCTS[name]).eval())


def test_a_transposed_parameter_is_a_weight() -> None:
    """It has a scale for each channel, as that of nn.Linear has."""
    inputs = (torch.rand(3, 8),)
    quantized = tosaic.quantize(torch.export.export(Product(PRODUCTS["transposed"]).eval(), inputs), [inputs])
    names = [str(node.target) for node in quantized.graph.nodes if node.op == "call_function"]
    assert any("dequantize_per_channel" in name for name in names)


def test_what_torch_alone_can_do_stays_whole() -> None:
    model = Net(lambda x: x.flatten().topk(1100)[0]).eval()
    program = tosaic.compile(model, (torch.rand(2, 80, 8),), "ethos-u55-128")
    assert "aten.topk.default" in [r.op for r in program.reasons if not r.is_io]


def test_an_lstm_with_a_projection_is_on_the_npu() -> None:
    check(Net(Layer(torch.nn.LSTM, proj_size=4)).eval())


@pytest.mark.parametrize("name", WHOLE)
def test_on_the_npu_in_one_delegate(name: str) -> None:
    check(Net(WHOLE[name]).eval())


def check(model: torch.nn.Module) -> None:
    """All on the NPU, close to float, and bit for bit as TOSA says."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.uniform_(parameter, -0.35, 0.35, generator=generator)
    x = torch.linspace(-2, 2, 2 * 6 * 8).sin().reshape(2, 6, 8)
    program = tosaic.compile(model, (x,), "ethos-u55-128")
    assert [r.op for r in program.reasons if not r.is_io] == []
    assert len(program.delegates) == 1
    (got,), want = program.run(x), model(x).detach().numpy()
    noise = np.square(got - want).mean() / np.square(want).mean()
    assert noise < 1e-3
    assert program.verify().ok


def test_what_reads_at_computed_positions_stays_whole() -> None:
    model = Net(lambda y: functional.grid_sample(y[None], y[None, :, :4, :2])).eval()
    program = tosaic.compile(model, (torch.rand(2, 8, 8),), "ethos-u85-256")
    left = [r.op for r in program.reasons if not r.is_io and r.op.startswith("aten.")]
    assert left == ["aten.grid_sampler.default"]


def test_the_line_is_kept() -> None:
    program = tosaic.compile(Net(functional.glu).eval(), (torch.rand(4, 8),), "ethos-u55-128")
    lines = {str(origin["where"]) for delegate in program.delegates for origin in delegate.origins}
    assert lines
    assert all("test_decompose.py:" in line for line in lines)


class Biased(torch.nn.Module):
    """Products with parameters, and biases that are inputs of the model."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        for name, shape in {"plain": (5, 8), "image": (4, 3, 3, 3), "back": (3, 4, 2, 2), "line": (4, 3, 2)}.items():
            self.register_buffer(name, torch.randn(shape, generator=draw) * 0.2)

    def forward(self, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.linear(y, self.get_buffer("plain"), c),
            functional.conv2d(x, self.get_buffer("image"), b, padding="same"),
            functional.conv_transpose2d(x, self.get_buffer("back"), bias=b),
            functional.conv1d(x[:, :, 0], self.get_buffer("line"), b),
        )


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256", "TOSA-1.0+INT"])
def test_a_bias_that_is_computed_at_run_time_is_added_after_the_product(target: str) -> None:
    draw, model = torch.Generator().manual_seed(6), Biased().eval()
    inputs = tuple(torch.randn(shape, generator=draw) for shape in [(1, 3, 8, 8), (2, 8), (4,), (5,)])
    program = tosaic.compile(model, inputs, target)
    assert not [r for r in program.reasons if not r.is_io]
    for got, want in zip(program.run(*inputs), model(*inputs), strict=True):
        np.testing.assert_allclose(got, want.numpy(), atol=0.05)
