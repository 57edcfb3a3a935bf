"""Activations of 16 bits have a range with room: what calibration did not see is not cut off."""

from __future__ import annotations

import torch
from torch import nn

from tosaic.api.prepare import quantize
from tosaic.driver.exported import export
from tosaic.quantization.observer import RoomyObserver
from tosaic.quantization.precisions import Precision


def measure_db(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return 10.0 * float(torch.log10((wanted**2).sum() / ((found - wanted) ** 2).sum()))


def test_a_range_is_a_quarter_larger() -> None:
    observer = RoomyObserver(dtype=torch.int16, quant_min=-32767, quant_max=32767, qscheme=torch.per_tensor_symmetric)
    observer(torch.tensor([-1.0, 3.0]))
    observer(torch.tensor([2.0, -4.0]))
    scale, zero_point = observer.calculate_qparams()
    assert (float(scale), int(zero_point)) == (float(torch.tensor(4.0 / 32767) * 1.25), 0)
    observer(torch.tensor([8.0]))
    assert float(observer.calculate_qparams()[0]) > 1.9 * float(scale)


def test_other_inputs_reach_a_little_further() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    sample = torch.linspace(-1, 1, 24).reshape(3, 8)
    exported = export(model, (sample,))
    module = quantize(exported, [(sample,)], Precision("a16w8").make_quantizer(exported.graph, "float"))
    with torch.no_grad():
        near, far = (measure_db(module(x), model(x)) for x in (sample, 1.1 * sample))
    assert far > near - 2.0
