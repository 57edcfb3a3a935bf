"""An exception inside the compiler costs the node it belongs to, and never the whole compile."""

from __future__ import annotations

import functools
import logging
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import nn

import tosaic
from tosaic.api.prepare import quantize
from tosaic.driver import delegate, partition
from tosaic.driver.delegate import build
from tosaic.driver.exported import export
from tosaic.ethosu import EthosUCompileSpec, EthosUPartitioner
from tosaic.formats.tosa_writer import read
from tosaic.fx.source import Source
from tosaic.ir.graph import Graph
from tosaic.lower import steps
from tosaic.lower import walk as program
from tosaic.lower.lowering import Lowering
from tosaic.tools import vela

SPEC = EthosUCompileSpec("ethos-u55-128")
INPUTS = (torch.linspace(-1, 1, 8).reshape(1, 8),)


class Net(nn.Module):
    """Two layers around a table, which is what fails here."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(t)))


@functools.cache
def quantized() -> tuple[Any, Any]:
    module = quantize(export(Net().eval(), INPUTS), [INPUTS])
    return module, torch.export.export(module, INPUTS)


def fail(graph: Any) -> None:
    if any(op.kind == "TABLE" for op in graph.ops):
        raise ZeroDivisionError("a mistake")


def break_lowering(patch: pytest.MonkeyPatch) -> None:
    def fail_for_tanh(lo: Lowering, call: steps.Call) -> steps.Call:
        if "tanh" in call.name:
            raise ZeroDivisionError("a mistake")
        return call

    patch.setattr(steps, "STEPS", (fail_for_tanh, *steps.STEPS))


def break_graph_function(name: str, patch: pytest.MonkeyPatch) -> None:
    real = getattr(delegate, name)

    def broken(graph: Graph, *rest: Any, **named: Any) -> Any:
        fail(graph)
        return real(graph, *rest, **named)

    patch.setattr(delegate, name, broken)


def break_assembly(patch: pytest.MonkeyPatch) -> None:
    real = vela.compile_cached

    def compile_cached(tosa: bytes, options: Any, **rest: Any) -> Any:
        fail(read(tosa))
        return real(tosa, options, **rest)

    patch.setattr(vela, "compile_cached", compile_cached)


STAGES: dict[str, Any] = {
    "lowering": break_lowering,
    "passes": functools.partial(break_graph_function, "run_passes"),
    "verify": functools.partial(break_graph_function, "verify"),
    "serialize": functools.partial(break_graph_function, "serialize"),
    "assembly": break_assembly,
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_mistake_costs_one_node(
    stage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, exported = quantized()
    monkeypatch.setenv("TOSAIC_STRICT", "0")
    STAGES[stage](monkeypatch)
    with caplog.at_level(logging.ERROR, "tosaic"):
        built = build(Source.of_module(module), SPEC)
    left = [r for r in built.plan.reasons.values() if not r.is_io]
    assert [r.op for r in left if "internal error" in r.why] == ["aten.tanh.default"]
    assert "ZeroDivisionError: a mistake" in next(r.why for r in left if "internal error" in r.why)
    assert "report" in next(r.fix for r in left if "internal error" in r.why)
    assert "Traceback" in caplog.text and "ZeroDivisionError: a mistake" in caplog.text
    assert len(built.delegates) == 2
    partitioner = EthosUPartitioner(SPEC)
    config = EdgeCompileConfig(_check_ir_validity=False)
    to_edge_transform_and_lower(exported, partitioner=[partitioner], compile_config=config).to_executorch()
    assert [r.op for r in partitioner.reasons if "internal error" in r.why] == ["aten.tanh.default"]


@pytest.mark.parametrize("stage", STAGES)
def test_strict_raises_the_mistake(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    STAGES[stage](monkeypatch)
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        build(Source.of_module(quantized()[0]), SPEC)


def test_a_mistake_of_the_partitioner_leaves_all_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def levels(*_: Any) -> Any:
        raise AssertionError("a circle")

    monkeypatch.setenv("TOSAIC_STRICT", "0")
    monkeypatch.setattr(partition, "_levels", levels)
    compiled = tosaic.compile(Net().eval(), INPUTS, "ethos-u55-128")
    assert compiled.delegates == ()
    assert all("internal error" in r.why and "circle" in r.why for r in compiled.reasons if not r.is_io)
    assert compiled.run(*INPUTS)[0].shape == (1, 4)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_what_is_no_mistake_is_raised(error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> Any:
        raise error

    monkeypatch.setenv("TOSAIC_STRICT", "0")
    monkeypatch.setattr(program.GraphLowering, "run", run)
    with pytest.raises(error):
        build(Source.of_module(quantized()[0]), SPEC)
