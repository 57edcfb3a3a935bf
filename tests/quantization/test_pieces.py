"""Weights and biases that are pieces or views of parameters are quantized as weights and biases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tosaic


class Pieces(nn.Module):
    """A linear layer whose weight and bias are computed from one parameter each."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(8, 4))
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> Any:
        w, b, how = self.weight, self.bias, self.how
        if how == "chunk":
            return F.linear(x, w.chunk(2)[1], b.chunk(2)[1])
        if how == "split":
            return F.linear(x, w.split([3, 5])[0], b.split([3, 5])[0])
        if how == "unbind":
            return F.linear(x, w.view(2, 4, 4).unbind(0)[1], b.view(2, 4).unbind()[1])
        if how == "slice":
            return F.linear(x, w[2:6], b[2:6])
        if how == "select":
            return F.linear(x, w.view(2, 4, 4)[0], b.view(2, 4)[0])
        if how == "transpose":
            return F.linear(x, w[:4].t(), b[:4])
        if how == "cat":
            return F.linear(x, torch.cat([w, w * 0.5]), torch.cat([b, b]))
        return F.linear(x, w[:1].expand(5, 4), b[:1].expand(5))


@pytest.mark.parametrize("how", ["chunk", "split", "unbind", "slice", "select", "transpose", "cat", "expand"])
def test_a_piece_of_a_parameter_is_a_weight(how: str) -> None:
    torch.manual_seed(3)
    model, x = Pieces(how).eval(), torch.randn(6, 4)
    program = tosaic.compile(model, (x,), "TOSA-1.0+INT")
    assert [r.why for r in program.reasons if not r.is_io] == []
    assert len(program.delegates) == 1
    with torch.no_grad():
        want = model(x).numpy()
    assert np.abs(program.run(x, engine="tosa")[0] - want).max() <= 0.02 * np.abs(want).max()


def test_attention_of_three_tensors_is_one_delegate() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            return self.attention(q, k, v)[0]

    torch.manual_seed(3)
    model, inputs = Attention().eval(), tuple(torch.randn(2, 6, 4) for _ in range(3))
    program = tosaic.compile(model, inputs, "TOSA-1.0+INT")
    assert [r.why for r in program.reasons if not r.is_io] == []
    assert len(program.delegates) == 1
    with torch.no_grad():
        want = model(*inputs).numpy()
    assert np.abs(program.run(*inputs, engine="tosa")[0] - want).max() <= 0.05 * np.abs(want).max()
