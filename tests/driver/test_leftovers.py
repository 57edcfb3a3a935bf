"""What is left for the CPU becomes a program that ExecuTorch takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from executorch.exir import to_edge, to_edge_transform_and_lower
from executorch.exir.backend.operator_support import DontPartition

import tosaic
from support.apis import Call
from tosaic.api.build import make_spec
from tosaic.api.prepare import quantize
from tosaic.driver.exported import _find_public, export
from tosaic.engines import engine
from tosaic.ethosu import EthosUPartitioner
from tosaic.tosa import TosaCompileSpec, TOSAPartitioner

X = torch.randn(2, 8, generator=torch.Generator().manual_seed(8))


def test_an_operator_without_an_out_variant_is_decomposed() -> None:
    model = Call(lambda _, x: F.native_channel_shuffle(x, 4)).eval()
    inputs = (X.reshape(1, 8, 2, 1),)
    program = tosaic.compile(model, inputs, "TOSA-1.0+FP")
    np.testing.assert_array_equal(program.run(*inputs)[0], model(*inputs).numpy())


def test_a_decomposition_that_makes_a_tensor_of_one_number() -> None:
    model = Call(lambda _, x: torch.special.xlog1py(1.5, x)).eval()
    x = torch.rand(1, 2, 1, 2, 1, 2, 1, 2, generator=torch.Generator().manual_seed(8))
    program = tosaic.compile(model, (x,), "TOSA-1.0+FP")
    assert {r.op for r in program.reasons} == {"aten.special_xlog1py.self_scalar"}
    np.testing.assert_allclose(program.run(x)[0], model(x).numpy(), rtol=1e-6)


def test_a_native_operator_with_other_arguments_keeps_its_own_meaning() -> None:
    aten = torch.ops.aten
    assert _find_public(aten.native_channel_shuffle.default) is aten.channel_shuffle.default
    assert _find_public(aten.native_dropout.default) is aten.native_dropout.default


def test_checks_of_numbers_in_a_graph_of_to_edge_and_to_backend() -> None:
    inputs = (X, torch.tensor([1, 2]))
    model = Call(lambda layer, x, i: (layer(x), F.one_hot(i, 5))).eval()
    used = TOSAPartitioner(make_spec("TOSA-1.0+FP"))
    edge = to_edge(export(model, inputs)).to_backend(used)
    got = engine.run(bytes(edge.to_executorch().buffer), [x.numpy() for x in inputs]).outputs
    for array, want in zip(got, model(*inputs), strict=True):
        np.testing.assert_allclose(array.astype(np.float32), want.detach().numpy(), atol=1e-5)
    assert any("to_edge_transform_and_lower" in r.fix for r in used.reasons)


def test_a_constant_in_channels_last() -> None:
    weight = X.reshape(1, 4, 2, 2).contiguous(memory_format=torch.channels_last)
    model = Call(lambda _, x: (F.native_channel_shuffle(weight, 2), x + 1.0)).eval()
    program = tosaic.compile(model, (X,), "TOSA-1.0+FP")
    np.testing.assert_array_equal(program.run(X)[0], model(X)[0].numpy())


def test_pooling_of_a_tensor_that_is_no_image() -> None:
    model = Call(lambda _, x: torch.ops.aten.adaptive_avg_pool2d.default(x * 2.0, [1, 1])).eval()
    image = X.reshape(4, 4)
    program = tosaic.compile(model, (image,), "ethos-u85-256")
    assert "pooling takes an image of 3 or 4 dimensions; here the tensor has 2" in {r.why for r in program.reasons}


class Fill(torch.nn.Module):
    """A choice for the NPU, and one among parameters, which nothing quantizes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 68).reshape(4, 17), requires_grad=False)
        self.register_buffer("hidden", torch.arange(51).reshape(3, 17) % 3 == 0)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.ops.aten.where.ScalarSelf(mask, -1.0, x)
        return chosen.reshape(-1) + 1.0, torch.ops.aten.masked_fill.Scalar(self.weight[1:], self.hidden, 0.25)


def test_what_the_cpu_takes_apart_is_not_kept_whole_for_a_delegate() -> None:
    model, inputs = Fill().eval(), (torch.tensor(0.7), torch.tensor([[True, False], [False, True]]))
    spec = make_spec("ethos-u85-256")
    program = torch.export.export(quantize(export(model, inputs), [inputs]), inputs)
    edge = to_edge_transform_and_lower(program, partitioner=[EthosUPartitioner(spec)])
    got = engine.run(bytes(edge.to_executorch().buffer), [x.numpy() for x in inputs]).outputs
    for array, want in zip(got, model(*inputs), strict=True):
        torch.testing.assert_close(torch.from_numpy(array), want, rtol=0, atol=0.05)


@pytest.mark.parametrize("layout", ["transposed", "channels last"])
@pytest.mark.parametrize("delegated", [True, False])
def test_strides_of_a_tensor_in_another_memory_order(layout: str, delegated: bool) -> None:
    """Torch keeps the order of a transposed tensor in memory, where exir stores it anew; `as_strided` sees it."""
    if layout == "transposed":
        x = torch.arange(12.0).reshape(3, 4)
        model = Call(lambda _, x: (x + 1.0).t().as_strided((3, 4), (2, 1), 1)).eval()
    else:
        x = torch.arange(120.0).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
        model = Call(lambda _, x: (x + 1.0).as_strided((3, 4), (2, 1), 1)).eval()
    aten = torch.ops.aten
    checks = [] if delegated else [DontPartition(aten.as_strided.default, aten.as_strided_copy.default)]
    partitioner = TOSAPartitioner(TosaCompileSpec("TOSA-1.0+FP"), checks)
    edge = to_edge_transform_and_lower(torch.export.export(model, (x,)), partitioner=[partitioner])
    got = engine.run(bytes(edge.to_executorch().buffer), [x.numpy()]).outputs
    np.testing.assert_array_equal(got[0], model(x).numpy())
