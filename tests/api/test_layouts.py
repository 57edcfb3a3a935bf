"""The ExecuTorch API on tensors that do not lie in memory in the order of their dimensions, or have no fixed shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import nn
from torch.export import Dim, export
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

import tosaic
from support.extras import needs_compiler, needs_converter
from tosaic.core.errors import Invalid
from tosaic.driver.exir import TosaicPartitioner
from tosaic.engines import engine
from tosaic.ethosu import EthosUCompileSpec, EthosUPartitioner
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config
from tosaic.tosa import TosaCompileSpec, TOSAPartitioner
from tosaic.vgf import VgfCompileSpec, VgfPartitioner

LAST = torch.channels_last
SMALL = EdgeCompileConfig(_check_ir_validity=False)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


class Begins(Conv):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(memory_format=LAST))


class Ends(Conv):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).contiguous(memory_format=LAST)


class Between(Conv):
    """Channels last where the NPU hands over to the CPU, and back: no target has its operator."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 40, 3)
        self.last = nn.Conv2d(40, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x).contiguous(memory_format=LAST)
        return self.last(torch.native_dropout(y, 0.0, True)[0])


class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 0.5


def numbers(*shape: int) -> torch.Tensor:
    return torch.sin(torch.arange(float(np.prod(shape)))).reshape(shape)


def make_last() -> nn.Module:
    """Make a model with parameters in channels last; torch's stubs do not have this form of `to`."""
    model: Any = Conv()
    return model.to(memory_format=LAST)


IMAGE = numbers(1, 3, 8, 6)
CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "model and input": lambda: (make_last(), IMAGE.to(memory_format=LAST)),
    "model": lambda: (make_last(), IMAGE),
    "input": lambda: (Conv(), IMAGE.to(memory_format=LAST)),
    "at the beginning": lambda: (Begins(), IMAGE),
    "at the end": lambda: (Ends(), IMAGE),
    "in the middle": lambda: (Between(), IMAGE),
    "channels last in 3d": lambda: (Scale(), numbers(1, 2, 3, 4, 5).to(memory_format=torch.channels_last_3d)),
    "transposed": lambda: (Scale(), numbers(4, 6).t()),
    "permuted": lambda: (Scale(), numbers(2, 4, 6, 3).permute(0, 3, 2, 1)),
    "strided": lambda: (Scale(), numbers(4, 12)[:, ::2]),
}


def quantize(model: nn.Module, inputs: tuple[torch.Tensor, ...], **options: Any) -> GraphModule:
    module = export(model.eval(), inputs, **options).module()
    module = prepare_pt2e(module, TosaQuantizer().set_global(get_symmetric_quantization_config()))
    module(*inputs)
    return convert_pt2e(module)


def lower(program: Any, partitioner: TosaicPartitioner) -> tuple[bytes, int]:
    """The .pte of the ExecuTorch API, and how many delegates it has."""
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=SMALL)
    nodes = edge.exported_program().graph.nodes
    return edge.to_executorch().buffer, sum("call_delegate" in str(n.target) for n in nodes)


@pytest.mark.parametrize("case", CASES)
def test_int8_on_the_npu(case: str) -> None:
    model, x = CASES[case]()
    module = quantize(model, (x,))
    pte, delegates = lower(export(module, (x,)), EthosUPartitioner(EthosUCompileSpec("ethos-u55-128")))
    assert delegates == (2 if case == "in the middle" else 1)
    (got,) = engine.run(pte, [x.numpy()], engine="npu").outputs
    assert np.abs(got - module(x).detach().numpy()).max() <= 1e-6


@needs_compiler
@pytest.mark.parametrize("case", ["model and input", "at the end"])
def test_int8_in_the_stock_runtime(case: str) -> None:
    model, x = CASES[case]()
    module = quantize(model, (x,))
    pte, _ = lower(export(module, (x,)), EthosUPartitioner(EthosUCompileSpec("ethos-u55-128")))
    (got,) = engine.run(pte, [x.numpy()], engine="executorch").outputs
    assert np.abs(got - module(x).detach().numpy()).max() <= 1e-6


