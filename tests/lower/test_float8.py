"""Floats of 8 bits, with TOSA's extensions for them: casts and data movement as in torch, products that torch lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tosaic
from support.modules import Call
from tosaic.driver.delegate import lower_partition
from tosaic.driver.partition import partition
from tosaic.engines import reference
from tosaic.fx.arrays import to_numpy
from tosaic.fx.source import Source
from tosaic.ir.encode import decode
from tosaic.tosa import TosaCompileSpec

EXTENSIONS = {torch.float8_e4m3fn: "fp8e4m3", torch.float8_e5m2: "fp8e5m2"}
#: the bits of a fraction: torch has no kernels to compare sums with, so these follow float32
FRACTION_BITS = {torch.float8_e4m3fn: 3, torch.float8_e5m2: 2}
#: zeros, ties, the largest numbers and what is beyond them, subnormal numbers
NUMBERS = (
    *(0.0, -0.0, 1.0, 1.0625, -3.3, 447.0, 448.0, 450.0, 464.0, 465.0, 480.0, 1e4, 57344.0, 61439.0, 61440.0, 1e6),
    *(-1e6, math.inf, -math.inf, math.nan, 2.0**-9, 2.0**-10, 3 * 2.0**-11, 1e-8, 2.0**-16, 2.0**-17, 3 * 2.0**-18),
)


def run(function: Callable[..., torch.Tensor], *inputs: torch.Tensor, extension: str) -> np.ndarray[Any, Any]:
    """Lower a function as one delegate, which torch may have no kernel for, and run it with the reference model."""
    spec = TosaCompileSpec(f"TOSA-1.0+FP+{extension}")
    source = Source.of_program(torch.export.export(Call(function).eval(), inputs))
    plan = partition(source, spec.target, move_data=True)
    assert {reason.node: reason.why for reason in plan.reasons.values()} == {}
    (region,) = plan.partitions
    graph, tosa = lower_partition(source, region, spec, frozenset())
    (result,) = reference.run(tosa, [to_numpy(x) for x in inputs])
    return decode(result, graph.outputs[0].dtype).astype(np.float32)


@pytest.mark.parametrize("dtype", EXTENSIONS)
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
def test_casts_round_as_in_torch(dtype: torch.dtype, source: torch.dtype) -> None:
    x = torch.tensor(NUMBERS).to(source)
    extension = EXTENSIONS[dtype] + ("+bf16" if source is torch.bfloat16 else "")
    np.testing.assert_array_equal(run(lambda x: x.to(dtype), x, extension=extension), x.to(dtype).float().numpy())


@pytest.mark.parametrize("dtype", EXTENSIONS)
@pytest.mark.parametrize("wide", [torch.float32, torch.float16])
def test_every_number_becomes_a_wider_float(dtype: torch.dtype, wide: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(dtype)
    got = run(lambda x: x.to(wide), x, extension=EXTENSIONS[dtype])
    np.testing.assert_array_equal(got, x.to(wide).float().numpy())


def select(x: torch.Tensor) -> torch.Tensor:
    return torch.index_select(x, 1, torch.tensor([2, 0, 2]))


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cat": lambda x: torch.cat([x, x[:, :1]], 1),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "reshape": lambda x: x.reshape(2, -1),
    "slice": lambda x: x[:, 1:, ::2],
    "repeat": lambda x: x.repeat(1, 2, 1, 3),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=1.5),
    "index_select": select,
    "stack": lambda x: torch.stack([x, x]),
}


@pytest.mark.parametrize("dtype", EXTENSIONS)
@pytest.mark.parametrize("name", MOVES)
def test_data_movement_is_as_in_torch(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 2 * 3 * 4 * 5).reshape(2, 3, 4, 5).to(dtype)
    np.testing.assert_array_equal(run(MOVES[name], x, extension=EXTENSIONS[dtype]), MOVES[name](x).float().numpy())


#: numbers that both types have
WEIGHT = (torch.arange(4 * 3 * 3 * 3) % 7 - 3.0).reshape(4, 3, 3, 3) / 4

SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conv2d": lambda x: F.conv2d(x, WEIGHT.to(x.dtype), padding=1),
    "depthwise": lambda x: F.conv2d(x, WEIGHT[:3, :1].to(x.dtype), groups=3),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, WEIGHT.transpose(0, 1).to(x.dtype), stride=2),
    "matmul": lambda x: x @ x.transpose(2, 3),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (2, 2)),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "flip": lambda x: x.flip(1, 3),
}


@pytest.mark.parametrize("dtype", EXTENSIONS)
@pytest.mark.parametrize("name", SUMS)
def test_what_torch_lacks_is_near_float32(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-2, 2, 3 * 4 * 4).reshape(1, 3, 4, 4).sin().to(dtype)
    exact = SUMS[name](x.float()).numpy()
    got = run(SUMS[name], x, extension=EXTENSIONS[dtype])
    np.testing.assert_allclose(got, exact, rtol=2.0 ** -(FRACTION_BITS[dtype] + 1) * 1.01, atol=2.0**-9)


def test_constants_saturate_as_in_torch() -> None:
    x = torch.ones(3)
    numbers = torch.tensor([1e6, -math.inf, math.nan])
    got = run(lambda x: torch.cat([x, numbers]).to(torch.float8_e4m3fn), x, extension="fp8e4m3")
    np.testing.assert_array_equal(got, [1, 1, 1, 448, -448, math.nan])


def test_from_one_type_of_8_bits_to_the_other() -> None:
    x = torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2)
    got = run(lambda x: x.to(torch.float8_e4m3fn), x, extension="fp8e4m3+fp8e5m2")
    np.testing.assert_array_equal(got, x.to(torch.float8_e4m3fn).float().numpy())


def test_a_program_has_floats_of_8_bits() -> None:
    x = torch.linspace(-3, 3, 6).reshape(2, 3).to(torch.float8_e5m2)
    spec = TosaCompileSpec("TOSA-1.0+FP+fp8e5m2")
    spec.delegate_data_movement = True
    program = tosaic.compile(Call(lambda x: torch.cat([x, x])).eval(), (x,), spec, quantized=False)
    assert (len(program.delegates), program.reasons) == (1, ())
    (result,) = program.run(x)
    assert result.dtype.name == "float8_e5m2"
    np.testing.assert_array_equal(result.astype(np.float32), torch.cat([x, x]).float().numpy())
    assert program.verify(rounds=1).ok


def test_without_the_extension_it_stays_on_the_cpu() -> None:
    x = torch.ones(2, 3).to(torch.float8_e4m3fn)
    spec = TosaCompileSpec("TOSA-1.0+FP+fp8e5m2")
    spec.delegate_data_movement = True
    program = tosaic.compile(Call(lambda x: torch.cat([x, x])).eval(), (x,), spec, quantized=False)
    assert not program.delegates
    assert any("f8e4m3" in reason.why or "float8_e4m3fn" in reason.why for reason in program.reasons)
