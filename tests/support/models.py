"""Zoo models as tests need them."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tosaic import zoo
from tosaic.api.prepare import quantize
from tosaic.driver.exported import export


@functools.cache
def quantize_model(name: str) -> tuple[Any, tuple[torch.Tensor, ...], Any]:
    """Return the converted module, example inputs and re-exported program of a zoo model."""
    model, inputs = zoo.load(name)
    program = export(model, inputs)
    if inputs[0].is_floating_point():
        module = quantize(program, zoo.inputs(name, 2, 1))
        return module, inputs, torch.export.export(module, inputs)
    return program.module(), inputs, program
