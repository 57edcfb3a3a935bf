"""Whole models on Vulkan: MobileNetV2 in float against torch, in int8 bit for bit against the reference model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tosaic
from tosaic import zoo
from tosaic.engines import vulkan

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("device")]


def test_mobilenet_v2_in_float() -> None:
    model, inputs = zoo.load("mobilenet_v2")
    program = tosaic.compile(model, inputs, "vgf", quantized=False)
    assert (len(program.delegates), dict(program.cpu_ops)) == (1, {})
    (got,) = vulkan.run(program.pte, [inputs[0].numpy()])
    with torch.no_grad():
        want = model(*inputs).numpy()
    assert float(np.abs(got - want).max()) <= 1e-5 * max(1.0, float(np.abs(want).max()))
    assert got.argmax() == want.argmax()


@pytest.mark.parametrize("io", ["float", "int8"])
def test_mobilenet_v2_in_int8(io: str) -> None:
    model, inputs = zoo.load("mobilenet_v2")
    program = tosaic.compile(model, inputs, "vgf", io=io, calibration=zoo.inputs("mobilenet_v2", 2, 1))
    assert (len(program.delegates), dict(program.cpu_ops)) == (1, {})
    given = inputs[0] if io == "float" else torch.randint(-128, 128, inputs[0].shape, dtype=torch.int8)
    (got,) = vulkan.run(program.pte, [given.numpy()])
    (want,) = program.run(given, engine="tosa")
    assert np.array_equal(got, want)
