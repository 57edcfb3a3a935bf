"""Models in float16, bfloat16 and float64: an integer target computes them as float32 models, and says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import tosaic
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantizer import get_symmetric_quantization_config

OTHERS = [torch.float16, torch.bfloat16, torch.float64]


def make(dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(dtype).eval()
    return model, torch.randn(2, 4, generator=torch.Generator().manual_seed(1)).to(dtype)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", OTHERS)
def test_an_integer_target_quantizes_another_float_as_float32(dtype: torch.dtype) -> None:
    model, x = make(dtype)
    program = tosaic.compile(model, (x,), "ethos-u55-128")
    assert f"the model is {name_of(dtype)}: it is quantized as a float32 model" in "".join(map(str, program.warnings))
    assert len(program.delegates) == 1
    assert all(r.is_io for r in program.reasons) and "aten.to.dtype" in {r.op for r in program.reasons}
    (got,) = program.run(x)
    assert str(got.dtype) == name_of(dtype)
    with torch.no_grad():
        want = model(x).double().numpy()
    assert np.abs(got.astype(np.float64) - want).max() <= 0.02 * np.abs(want).max()
    assert program.verify().ok


@pytest.mark.parametrize("dtype", OTHERS)
def test_the_quantizer_computes_another_float_in_float32(dtype: torch.dtype) -> None:
    model, x = make(dtype)
    quantizer = TosaQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
    prepared(x)
    converted = convert_pt2e(prepared)
    assert converted(x).dtype is dtype
    layers = [n for n in converted.graph.nodes if "linear" in str(n.target)]
    assert [n.meta["val"].dtype for n in layers] == [torch.float32]
    # The model itself is not changed.
    assert next(model.parameters()).dtype is dtype


def test_types_in_arguments_and_constants_become_float32() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factor", torch.linspace(0.5, 1.5, 4, dtype=torch.float16))

        def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
            return x * self.factor + i.to(torch.float16), x.sum(1, dtype=torch.float16)

    x, i = torch.randn(2, 4).half(), torch.arange(4, dtype=torch.int32)
    program = tosaic.compile(Model().eval(), (x, i), "ethos-u55-128")
    got = program.run(x, i)
    for a, b in zip(got, Model()(x, i), strict=True):
        assert a.dtype == np.float16
        np.testing.assert_allclose(a.astype(np.float32), b.float().numpy(), atol=0.06)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_cpu_takes_another_float(dtype: torch.dtype) -> None:
    model, x = make(dtype)
    program = tosaic.compile(model, (x,), "ethos-u55-128", delegate=False)
    with torch.no_grad():
        assert np.allclose(program.run(x)[0], model(x).numpy(), atol=1e-2)
    assert any(name_of(dtype) in w for w in program.warnings)


def test_a_target_with_float_keeps_float16_and_says_so() -> None:
    model, x = make(torch.float16)
    program = tosaic.compile(model, (x,), "TOSA-1.0+INT+FP")
    assert len(program.delegates) == 1
    assert any("float16" in w and "model.float()" in w for w in program.warnings)
    assert not any("QUANT" in str(n) for d in program.delegates for n in d.partition.nodes)


class Mixed(nn.Module):
    """A float32 model with something of another type in it."""

    def __init__(self, dtype: torch.dtype, where: str) -> None:
        super().__init__()
        self.first, self.dtype, self.where = nn.Linear(4, 4), dtype, where
        self.second = nn.Linear(4, 4).to(dtype)
        self.register_buffer("factor", torch.linspace(0.5, 1.5, 4).to(dtype))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.first(x)
        if self.where == "layer":
            return torch.relu(self.second(y.to(self.dtype)))
        if self.where == "number":
            return y * torch.tensor(2.0, dtype=self.dtype)
        return torch.relu(y * self.factor)


@pytest.mark.parametrize("target", ["ethos-u55-128", "TOSA-1.0+FP"])
@pytest.mark.parametrize(
    ("dtype", "where"),
    [(torch.float64, "layer"), (torch.float64, "buffer"), (torch.float64, "number"), (torch.float16, "layer")],
)
def test_a_part_of_another_type_keeps_it(dtype: torch.dtype, where: str, target: str) -> None:
    """It runs on the CPU, the reason names the type, and the result has the type that torch gives it."""
    torch.manual_seed(0)
    model, x = Mixed(dtype, where).eval(), torch.randn(2, 4)
    program = tosaic.compile(model, (x,), target)
    with torch.no_grad():
        want = model(x).numpy()
    (got,) = program.run(x, engine="npu" if "ethos" in target else "tosa")
    assert got.dtype == want.dtype
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()
    left = [r.why for r in program.reasons if not r.is_io]
    on_target = where == "number" or (dtype is torch.float16 and target.endswith("FP"))
    assert on_target or any(name_of(dtype) in why for why in left)
    assert program.delegates


def test_a_float16_layer_is_not_quantized_in_part() -> None:
    model, x = Mixed(torch.float16, "layer").eval(), torch.randn(2, 4)
    quantizer = TosaQuantizer().set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
    prepared(x)
    weights = [n for n in convert_pt2e(prepared).graph.nodes if "dequantize_per_channel" in str(n.target)]
    assert len(weights) == 2
