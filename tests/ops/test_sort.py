"""Several extremes of quantized numbers in order: bit for bit those of torch's quantized graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import tosaic
from support import samples

CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "topk": lambda x: torch.topk(x, 3, 1)[0],
    "topk_places": lambda x: torch.topk(x, 4, -1, largest=False)[1].to(torch.int32),
    "sort": lambda x: (torch.sort(x, 1, descending=True)[0], torch.sort(x, 1, descending=True)[1].to(torch.int32)),
    "kthvalue": lambda x: torch.kthvalue(x, 2, -1)[0],
    "median": lambda x: torch.median(x, -1)[0],
    "median_of_all": lambda x: x - torch.median(x[0]),
}


def draw(seed: int) -> torch.Tensor:
    # Few different numbers, so that many of them are equal.
    return torch.randint(-6, 7, (3, 9), generator=torch.Generator().manual_seed(seed)) * 0.25


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+FP", "ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize("name", CASES)
def test_numbers_in_order(name: str, target: str) -> None:
    model, x = samples.Call(CASES[name]).eval(), draw(1)
    compiled, quantized = (model, False) if "FP" in target else (_quantize(model, x), True)
    program = tosaic.compile(compiled, (x,), target, quantized=quantized)
    assert len(program.delegates) == 1 and not [r for r in program.reasons if not r.is_io]
    for seed in (1, 2, 3):
        x = draw(seed)
        with torch.no_grad():
            wanted = tree_leaves(compiled(x))
        for got, want in zip(program.run(x, engine="npu" if "ethos" in target else "tosa"), wanted, strict=True):
            if name == "topk_places":
                # Of equal numbers torch takes any.
                assert np.array_equal(got, np.argsort(x.numpy(), -1, kind="stable")[:, :4])
            elif want.is_floating_point() or "FP" not in target:
                assert np.array_equal(got, want.numpy())


def _quantize(model: torch.nn.Module, x: torch.Tensor) -> torch.nn.Module:
    return tosaic.quantize(torch.export.export(model, (x,)), [(x,)])


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "TOSA-1.0+FP", "ethos-u55-64", "ethos-u85-128"])
@pytest.mark.parametrize(("shape", "count", "dim"), [((70, 3), 70, 0), ((2, 1025), 9, 1), ((1, 200), 130, 1)])
def test_many_numbers(shape: tuple[int, int], count: int, dim: int, target: str) -> None:
    """Sizes that are no powers of two, with blocks of padding; of equal numbers the first comes first."""

    def find(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.topk(x, count, dim)
        return values, places.to(torch.int32)

    x = torch.randint(-120, 121, shape, generator=torch.Generator().manual_seed(0)) * 0.25
    model: torch.nn.Module = samples.Call(find).eval()
    model = model if "FP" in target else _quantize(model, x)
    program = tosaic.compile(model, (x,), target, quantized="FP" not in target)
    assert len(program.delegates) == 1
    with torch.no_grad():
        want = model(x)[0].numpy()
    got, places = program.run(x, engine="npu" if "ethos" in target else "tosa")
    assert np.array_equal(got, want)
    order = np.argsort(-x.numpy(), dim, kind="stable")
    assert np.array_equal(places, order.take(range(count), dim))


def test_int32_extremes() -> None:
    """The smallest number stays one when the order is reversed."""
    x = torch.tensor([[5, -(2**31), 2**31 - 1, -(2**31), 0]], dtype=torch.int32)
    model = samples.Call(lambda x: (torch.sort(x)[0], torch.sort(x, descending=True)[0])).eval()
    program = tosaic.compile(model, (x,), "ethos-u85-128", quantized=True)
    assert len(program.delegates) == 1
    for got, want in zip(program.run(x, engine="npu"), model(x), strict=True):
        assert np.array_equal(got, want.numpy())


def test_too_many_numbers() -> None:
    x = torch.linspace(0.0, 1.0, 2000).reshape(1, 2000)
    program = tosaic.compile(samples.Call(lambda x: torch.topk(x * 2.0, 1100)[0]).eval(), (x,), "TOSA-1.0+FP")
    wanted = "at most 1024 numbers are put in order, out of at most 16384; here it is 1100 of 2000"
    assert any(wanted in r.why for r in program.reasons)
