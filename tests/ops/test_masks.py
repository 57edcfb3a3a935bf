"""Attention with masks: a row that is hidden as a whole is zero, and all others are as accurate as without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

import tosaic
from support import samples

KEPT = torch.ones(4, 4, dtype=torch.bool)
KEPT[1], KEPT[2, 1:] = False, False

CASES = {
    "float": (lambda q, k, v, m: attention(q, k, v, attn_mask=torch.zeros(4, 4).masked_fill(~m, -torch.inf)), False),
    "bool": (lambda q, k, v, m: attention(q, k, v, attn_mask=m), False),
    "given": (lambda q, k, v, m: attention(q, k, v, attn_mask=m), True),
    "compared": (lambda q, k, v, m: attention(q, k, v, attn_mask=m > 0.0), True),
}


def run(name: str, spec: str, mask: torch.Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What the target and torch make of the same attention."""
    function, given = CASES[name]
    generator = torch.Generator().manual_seed(4)
    inputs: list[torch.Tensor] = [torch.randn(1, 2, 4, 8, generator=generator) for _ in range(3)]
    inputs += [torch.where(mask, 0.5, -0.5) if name == "compared" else mask] if given else []
    model = samples.Call(function if given else lambda q, k, v: function(q, k, v, mask))
    program = tosaic.compile(model.eval(), inputs, spec)
    assert [r.why for r in program.reasons if not r.is_io] == []
    return program.run(*inputs, engine="tosa")[0], model(*inputs).numpy()


@pytest.mark.parametrize("spec", ["TOSA-1.0+INT", "TOSA-1.0+FP"])
@pytest.mark.parametrize("name", CASES)
def test_a_row_that_is_hidden_as_a_whole_is_zero(name: str, spec: str) -> None:
    got, want = run(name, spec, KEPT)
    assert not want[:, :, 1].any()
    assert not got[:, :, 1].any()
    seen = KEPT.clone()
    seen[1] = True
    others = [0, 2, 3]
    error, before = (np.abs(a - b)[:, :, others].max() for a, b in ((got, want), run(name, spec, seen)))
    assert error <= 1.1 * before + 1e-6


FILLS = {
    "masked_fill": lambda x, hidden, low: x.masked_fill(hidden, low),
    "where": lambda x, hidden, low: torch.where(hidden, low, x),
    "add": lambda x, hidden, low: x + torch.zeros(4, 4).masked_fill(hidden, low),
}


@pytest.mark.parametrize("low", [-1e9, -2e4])
@pytest.mark.parametrize("name", FILLS)
def test_a_softmax_row_that_finite_numbers_hide_is_as_in_torch(name: str, low: float) -> None:
    x = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(9))
    model = samples.Call(lambda x: FILLS[name](x, ~KEPT, low).softmax(-1)).eval()
    got = tosaic.compile(model, (x,), "TOSA-1.0+INT").run(x, engine="tosa")[0]
    np.testing.assert_allclose(got, model(x).numpy(), atol=0.02)


def test_a_float_model_takes_an_example_input_with_infinities() -> None:
    generator = torch.Generator().manual_seed(4)
    mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
    inputs = (*(torch.randn(1, 2, 4, 8, generator=generator) for _ in range(3)), mask)
    model = samples.Call(lambda q, k, v, m: attention(q, k, v, attn_mask=m)).eval()
    program = tosaic.compile(model, inputs, "TOSA-1.0+FP")
    assert program.verify().ok
    np.testing.assert_allclose(program.run(*inputs)[0], model(*inputs).numpy(), atol=1e-5)