@pytest.mark.parametrize("case", CASES)
def test_float_in_tosa(case: str) -> None:
    model, x = CASES[case]()
    pte, delegates = lower(export(model.eval(), (x,)), TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP")))
    assert delegates == (2 if case == "in the middle" else 1)
    (got,) = engine.run(pte, [x.numpy()], engine="tosa").outputs
    assert np.abs(got - model(x).detach().numpy()).max() <= 1e-5


@pytest.mark.parametrize("case", ["model and input", "in the middle"])
def test_high_level_api(case: str) -> None:
    model, x = CASES[case]()
    for target in ("ethos-u55-128", "TOSA-1.0+FP"):
        program = tosaic.compile(model.eval(), (x,), target)
        verdict = program.verify(rounds=0)
        assert verdict.ok and program.delegates, str(verdict)


class Positions(nn.Module):
    """Its second result is integers with four dimensions, which a float profile cannot transpose."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, positions = torch.nn.functional.max_pool2d_with_indices(x, [2, 2])
        return torch.exp(values), positions.to(torch.int32)


def test_integers_that_cannot_be_transposed_stay_on_the_cpu() -> None:
    x = IMAGE.to(memory_format=LAST)
    pte, delegates = lower(export(Positions(), (x,)), TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP")))
    assert delegates == 1
    check_positions(engine.run(pte, [x.numpy()], engine="tosa").outputs, Positions()(x))


def test_integers_that_cannot_be_transposed_stay_on_the_cpu_in_nhwc() -> None:
    program = tosaic.compile(Positions().eval(), (IMAGE,), "TOSA-1.0+FP", layout="nhwc")
    assert len(program.delegates) == 1
    outputs = program.run(IMAGE.permute(0, 2, 3, 1).numpy())
    check_positions(outputs, [result.permute(0, 2, 3, 1) for result in Positions()(IMAGE)])


def check_positions(got: Sequence[Any], want: Sequence[torch.Tensor]) -> None:
    values, positions = got
    assert np.abs(values - want[0].numpy()).max() <= 1e-5
    assert np.array_equal(positions, want[1].numpy())


@needs_converter
def test_shapes_of_a_vgf_follow_memory() -> None:
    """The VGF file declares the shape that the runtime hands over: channels last."""
    from tosaic.formats.vgf import read

    model, x = CASES["model and input"]()
    partitioner = VgfPartitioner(VgfCompileSpec())
    edge = to_edge_transform_and_lower(export(model.eval(), (x,)), partitioner=[partitioner], compile_config=SMALL)
    module = edge.exported_program().graph_module
    (name,) = (str(n.target) for n in module.graph.nodes if n.op == "get_attr" and "lowered" in str(n.target))
    assert (1, 8, 6, 3) in {tuple(r.shape) for r in read(getattr(module, name).processed_bytes).resources}


def test_expanded_input_is_refused_by_name() -> None:
    program = export(Scale(), (torch.ones(1, 6).expand(4, 6),))
    with pytest.raises(Invalid, match="input `x` is an expanded tensor"):
        lower(program, TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP")))


class Batch(nn.Module):
    """Two parts that have nothing to do with each other; the batch of the first can vary."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sigmoid(x) * x, torch.tanh(y)


BATCH = (numbers(3, 6), numbers(2, 5))
DYNAMIC = ({0: Dim("batch", min=1, max=8)}, None)


@pytest.mark.parametrize(
    ("quantized", "name"), [(True, "npu"), pytest.param(True, "executorch", marks=needs_compiler), (False, "tosa")]
)
def test_dynamic_batch_stays_on_the_cpu(quantized: bool, name: str) -> None:
    """What has a fixed shape is delegated, the rest takes every batch in ExecuTorch's runtime."""
    module = quantize(Batch(), BATCH, dynamic_shapes=DYNAMIC) if quantized else Batch().eval()
    program = export(module, BATCH, dynamic_shapes=DYNAMIC)
    partitioner = (
        EthosUPartitioner(EthosUCompileSpec("ethos-u55-128"))
        if quantized
        else TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"))
    )
    pte, delegates = lower(program, partitioner)
    assert delegates == 1
    reasons = [r for r in partitioner.reasons if "is dynamic" in r.why]
    assert any("dimension 0 of `x`" in r.why for r in reasons)
    assert all(r.fix == "export without dynamic_shapes, once per shape" for r in reasons)
    for batch in (1, 3, 7):
        x = numbers(batch, 6)
        want = module(x, BATCH[1])
        got = engine.run(pte, [x.numpy(), BATCH[1].numpy()], engine=name).outputs
        for a, b in zip(got, want, strict=True):
            assert np.abs(a - b.detach().numpy()).max() <= 1e-5


def test_dynamic_module_is_refused_by_the_high_level_api() -> None:
    module = quantize(Batch(), BATCH, dynamic_shapes=DYNAMIC)
    with pytest.raises(Invalid, match="dynamic shapes") as caught:
        tosaic.compile(module, BATCH)
    assert "dimension 0 of input `x`" in str(caught.value)
