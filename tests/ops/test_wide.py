"""Numbers of 16, 32 and 48 bits inside a delegate: every rescale is defined, and 48 bits are never moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torchao.quantization.pt2e import PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantizer import QuantizationSpec

import tosaic
from support import samples
from tosaic.core.errors import Unsupported
from tosaic.core.specification import Specification
from tosaic.core.targets import find
from tosaic.ir.graph import DType, Type
from tosaic.lower.lowering import Lowering
from tosaic.quantization.observer import HistogramObserver
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantizer import QuantizationConfig


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sixteen() -> TosaQuantizer:
    observer: Any = HistogramObserver.with_args(eps=2**-16)
    activation = QuantizationSpec(torch.int16, observer, -(2**15), 2**15 - 1, torch.per_tensor_symmetric)
    weight = QuantizationSpec(torch.int8, PerChannelMinMaxObserver, -127, 127, torch.per_channel_symmetric, 0)
    return TosaQuantizer().set_global(QuantizationConfig(activation, activation, weight))


COMPARISONS = {
    "ge": lambda x, y: x >= y,
    "lt": lambda x, y: x < y * 0.5,
    "eq": lambda x, y: x == y,
    "number": lambda x, y: x + y >= 0.5,
    "tiny": lambda x, y: x > y * 1e-4,
}


@pytest.mark.parametrize("target", ["TOSA-1.0+INT", "ethos-u85-256"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_of_16_bits(name: str, target: str) -> None:
    x, y = draw(4, 3, 2, 5), draw(4, 3, 2, 5, seed=2)
    function = COMPARISONS[name]
    program = tosaic.compile(samples.Call(function).eval(), (x, y), target, quantizer=sixteen())
    assert len(program.delegates) == 1
    (got,) = program.run(x, y, engine="npu" if "ethos" in target else "tosa")
    assert np.array_equal(got, function(x, y).numpy())


def lowering() -> Lowering:
    target = find("TOSA-1.0+INT")
    return Lowering(target, Specification.parse(target.tosa_spec))


@pytest.mark.parametrize(("dtype", "limit"), [(DType.I8, 2.0**22), (DType.I16, 2.0**15)])
def test_a_rescale_stays_where_it_is_defined(dtype: DType, limit: float) -> None:
    """TOSA wants a value below 2**(shift - 1): a larger factor would saturate 8 bits as well."""
    lo = lowering()
    value = lo.b.input(Type(dtype, (4,)))
    made = lo.rescale(value, DType.I8, [limit * 8]).op
    assert made is not None
    shift = made.inputs[2].data
    assert shift is not None
    largest = 255 if dtype is DType.I8 else 2**15
    assert largest <= 2 ** (int(shift[0]) - 1)
    with pytest.raises(Unsupported, match="out of range"):
        lo.rescale(value, DType.I32, [limit])


SUMS = {
    "mean": (lambda x: x.transpose(1, 2).mean(-1), (1, 64, 6)),
    "sum": (lambda x: x.transpose(1, 2).sum(-1, keepdim=True), (1, 64, 6)),
    "batch": (lambda x: x.transpose(1, 2).mean(-1), (2, 64, 6)),
    "norm": (lambda x: F.layer_norm(x.transpose(1, 2), (64,)), (1, 64, 6)),
    "image": (lambda x: x.permute(0, 3, 2, 1).mean(-1), (1, 64, 4, 6)),
    "turned": (lambda x: x.permute(3, 2, 0, 1).mean((2, 3)), (4, 16, 4, 6)),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_a_transposed_tensor(name: str) -> None:
    function, shape = SUMS[name]
    x = draw(*shape)
    program = tosaic.compile(samples.Call(function).eval(), (x,), "ethos-u55-128")
    assert [r.why for r in program.reasons if not r.is_io] == []
    (got,), want = program.run(x), function(x).numpy()
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()
    assert program.verify().ok
