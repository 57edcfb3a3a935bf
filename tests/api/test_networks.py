"""Networks of many kinds on both families: in one delegate, nothing that computes on the CPU, bit for bit."""

from __future__ import annotations

import pytest
import torch

from support.networks import NETWORKS, make
from tosaic.api.build import compile

TARGETS = ("ethos-u55-128", "ethos-u85-256")
#: What stays on the CPU, and why it has to: int64 inputs are cast and viewed there, and Ethos-U55 has no look-up by
#: computed indices.
CASTS = {"aten.to.dtype", "aten.unsqueeze.default", "aten.slice.Tensor"}
ON_CPU = {"bert": {"ethos-u55-128": CASTS | {"aten.embedding.default"}, "ethos-u85-256": CASTS}}


def _vary(inputs: tuple[torch.Tensor, ...], count: int) -> list[tuple[torch.Tensor, ...]]:
    """Make further samples: noise on floats, the same integers."""
    generator = torch.Generator().manual_seed(3)
    noise = [torch.randn(x.shape, generator=generator) for x in inputs for _ in range(count)]
    return [
        tuple(x + 0.5 * noise[i * count + n] if x.is_floating_point() else x for i, x in enumerate(inputs))
        for n in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name: str, target: str) -> None:
    model, inputs = make(name)
    program = compile(model, inputs, target, calibration=[inputs, *_vary(inputs, 3)])
    allowed = ON_CPU.get(name, {}).get(target, set())
    assert [f"{r.op}: {r.why}" for r in program.reasons if not (r.is_io or r.cause) and r.op not in allowed] == []
    assert len(program.delegates) == 1
    verdict = program.verify()
    assert verdict.ok, str(verdict)
