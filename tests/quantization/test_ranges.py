"""Ranges that a few extreme numbers stretch: the compiler says where, and no other range is called so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tosaic
from support.modules import Call
from tosaic import zoo


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Attend(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> Any:
        scores = q @ k.transpose(-1, -2)
        return torch.softmax(scores + mask, -1)


def warnings_of(model: nn.Module, *inputs: torch.Tensor) -> list[str]:
    program = tosaic.compile(model.eval(), inputs, "TOSA-1.0+INT", calibration=[inputs, inputs])
    return list(program.warnings)


def masked(number: float) -> torch.Tensor:
    mask = torch.zeros(2, 1, 16)
    mask[..., 10:] = number
    return mask


def test_a_mask_given_at_run_time_that_empties_a_range_is_named() -> None:
    (warning,) = warnings_of(Attend(), draw(2, 16, 8), draw(2, 16, 8, seed=2), masked(-1e4))
    assert warning.startswith("`add` (aten.add.Tensor) at ")
    assert "test_ranges.py:" in warning
    assert "-20" in warning
    assert "boolean" in warning


def test_outliers_are_named() -> None:
    x = draw(64, 64)
    x[0, 0] = 1e4
    assert len(warnings_of(Call(lambda x: torch.relu(x) * 2.0), x)) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.relu(x - 2.5) * 2.0,
        lambda x: torch.softmax(x * 10.0, -1) * 2.0,
        lambda x: torch.where(x > 0.0, 1.0, 0.0) * x,
        lambda x: torch.softmax(x.masked_fill(x > 1.0, -1e9), -1),
        lambda x: (x > 2.0).float() * 1e4 + 1.0,
    ],
    ids=["sparse", "sharp", "binary", "boolean_mask", "two_numbers"],
)
def test_other_ranges_are_not_named(function: Any) -> None:
    assert warnings_of(Call(function), draw(64, 64)) == []


def test_a_small_mask_is_not_named() -> None:
    assert warnings_of(Attend(), draw(2, 16, 8), draw(2, 16, 8, seed=2), masked(-20.0)) == []


def test_sixteen_bits_have_room() -> None:
    from torchao.quantization.pt2e import MinMaxObserver
    from torchao.quantization.pt2e.quantizer import QuantizationSpec

    from tosaic.quantization.quantizer import TosaQuantizer
    from tosaic.quantizer import QuantizationConfig

    wide = QuantizationSpec(torch.int16, MinMaxObserver, -(2**15), 2**15 - 1, torch.per_tensor_symmetric)
    quantizer = TosaQuantizer().set_global(QuantizationConfig(wide, wide, None))
    inputs = (draw(2, 16, 8), draw(2, 16, 8, seed=2), masked(-1e4))
    program = tosaic.compile(Attend().eval(), inputs, "TOSA-1.0+INT", calibration=[inputs], quantizer=quantizer)
    assert program.warnings == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ds_cnn", "mobilenet_v2", "vit"])
def test_models_of_the_zoo_are_not_named(name: str) -> None:
    model, inputs = zoo.load(name)
    program = tosaic.compile(model, inputs, "TOSA-1.0+INT", calibration=zoo.inputs(name, 2, 1))
    assert program.warnings == ()
