"""How often a node is lowered: the partitioner's lowering is what is compiled, through both APIs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

import tosaic
from support.models import quantize_model
from tosaic import zoo
from tosaic.driver import exir
from tosaic.ethosu import EthosUCompileSpec, EthosUPartitioner
from tosaic.lower.walk import GraphLowering

TARGET = "ethos-u55-128"


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The name of a node for each time that one is lowered."""
    names: list[str] = []
    run = GraphLowering.run

    def count(self: GraphLowering, node: torch.fx.Node) -> Any:
        names.append(node.name)
        return run(self, node)

    monkeypatch.setattr(GraphLowering, "run", count)
    exir.LOWERED.clear()
    yield names
    exir.LOWERED.clear()


def test_compile_lowers_a_node_once(lowered: list[str]) -> None:
    model, inputs = zoo.load("ds_cnn")
    program = tosaic.compile(model, inputs, TARGET, calibration=zoo.inputs("ds_cnn", 1, 1))
    (delegate,) = program.delegates
    assert {n.name for n in delegate.partition.nodes} <= set(lowered)
    assert len(lowered) == len(set(lowered))


def test_the_executorch_api_lowers_a_node_twice(lowered: list[str]) -> None:
    """Once in the graph that exir asks about first, once in the edge graph that it divides."""
    module, _, program = quantize_model("ds_cnn")
    calls = sum(n.op == "call_function" for n in program.graph.nodes)
    blob = tosaic.compile(module, program.example_inputs[0], TARGET).delegates[0].blob
    lowered.clear()
    partitioner = EthosUPartitioner(EthosUCompileSpec(TARGET))
    config = EdgeCompileConfig(_check_ir_validity=False)
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner], compile_config=config)
    assert calls < len(lowered) <= 2 * calls
    assert len(exir.LOWERED) == 0
    (delegate,) = (m for m in edge.exported_program().graph_module.children() if hasattr(m, "processed_bytes"))
    assert delegate.processed_bytes == blob
