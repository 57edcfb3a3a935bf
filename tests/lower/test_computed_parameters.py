"""Layers whose bias, weight or slopes are computed by the model or given at each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import tosaic
from support.apis import Call, compile_both, list_left
from support.extras import needs_converter

RANDOM = torch.Generator().manual_seed(5)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=RANDOM)


W1, W2, DEPTHWISE, GROUPED, UP = draw(4, 3, 2), draw(4, 3, 2, 2), draw(6, 1, 3, 3), draw(4, 2, 2, 2), draw(3, 4, 2, 2)
FEW, MATRIX = draw(16, 3, 3, 3), draw(8, 8)

LAYERS: dict[str, Any] = {
    "conv1d": (lambda _, x, b: F.conv1d(x, W1, b), (draw(1, 3, 12), draw(4))),
    "conv2d-computed": (lambda _, x, b: F.conv2d(x, W2, b * 2 + 1), (draw(1, 3, 6, 6), draw(4))),
    "depthwise": (lambda _, x, b: F.conv2d(x, DEPTHWISE, b, groups=6), (draw(1, 6, 6, 6), draw(6))),
    "grouped": (lambda _, x, b: F.conv2d(x, GROUPED, b, groups=2), (draw(1, 4, 6, 6), draw(4))),
    "linear": (lambda _, x, b: F.linear(x, MATRIX, b), (draw(2, 8), draw(8))),
    "transposed": (lambda _, x, b: F.conv_transpose2d(x, UP, b, stride=2), (draw(1, 3, 5, 5), draw(4))),
    "transposed-grouped": (lambda _, x, b: F.conv_transpose2d(x, GROUPED, b, groups=2), (draw(1, 4, 5, 5), draw(4))),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_float_layers_take_a_computed_bias(layer: str) -> None:
    function, inputs = LAYERS[layer]
    program, used = compile_both(function, inputs, "TOSA-1.0+FP")
    assert list_left(program, used) == ([], [])


@needs_converter
@pytest.mark.parametrize("layer", ["grouped"])
def test_vgf_takes_a_computed_bias(layer: str) -> None:
    function, inputs = LAYERS[layer]
    compile_both(function, inputs, "vgf")


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(lambda _, x, w: F.conv2d(x, w), (draw(1, 3, 6, 6), draw(4, 3, 2, 2)), id="weight"),
        pytest.param(lambda _, x, w: F.prelu(x, w), (draw(1, 4, 3, 3), draw(4)), id="slopes"),
    ],
)
def test_integer_layers_with_computed_parameters_stay_on_the_cpu(function: Any, inputs: Any) -> None:
    program = tosaic.compile(Call(function).eval(), inputs, "ethos-u55-128")
    left = [r for r in program.reasons if r.op.startswith("aten.")]
    assert left and all(r.why and r.fix for r in left)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(
            lambda _, x, b: F.conv2d(x, FEW, b, stride=2, padding=1), (draw(1, 3, 12, 12), draw(16)), id="few"
        ),
        pytest.param(*LAYERS["transposed"], id="transposed"),
        pytest.param(lambda _, x: F.linear(x, MATRIX, torch.ones(4, 8)), (draw(4, 8),), id="rows"),
    ],
)
def test_integer_layers_take_a_bias_that_the_accumulator_cannot(function: Any, inputs: Any) -> None:
    model = Call(function).eval()
    program = tosaic.compile(model, inputs, "ethos-u55-128")
    assert not [r for r in program.reasons if r.op.startswith("aten.")]
    (want,) = tree_leaves(model(*inputs))
    np.testing.assert_allclose(program.run(*inputs)[0], want.detach().numpy(), atol=0.02 * float(want.abs().max()))


def test_a_linear_bias_with_a_row_for_each_input() -> None:
    rows = draw(4, 8)
    compile_both(lambda _, x: F.linear(x, MATRIX, rows), (draw(4, 8),), "TOSA-1.0+FP")
