"""Parameters that are used as they are: the result is that of torch's quantized graph, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from support import samples
from tosaic.api.prepare import quantize
from tosaic.backends.ethosu import EthosUCompileSpec
from tosaic.driver.delegate import build
from tosaic.driver.exported import export
from tosaic.engines import reference
from tosaic.fx.source import Source


@pytest.mark.parametrize(
    "slopes",
    [(0.3, -0.21, 0.013, 1.0, -1.7), (1.3, 0.21, -0.7, 2.9, 1.0), (1.01, 7.0, 1.4, 3.0, 2.0)],
    ids=["flat", "mixed", "steep"],
)
def test_prelu(slopes: tuple[float, ...]) -> None:
    layer = nn.PReLU(5)
    layer.weight.data = torch.tensor(slopes)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(1, 5, 16, 16, generator=generator)
    module = quantize(export(nn.Sequential(nn.Hardtanh(-2.1, 1.7), layer).eval(), (x,)), [(x,)])
    assert not any(n.op == "get_attr" and "frozen" in str(n.target) for n in module.graph.nodes), "slopes are quantized"
    (made,) = build(Source.of_module(module), EthosUCompileSpec("ethos-u55-128")).delegates
    seen = samples.values_of(module, (x,))
    (got,) = reference.run(made.tosa, [seen[n].numpy() for n in made.partition.inputs])
    assert (got == seen[made.partition.outputs[0]].numpy()).all()
    assert len(set(got.flat)) > 100
