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


def thirty_two(eps: float = 2**-16) -> TosaQuantizer:
    """Quantize sums to 32 bits, functions from 16 to 32 bits, inputs and outputs to 16 bits."""
    observer: Any = HistogramObserver.with_args(eps=eps)
    wide = QuantizationSpec(torch.int32, observer, -(2**31), 2**31 - 1, torch.per_tensor_symmetric)
    narrow = QuantizationSpec(torch.int16, observer, -(2**15), 2**15 - 1, torch.per_tensor_symmetric)
    quantizer = TosaQuantizer().set_global(QuantizationConfig(wide, wide, None))
    quantizer.set_node_target(torch.ops.aten.sigmoid.default, QuantizationConfig(narrow, wide, None))
    return quantizer.set_io(QuantizationConfig(narrow, narrow, None))


WIDE = {
    "add": lambda x, y: x + y,
    "alpha": lambda x, y: torch.sub(x, y[:1], alpha=0.5) + 0.25,
    "function": lambda x, y: torch.sigmoid(torch.sigmoid(x) + torch.sigmoid(y)),
}


@pytest.mark.parametrize("target", ["TOSA-1.0+INT+int16", "ethos-u85-256"])
@pytest.mark.parametrize("name", WIDE)
def test_sums_and_functions_of_32_bits(name: str, target: str) -> None:
    x, y = draw(3, 17) * 3.0, draw(3, 17, seed=2)
    model = tosaic.quantize(torch.export.export(samples.Call(WIDE[name]), (x, y)), [(x, y)], thirty_two())
    assert any("int32" in str(n.args) for n in model.graph.nodes)
    program = tosaic.compile(model, (x, y), target, quantized=True)
    assert len(program.delegates) == 1 and not [r for r in program.reasons if not r.is_io]
    (got,) = program.run(x, y, engine="npu" if "ethos" in target else "tosa")
    # One step of the 16 bits at the end.
    step = float(model(x, y).abs().max()) / 2**15 + 2**-16
    assert np.abs(got - model(x, y).numpy()).max() <= 1.01 * step


def test_ethos_u55_refuses_32_bits() -> None:
    x, y = draw(3, 17), draw(3, 17, seed=2)
    model = tosaic.quantize(torch.export.export(samples.Call(WIDE["add"]), (x, y)), [(x, y)], thirty_two())
    program = tosaic.compile(model, (x, y), "ethos-u55-128", quantized=True)
    assert any("does not store numbers that are quantized to 32 bits" in r.why for r in program.reasons)


def test_more_than_30_bits_are_refused() -> None:
    x, y = draw(3, 17), draw(3, 17, seed=2)
    model = tosaic.quantize(torch.export.export(samples.Call(WIDE["add"]), (x, y)), [(x, y)], thirty_two(2**-31))
    program = tosaic.compile(model, (x, y), "TOSA-1.0+INT+int16", quantized=True)
    assert not program.delegates
    assert any("need more than 30 bits" in r.why and "eps" in str(r.fix) for r in program.reasons)
