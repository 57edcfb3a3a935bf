"""16-bit activations, 4-bit weights, uint8 and small floats on Vulkan, mixed in one delegate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tosaic
from support import samples
from tosaic.backends.vgf import VgfCompileSpec
from tosaic.engines import vulkan
from tosaic.formats.tosa_reader import read
from tosaic.ir.graph import DType
from tosaic.ops import registry

LAYERS = [name for name, record in registry().records.items() if record.quant == "weight" and record.samples()]
BF16 = "TOSA-1.0+FP+INT+int16+int4+bf16"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(torch.tanh(self.second(torch.relu(self.first(x)))))


def find_types(program: tosaic.Program) -> set[DType]:
    return {value.dtype for delegate in program.delegates for value in read(delegate.tosa).values()}


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("precision", "parts", "io", "types"),
    [
        ("a8w4", {}, "uint8", {DType.I4}),
        ("int8", {"first": "a16w8"}, "int16", {DType.I8, DType.I16, DType.I48}),
        ("a8w4", {"first": "a16w8", "third": "float"}, "float", {DType.I4, DType.I16, DType.F32}),
    ],
)
def test_mixed(precision: str, parts: dict[str, str], io: str, types: set[DType]) -> None:
    program = tosaic.compile(Net().eval(), (draw(1, 3, 8, 8),), "vgf", precision=precision, precision_for=parts, io=io)
    assert len(program.delegates) == 1 and program.cpu_ops == {}
    assert types <= find_types(program)
    assert program.verify(rounds=1).ok


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("dtype", "spec"), [(torch.float16, None), (torch.bfloat16, BF16)])
def test_small_floats_next_to_int8(dtype: torch.dtype, spec: str | None) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8).to(dtype)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.second(torch.relu(self.first(x)).to(dtype)))

    program = tosaic.compile(Mixed().eval(), (draw(2, 8),), VgfCompileSpec(spec))
    assert len(program.delegates) == 1 and program.cpu_ops == {}
    assert {DType.I8, DType.F16 if dtype is torch.float16 else DType.BF16} <= find_types(program)
    assert program.verify(rounds=1).ok


def cases() -> list[Any]:
    found = [
        (name, index)
        for name in LAYERS
        for index, sample in enumerate(registry().records[name].samples())
        if "INT" in sample.flavors
    ]
    first = dict(reversed(found))
    return [
        pytest.param(name, index, id=f"{name}-{index}", marks=() if index == first[name] else pytest.mark.slow)
        for name, index in found
    ]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("op", "index"), cases())
def test_weights_of_four_bits(op: str, index: int) -> None:
    module, inputs = samples.quantized(op, index, "a8w4")
    program = tosaic.compile(module, inputs, "vgf")
    assert len(program.delegates) == 1
    assert DType.I4 in find_types(program)
    found = vulkan.run(program.pte, [x.numpy() for x in inputs])
    for got, want in zip(found, program.run(*inputs, engine="tosa"), strict=True):
        assert got.tobytes() == want.tobytes()
