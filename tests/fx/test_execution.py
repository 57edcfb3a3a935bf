"""A graph that is run node by node computes what its generated code does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torchao.quantization import pt2e

from tosaic.fx.execution import Execution
from tosaic.fx.torch_compat import pytree
from tosaic.fx.unlift import unlift


class Net(nn.Module):
    """A buffer, an operator with several results, a list, keyword arguments, an input that is returned, a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Any]:
        low, high = torch.split(self.linear(x) + self.table, 2, 1)
        joined = torch.cat([low, high, low], 1)
        return {"sum": joined.sum(1, keepdim=True), "same": x, "pair": [pair[0] * pair[1], joined, joined]}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_results_are_those_of_the_generated_code() -> None:
    inputs = (draw(2, 4), (draw(3, seed=1), draw(3, seed=2)))
    module = unlift(torch.export.export(Net().eval(), inputs))
    run = Execution(module)
    for _ in range(2):
        want = pytree.tree_leaves(module(*inputs))
        got = run(*inputs)
        assert len(got) == len(want) == 5
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_wrong_number_of_inputs_is_an_error() -> None:
    inputs = (draw(2, 4), (draw(3, seed=1), draw(3, seed=2)))
    run = Execution(unlift(torch.export.export(Net().eval(), inputs)))
    with pytest.raises(TypeError, match="the model takes 3 inputs, not 1"):
        run(inputs[0])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shifted", [False, True])
def test_weights_are_dequantized_as_torch_does(dtype: torch.dtype, axis: int, shifted: bool) -> None:
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(7)
    codes = torch.randint(limits.min, limits.max, (5, 6, 7), generator=generator, dtype=dtype)
    codes.view(-1)[:2] = torch.tensor([limits.min, limits.max])
    count = codes.shape[axis]
    points = torch.randint(max(limits.min, -999), min(limits.max, 999), (count,), generator=generator)
    module = GraphModule({}, torch.fx.Graph())
    for name, tensor in {"codes": codes, "scales": draw(count).abs() + 1e-3, "points": points}.items():
        module.register_buffer(name, tensor)
    graph = module.graph
    read = [graph.get_attr(name) for name in ("codes", "scales", "points")]
    assert pt2e  # it registers quantized_decomposed
    function = torch.ops.quantized_decomposed.dequantize_per_channel.default
    arguments = (*read[:2], read[2] if shifted else None, axis % 3, limits.min, limits.max, dtype)
    graph.output(graph.call_function(function, arguments))
    module.recompile()
    (got,) = Execution(module)()
    want = module()
    assert torch.equal(got, want) and got.dtype is want.dtype and got.stride() == want.stride()
