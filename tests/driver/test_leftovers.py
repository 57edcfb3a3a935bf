"""What is left for the CPU becomes a program that ExecuTorch takes."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from executorch.exir import to_edge

import tosaic
from support.apis import Call
from tosaic.api.build import export, make_spec
from tosaic.driver.exported import _find_public
from tosaic.engines import engine
from tosaic.tosa import TOSAPartitioner

X = torch.randn(2, 8, generator=torch.Generator().manual_seed(8))


def test_an_operator_without_an_out_variant_is_decomposed() -> None:
    model = Call(lambda _, x: F.native_channel_shuffle(x, 4)).eval()
    inputs = (X.reshape(1, 8, 2, 1),)
    program = tosaic.compile(model, inputs, "TOSA-1.0+FP")
    np.testing.assert_array_equal(program.run(*inputs)[0], model(*inputs).numpy())


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
    assert "it pools 2 dimensions" in {r.why for r in program.reasons}
