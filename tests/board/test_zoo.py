"""Every model of the zoo on the virtual board: the bytes that engine `npu` computes."""

import numpy as np
import pytest
import torch

import tosaic
from support.boards import needs_board
from tosaic import zoo
from tosaic.engines import engine

QUICK = ("add", "softmax", "ds_cnn")


@needs_board
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in zoo.names()]
)
def test_zoo(name: str, target: str) -> None:
    model, inputs = zoo.load(name)
    data = tosaic.compile(model, inputs, target=target).pte
    arrays = [np.asarray(x) for x in inputs if isinstance(x, torch.Tensor)]
    expected = engine.run(data, arrays, engine="npu").outputs
    for found, wanted in zip(engine.run(data, arrays, engine="board").outputs, expected, strict=True):
        if wanted.dtype.kind == "f" and name == "softmax":
            # Not delegated: torch's exponential function differs in the last bits.
            assert np.abs(found - wanted).max() <= 1e-5 * max(1.0, float(np.abs(wanted).max()))
        else:
            assert found.tobytes() == wanted.tobytes()
