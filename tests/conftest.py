"""What several tests share: quantized zoo models and the two Python doors."""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

import pytest
import torch

from tosaic import zoo

warnings.filterwarnings("ignore", category=FutureWarning)
# An internal error that would only cost a node is a failure here, in child processes too.
os.environ["TOSAIC_STRICT"] = "1"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    # Two pytest workers on two cores: more threads would only fight.
    torch.set_num_threads(1)


@functools.cache
def quantized_model(name: str) -> tuple[Any, tuple[torch.Tensor, ...], Any]:
    """(converted module, example inputs, re-exported program) of a zoo model."""
    from tosaic.api.build import export, quantize

    model, inputs = zoo.load(name)
    program = export(model, inputs)
    if inputs[0].is_floating_point():
        module = quantize(program, zoo.inputs(name, 2, 1))
        return module, inputs, torch.export.export(module, inputs)
    return program.module(), inputs, program


@pytest.fixture(scope="session")
def quantized_zoo() -> Any:
    return quantized_model
