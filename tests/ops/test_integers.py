"""Indices: torch has them in int64, the targets in int32. What that means for look-ups and for argmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from support import samples
from tosaic.backends.ethosu import EthosUCompileSpec
from tosaic.driver.carry import carry_results
from tosaic.driver.delegate import CompiledGraph, build
from tosaic.engines import reference
from tosaic.fx.source import Source
from tosaic.quantization.quantizer import TosaQuantizer
from tosaic.quantization.recipes import get_symmetric_quantization_config


def quantized(function: Any, *inputs: torch.Tensor) -> Any:
    model = function if isinstance(function, torch.nn.Module) else samples.Call(function)
    with torch.no_grad():
        program = torch.export.export(model.eval(), inputs)
        prepared = prepare_pt2e(program.module(), TosaQuantizer().set_global(get_symmetric_quantization_config()))
        prepared(*inputs)
        return convert_pt2e(prepared)


def reasons(built: CompiledGraph) -> dict[str, tuple[str, str]]:
    return {r.op: (r.why, r.fix) for r in built.plan.reasons.values() if not r.is_io}


@pytest.mark.parametrize(
    "model",
    [
        torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 3)),
        lambda i: torch.arange(27.0).view(9, 3)[i] * 2.0,
        lambda i: torch.arange(27.0).view(9, 3).index_select(0, i) * 2.0,
    ],
    ids=["embedding", "index", "index_select"],
)
def test_int64_indices_are_cast_on_the_cpu(model: Any) -> None:
    index = torch.tensor([3, 0, 8])
    module = quantized(model, index)
    built = build(Source.of_module(module), EthosUCompileSpec("ethos-u85-256"))
    assert set(reasons(built)) == {"aten.to.dtype"}
    assert "int64" in reasons(built)["aten.to.dtype"][0]
    (made,) = built.delegates
    seen = samples.values_of(module, (index,))
    (got,) = reference.run(made.tosa, [seen[n].numpy() for n in made.partition.inputs])
    assert abs(got.astype(int) - seen[made.partition.outputs[0]].numpy().astype(int)).max() <= 1


def test_argmax_stays_on_the_cpu_as_int64_where_nothing_casts_it() -> None:
    """ExecuTorch's to_backend partitions a graph as it is; `driver.carry` inserts the casts in all other cases."""
    module = quantized(lambda x: torch.relu(x).argmax(-1), torch.randn(2, 9))
    built = build(Source.of_module(module), EthosUCompileSpec("ethos-u85-256"))
    why, fix = reasons(built)["aten.argmax.default"]
    assert why == "its result is int64, which the target does not support"
    assert fix == "cast the result to int32"
    assert len(built.delegates) == 1


def test_argmax_with_two_users_is_cast_for_one() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best = torch.relu(x).argmax(-1)
        return best, best.to(torch.int32)

    module, spec = quantized(both, torch.randn(2, 9)), EthosUCompileSpec("ethos-u85-256")
    assert carry_results(Source.of_module(module), spec.target)
    built = build(Source.of_module(module), spec)
    assert set(reasons(built)) == {"aten._to_copy.default"}
    assert len(built.delegates) == 1
    # Nothing is left to do.
    assert not carry_results(Source.of_module(module), spec.target)


def test_argmax_feeds_a_look_up() -> None:
    """int64 inside a delegate is int32, and stays there."""
    table = torch.arange(18.0).view(9, 2)
    module = quantized(lambda x: torch.nn.functional.embedding(x.argmax(-1), table) * 2.0, torch.randn(3, 9))
    built = build(Source.of_module(module), EthosUCompileSpec("ethos-u85-256"))
    assert reasons(built) == {}
