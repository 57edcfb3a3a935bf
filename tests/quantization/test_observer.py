"""Our observers find the ranges of torchao's, bit for bit."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchao.quantization import pt2e
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from tosaic.quantization import observer
from tosaic.quantization.norms import fold_norms
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config

#: distributions of a number of values; each is a batch, and the ones after it have other ranges
SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda x: x,
    "positive": torch.abs,
    "negative": lambda x: -x.abs(),
    "heavy": lambda x: x**3,
    "relu": torch.relu,
    "skewed": lambda x: x.exp() ** 2,
    "softmax": lambda x: x.softmax(0),
    "few_values": lambda x: (4 * x).round(),
    "signs": torch.sign,
    "outlier": lambda x: torch.cat([x, torch.tensor([100.0])]),
    "constant": lambda x: torch.full_like(x, 0.37),
    "zero": torch.zeros_like,
    "tiny": lambda x: x * 1e-30,
    "subnormal": lambda x: x * 1e-42,
    "huge": lambda x: x * 1e37,
    "far_from_zero": lambda x: x * 1e-4 + 1000,
    "infinite": lambda x: torch.cat([x, torch.tensor([float("inf")])]),
    "only_infinite": lambda x: torch.full_like(x, float("-inf")),
}


def draw(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def compare(batches: list[torch.Tensor], bits: torch.dtype = torch.int8) -> None:
    """Both see the same batches, and are asked for their range after each of them."""
    limits = torch.iinfo(bits)
    options: Any = {"dtype": bits, "quant_min": limits.min, "quant_max": limits.max, "eps": 2**-16}
    theirs, ours = pt2e.HistogramObserver(**options), observer.HistogramObserver(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in batches:
            theirs(batch)
            assert ours(batch) is batch
            for want, got in zip(theirs.state_dict().values(), ours.state_dict().values(), strict=True):
                assert torch.equal(want, got)
            for want, got in zip(theirs.calculate_qparams(), ours.calculate_qparams(), strict=True):
                assert torch.equal(want, got)


@pytest.mark.parametrize("count", [1, 7, 1000, pytest.param(300_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_batch(shape: str, count: int) -> None:
    compare([SHAPES[shape](draw(count, count))])


@pytest.mark.parametrize("shape", SHAPES)
def test_growing_ranges(shape: str) -> None:
    first = SHAPES[shape](draw(50, 0))
    compare([first, 0.5 * first, 1.5 * first + 0.01, draw(30, 1)])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_range_after_a_constant(shape: str) -> None:
    compare([torch.full((3,), 0.5), SHAPES[shape](draw(50, 2))])


def test_other_tensors() -> None:
    compare([torch.zeros(0)])
    compare([draw(384, 3).reshape(2, 3, 8, 8).permute(0, 2, 3, 1), draw(1, 4)[0]])
    compare([draw(1000, 5).requires_grad_()])
    compare([draw(1000, 6).double()])
    compare([draw(1000, 7), draw(1000, 8)], torch.int16)


def test_not_a_number_is_an_error_as_with_torchao() -> None:
    for kind in (pt2e.HistogramObserver, observer.HistogramObserver):
        with pytest.raises(RuntimeError, match="nan"):
            kind(dtype=torch.int8)(torch.tensor([1.0, float("nan")]))


@pytest.mark.parametrize("kind", ["MinMaxObserver", "PerChannelMinMaxObserver"])
def test_weights_are_observed_once_and_after_each_change(kind: str) -> None:
    theirs, ours = (getattr(module, kind)(dtype=torch.int8) for module in (pt2e, observer))
    weight = nn.Parameter(draw(40, 9).reshape(4, 10))
    with torch.no_grad():
        for factor in (1.0, 1.0, 3.0):
            weight.mul_(factor)
            ours = copy.deepcopy(ours)
            for one in (theirs, ours, ours):
                one(weight)
            for want, got in zip(theirs.calculate_qparams(), ours.calculate_qparams(), strict=True):
                assert torch.equal(want, got)


@pytest.mark.parametrize(("shape", "axis"), [((4, 6), 0), ((4, 6), 1), ((4, 6), -1), ((4, 6, 3, 2), 1)])
def test_channels_of_any_axis(shape: tuple[int, ...], axis: int) -> None:
    theirs, ours = (m.PerChannelMinMaxObserver(ch_axis=axis, dtype=torch.int8) for m in (pt2e, observer))
    weight = torch.arange(-10.0, 400.0)[: torch.Size(shape).numel()].reshape(shape).contiguous()
    for one in (theirs, ours):
        one(weight)
        one(weight.flip(0) * 1.5)
    assert torch.equal(theirs.min_val, ours.min_val)
    assert torch.equal(theirs.max_val, ours.max_val)


class Net(nn.Module):
    """Convolutions with norms: with and without a bias, one that is read twice, one weight read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        for index, norm in enumerate(self.norms):
            nn.init.uniform_(norm.weight, 0.5, 1.5 + index)
            nn.init.uniform_(norm.running_mean, -1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](self.first(x)).relu()
        x = self.norms[2](self.second(self.norms[1](self.second(x))))
        y = self.first(x[:, :3])
        return self.norms[3](y) + y


def test_norms_are_folded_as_torchao_folds_them() -> None:
    torch.manual_seed(0)
    x = draw(3 * 100, 10).reshape(1, 3, 10, 10)
    program = torch.export.export(Net().eval(), (x,))
    results: list[torch.Tensor] = []
    for fold in (lambda module: None, fold_norms):
        module: Any = program.module()
        with torch.no_grad():
            fold(module)
            prepared = prepare_pt2e(module, TosaQuantizer().set_global(get_symmetric_quantization_config()))
            prepared(x)
            results.append(convert_pt2e(prepared)(x))
    assert torch.equal(*results)


def test_one_norm_per_convolution_is_folded() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    module: Any = torch.export.export(model.eval(), (torch.rand(1, 3, 4, 4),)).module()
    fold_norms(module)
    names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert names == ["aten.conv2d.default"] * 2
