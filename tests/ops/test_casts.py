"""Casts: torch drops the fraction, takes all but zero for true, and an integer type saturates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tosaic
from support import samples
from tosaic.ir.graph import Array

#: all within int8, with ties, negative fractions and both zeros
NUMBERS = [-127.9, -2.7, -2.5, -1.5, -0.5, -0.2, -0.0, 0.0, 0.5, 1.5, 2.5, 2.9, 126.6]
SPECS = {
    torch.float32: ("TOSA-1.0+FP", "TOSA-1.0+INT+FP"),
    torch.float16: ("TOSA-1.0+FP",),
    torch.bfloat16: ("TOSA-1.0+FP+INT+bf16",),
}


def run(function: object, x: torch.Tensor, spec: str) -> Array:
    program = tosaic.compile(samples.Call(function).eval(), (x,), spec, quantized=False)
    assert len(program.delegates) == 1
    assert not program.cpu_ops
    return program.run(x, engine="tosa")[0]


@pytest.mark.parametrize(("dtype", "spec"), [(d, s) for d, all_specs in SPECS.items() for s in all_specs])
@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32, torch.bool])
def test_a_cast_from_float_is_that_of_torch(dtype: torch.dtype, spec: str, kind: torch.dtype) -> None:
    x = torch.tensor(NUMBERS).to(dtype)
    got = run(lambda x: (x * 1.0).to(kind), x, spec)
    assert np.array_equal(got, x.to(kind).numpy())


@pytest.mark.parametrize(("kind", "low", "high"), [(torch.int8, -128, 127), (torch.int16, -(2**15), 2**15 - 1)])
def test_what_an_integer_cannot_hold_saturates(kind: torch.dtype, low: int, high: int) -> None:
    got = run(lambda x: (x * 1.0).to(kind), torch.tensor([-1e6, 1e6]), "TOSA-1.0+FP")
    assert got.tolist() == [low, high]


def test_a_boolean_is_one_or_zero_in_float() -> None:
    x = torch.tensor([0.5, -0.5])
    assert run(lambda x: (x > 0.0).to(torch.float32) * 3.0, x, "TOSA-1.0+FP").tolist() == [3.0, 0.0]


def test_an_integer_in_float16_is_rounded_as_in_torch() -> None:
    x = torch.tensor([3, -7, 2049, 4097], dtype=torch.int32)
    got = run(lambda x: x.to(torch.float16) * 1.0, x, "TOSA-1.0+INT+FP")
    assert np.array_equal(got, x.to(torch.float16).numpy())


def test_a_constant_is_cast_like_a_tensor() -> None:
    x = torch.zeros(13)
    numbers = torch.tensor(NUMBERS)
    got = run(lambda x: numbers.to(torch.int32).to(torch.float32) + x, x, "TOSA-1.0+FP")
    assert np.array_equal(got, torch.tensor(NUMBERS).trunc().numpy())
