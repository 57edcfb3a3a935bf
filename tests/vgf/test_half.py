"""fp16 and bf16: a spread of the registry's samples through the reference model, some of them on Vulkan."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import tosaic
from support import samples
from tosaic.backends.vgf import VgfCompileSpec
from tosaic.driver.delegate import lower_partition
from tosaic.driver.partition import partition
from tosaic.engines import reference, vulkan
from tosaic.fx.source import Source
from tosaic.ir.encode import decode
from tosaic.ops import registry

SPECS = {"float16": None, "bfloat16": "TOSA-1.0+FP+INT+int16+int4+bf16"}
FRACTION_BITS = {"float16": 10, "bfloat16": 7}
#: how many samples of each type run, and how many of those on Vulkan in `make test`
SPREAD, QUICK = 30, 2
#: Torch has no kernel for 16 bits, or the sample has constants in float32.
FLOAT32_ONLY = {"avg_pool3d", "grid_sampler_2d"}


def cases() -> Iterator[Any]:
    """The samples in an order that no family dominates."""
    found = [
        (name, index)
        for name, record in registry().records.items()
        for index, sample in enumerate(record.samples())
        if name not in FLOAT32_ONLY
        and "FP" in sample.flavors
        and sample.inputs
        and all(i.high > 0 for i in sample.inputs)
    ]
    found.sort(key=lambda case: zlib.crc32(f"{case[0]}-{case[1]}".encode()))
    for dtype in SPECS:
        for place, (name, index) in enumerate(found[:SPREAD]):
            yield place, name, index, dtype


def make(op: str, index: int, dtype: str) -> tuple[Any, tuple[torch.Tensor, ...], list[Any]]:
    """The sample's module and inputs in 16 bits, and what torch computes."""
    kind = getattr(torch, dtype)
    model, inputs = samples.make(samples.sample_of(op, index), f"{op}-{index}")
    model, small = model.to(kind), tuple(x.to(kind) if x.is_floating_point() else x for x in inputs)
    with torch.no_grad():
        return model, small, tree_leaves(model(*[x.clone() for x in small]))


def to_numpy(x: torch.Tensor) -> np.ndarray[Any, Any]:
    if x.dtype is not torch.bfloat16:
        return x.numpy()
    return x.view(torch.int16).numpy().view(np.uint16)


def compare(op: str, dtype: str, got: np.ndarray[Any, Any], want: torch.Tensor) -> None:
    """4 steps of the largest magnitude, 16 for composites."""
    expected = want.to(torch.float64).numpy()
    assert got.shape == expected.shape
    largest = float(np.abs(expected).max(initial=0.0))
    step = 2.0 ** (np.floor(np.log2(largest)) - FRACTION_BITS[dtype]) if largest else 1e-9
    allowed = 16 if registry().records[op].decompose is not None else 4
    assert float(np.abs(got.astype(np.float64) - expected).max(initial=0.0)) <= allowed * step


@pytest.mark.parametrize(("op", "index", "dtype"), [pytest.param(*c, id="-".join(map(str, c))) for _, *c in cases()])
def test_in_the_reference_model(op: str, index: int, dtype: str) -> None:
    model, inputs, expected = make(op, index, dtype)
    source, spec = Source.of_program(torch.export.export(model, inputs)), VgfCompileSpec(SPECS[dtype])
    plan = partition(source, spec.target)
    assert {r.node: r.why for r in plan.reasons.values()} == {}
    (region,) = plan.partitions
    graph, tosa = lower_partition(source, region, spec, frozenset())
    outputs = reference.run(tosa, [to_numpy(inputs[source.inputs.index(n)]) for n in region.inputs])
    for got, value, want in zip(outputs[-len(expected) :], graph.outputs[-len(expected) :], expected, strict=True):
        compare(op, dtype, decode(got, value.dtype), want)


def on_device() -> Iterator[Any]:
    for place, op, index, dtype in cases():
        yield pytest.param(
            op, index, dtype, id=f"{op}-{index}-{dtype}", marks=() if place < QUICK else pytest.mark.slow
        )


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("op", "index", "dtype"), list(on_device()))
def test_on_vulkan(op: str, index: int, dtype: str) -> None:
    model, inputs, expected = make(op, index, dtype)
    program = tosaic.compile(model, inputs, VgfCompileSpec(SPECS[dtype]), quantized=False)
    assert len(program.delegates) == 1
    outputs = vulkan.run(program.pte, [to_numpy(x) for x in inputs])
    for got, want in zip(outputs[-len(expected) :], expected, strict=True):
        assert got.dtype == (ml_dtypes.bfloat16 if want.dtype is torch.bfloat16 else to_numpy(want).dtype)
        compare(op, dtype, got, want)


class Pad(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x.abs(), (1, 0, 0, 2), value=-1.5)


@pytest.mark.usefixtures("device")
def test_bfloat16_is_padded_by_constants() -> None:
    """The emulation layer ends the process at a PAD of bfloat16."""
    x = torch.linspace(-2, 2, 12).reshape(1, 3, 4).to(torch.bfloat16)
    program = tosaic.compile(Pad().eval(), (x,), VgfCompileSpec(SPECS["bfloat16"]), quantized=False)
    (delegate,) = program.delegates
    assert "PAD" not in {op.kind for op in delegate.ops}
    (got,) = vulkan.run(program.pte, [to_numpy(x)])
    assert np.array_equal(got.view(np.uint16), to_numpy(Pad()(x)))


def test_bfloat16_needs_the_extension() -> None:
    program = tosaic.compile(torch.nn.Tanh().eval(), (torch.zeros(1, 4, dtype=torch.bfloat16),), "vgf", quantized=False)
    assert program.delegates == ()
    assert any("bf16" in reason.why + reason.fix for reason in program.reasons)
