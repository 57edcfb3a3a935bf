"""EfficientNet-Lite0 with its ImageNet weights on Vulkan: 20 photographs get the class that torch gives them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tosaic
from tosaic.engines import vulkan

BENCH = Path(__file__).parents[2] / "bench"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("device")]


@pytest.fixture(scope="module")
def studies() -> Iterator[Any]:
    """bench/studies.py: the model, the 20 photographs and crops of others to calibrate with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        found, data = importlib.import_module("studies"), importlib.import_module("data")
        try:
            found.labeled_inputs()
            found.efficientnet_calibration()
            found.models.load_efficientnet()
        except data.Missing as error:
            pytest.skip(str(error))
        yield found


@pytest.mark.parametrize(("quantized", "least"), [(False, 20), (True, 19)], ids=["float", "int8"])
def test_the_class_of_20_photographs(studies: Any, quantized: bool, least: int) -> None:
    model, photos = studies.models.load_efficientnet(), studies.labeled_inputs()
    calibration = studies.efficientnet_calibration() if quantized else None
    program = tosaic.compile(model, photos[0], "vgf", quantized=quantized, calibration=calibration)
    assert (len(program.delegates), dict(program.cpu_ops)) == (1, {})
    same = 0
    for inputs in photos:
        (got,) = vulkan.run(program.pte, [x.numpy() for x in inputs])
        with torch.no_grad():
            want = model(*inputs).numpy()
        same += int(got.argmax() == want.argmax())
        if not quantized:
            assert float(np.abs(got - want).max()) <= 1e-5 * max(1.0, float(np.abs(want).max()))
    assert same >= least
