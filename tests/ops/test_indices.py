"""Reads and writes at positions known only at run time, and operators that are decomposed without a quantizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tosaic
from support import samples
from tosaic.core.errors import Invalid

GENERATOR = torch.Generator().manual_seed(7)
X, ROWS = (torch.rand(shape, generator=GENERATOR) * 4 - 2 for shape in ((5, 4), (3, 4)))
LINES, COLUMNS, GRID = torch.tensor([3, 0, 4]), torch.tensor([1, 3, 0]), torch.tensor([[0, 3, 1, 2], [1, 0, 3, 4]])
FLOAT, INT, U85 = "TOSA-1.0+FP", "TOSA-1.0+INT", "ethos-u85-256"

#: functions of a tensor and int64 indices
READS: dict[str, tuple[Any, ...]] = {
    "index": (lambda x, i: (x + 1.0)[i], LINES),
    "negative": (lambda x, i: (x + 1.0)[i], -LINES),
    "two": (lambda x, i, j: (x + 1.0)[i, j], LINES, COLUMNS),
    "take": (lambda x, i: torch.take(x + 1.0, i), LINES),
    "gather": (lambda x, i: (x + 1.0).gather(0, i), GRID),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x + 1.0, i, 0), GRID - 2),
    "index_put": (lambda x, i: (x + 1.0).index_put((i,), torch.ones(3, 4) * 0.5), LINES),
    "index_copy": (lambda x, i: (x + 1.0).index_copy(0, i, ROWS), LINES),
    "index_fill": (lambda x, i: (x + 1.0).index_fill(1, i, 0.25), COLUMNS),
    "scatter": (lambda x, i: (x + 1.0).scatter(0, i, x[:2]), GRID),
    "scatter_value": (lambda x, i: (x + 1.0).scatter(0, i, 0.25), GRID),
    "accumulate": (lambda x, i: (x + 1.0).index_put((i,), ROWS, accumulate=True), torch.tensor([3, 3, -1])),
    "accumulate_two": (
        lambda x, i, j: (x + 1.0).index_put((i, j), ROWS[:, 0], accumulate=True),
        torch.tensor([3, 3, 0]),
        torch.tensor([1, 1, -1]),
    ),
    "scatter_add": (lambda x, i: (x + 1.0).scatter_add(0, i, x[:2]), GRID // 2),
}


def check(function: Any, inputs: tuple[torch.Tensor, ...], target: str) -> list[str]:
    """The operators left to the CPU; what the program computes is what torch computes, up to quantization."""
    program = tosaic.compile(samples.Call(function).eval(), inputs, target)
    want = function(*inputs).numpy()
    bound = 1e-5 if target == FLOAT else 0.03
    np.testing.assert_allclose(program.run(*inputs)[0], want, rtol=0, atol=bound * max(1.0, float(np.abs(want).max())))
    return [r.op for r in program.reasons if not r.is_io]


@pytest.mark.parametrize("target", [FLOAT, INT, pytest.param(U85, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", READS)
def test_int64_indices_are_cast_on_the_cpu_and_the_rest_is_delegated(name: str, target: str) -> None:
    function, *indices = READS[name]
    assert set(check(function, (X, *indices), target)) == {"aten.to.dtype"}


def test_a_gather_that_stays_on_the_cpu_keeps_its_int64_index() -> None:
    left = check(READS["gather"][0], (X, GRID), "ethos-u55-128")
    assert "aten.gather.default" in left


@pytest.mark.parametrize("target", [FLOAT, INT])
def test_int64_arithmetic_on_int32_numbers_is_not_done_in_32_bits(target: str) -> None:
    numbers = torch.tensor([2**30, -5], dtype=torch.int32)
    model = samples.Call(lambda i: i.long() * 8).eval()
    assert tosaic.compile(model, (numbers,), target).run(numbers)[0].tolist() == [2**33, -40]


def assign(x: torch.Tensor, key: Any, value: Any) -> torch.Tensor:
    x = x.clone()
    x[key] = value
    return x


#: operators that have no record, or that the quantizer rewrites
OTHERS: dict[str, Any] = {
    "einsum": lambda x: torch.einsum("ij,kj->ik", x + 0.5, x),
    "trace": lambda x: torch.einsum("ii->", x[:4] + 0.5),
    "hstack": lambda x: torch.hstack([x + 1.0, x]),
    "rot90": lambda x: torch.rot90(x + 1.0),
    "tril": lambda x: torch.tril(x + 1.0),
    "diag": lambda x: torch.diag(x[0] + 1.0, 1),
    "arange": lambda x: x * torch.arange(4) + torch.arange(20).view(5, 4),
    "part": lambda x: assign(x + 1.0, (slice(1, 3), 2), 0.5),
    "mask": lambda x: assign(x + 1.0, x > 0.5, 0.25),
    "rows": lambda x: assign(x + 1.0, x[:, 0] > 0.5, 0.25),
    "constant_mask": lambda x: assign(x + 1.0, torch.tensor([True, False, True, True, False]), 0.25),
    "copy": lambda x: torch.zeros(2, 5, 4).copy_(x + 1.0),
    "fill": lambda x: x + torch.empty(5, 4).fill_(0.5),
}


@pytest.mark.parametrize("target", [FLOAT, INT, pytest.param("ethos-u55-128", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OTHERS)
def test_operators_without_a_record_are_delegated(name: str, target: str) -> None:
    assert check(OTHERS[name], (X,), target) == []


def test_as_strided_of_a_transposed_tensor_is_read_in_its_order() -> None:
    assert check(lambda x: (x + 1.0).t().as_strided((2, 3), (3, 1)), (X,), FLOAT) == []


def test_as_strided_of_a_part_is_refused() -> None:
    inside = samples.Call(lambda x: (x + 1.0)[1:].as_strided((2, 3), (3, 1))).eval()
    program = tosaic.compile(inside, (X,), FLOAT)
    reasons = {r.op: r.why for r in program.reasons}
    assert "all that is in its memory; here it is a part of one" in reasons["aten.as_strided.default"]
    np.testing.assert_array_equal(program.run(X)[0], inside(X).numpy())
    for beyond in ((2, 3), (3, 1), 4), ((2, X.numel()), (1, 1)):
        model = samples.Call(lambda x, a=beyond: (x + 1.0)[1:].as_strided(*a)).eval()
        with pytest.raises(Invalid, match="a part of another one"):
            tosaic.compile(model, (X,), FLOAT)
        with pytest.raises(Invalid, match="a part of another one"):
            tosaic.quantize(torch.export.export(model, (X,)), [(X,)])


@pytest.mark.parametrize("target", [FLOAT, INT, "ethos-u55-128"])
def test_a_constant_alone_stays_on_the_cpu(target: str) -> None:
    model = samples.Call(lambda x: torch.full((2, 3), 0.5)).eval()
    np.testing.assert_array_equal(tosaic.compile(model, (X,), target).run(X)[0], np.full((2, 3), 0.5, np.float32))


@pytest.mark.slow
def test_a_dimension_that_is_too_long_for_one_transpose_is_split() -> None:
    assert (
        check(lambda x: (x + 1.0).permute(1, 2, 0), (torch.rand(65537, 2, 2, generator=GENERATOR),), "ethos-u55-128")
        == []
    )
