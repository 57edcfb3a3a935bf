"""Channels whose weights are nearly zero: their biases fit into 32 bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tosaic
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(4, 4, 3),
    "depthwise": lambda: nn.Conv2d(4, 4, 3, groups=4),
    "transposed": lambda: nn.ConvTranspose2d(4, 4, 2, 2),
    "linear": lambda: nn.Linear(8, 4),
}


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-4])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("per_channel", [True, False])
def test_bias_of_a_small_weight(layer: str, size: float, per_channel: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = LAYERS[layer]().eval(), torch.randn(1, 4, 8, 8) * 0.01
    weight = model.get_parameter("weight").data
    channel = weight[:, 1] if layer == "transposed" else weight[1]
    (channel if per_channel else weight).mul_(size)
    model.get_parameter("bias").data.copy_(torch.tensor([0.5, 1.0, -1.0, 0.0]))
    quantizer = TosaQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=per_channel))
    program = tosaic.compile(model, (x,), "ethos-u55-128", quantizer=quantizer)
    assert program.verify().ok
    wanted = model(x)
    (found,) = program.run(x)
    # One step of a range from -1 to 1, and half of one.
    assert (torch.as_tensor(found) - wanted).abs().max() < 1.5 * float(wanted.max() - wanted.min()) / 255
