"""An unlifted program has the graph, the names and the tensors of torch's own `program.module()`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tosaic.fx.unlift import unlift


class Names(nn.Module):
    """Has a parameter with the name of a call, a constant that is no parameter, and inputs in a dict and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.Parameter(torch.randn(4))
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.inner.Table = nn.Parameter(torch.randn(4))
        self.register_buffer("hidden", torch.randn(4), persistent=False)
        self.scale = torch.randn(4)

    def forward(self, x: torch.Tensor, others: dict[str, torch.Tensor], *, last: torch.Tensor) -> Any:
        y = torch.relu(self.inner(x) + self.relu + others["b"]) * self.hidden + self.inner.Table
        return {"y": y * self.scale + torch.tensor([1.0, 2.0, 3.0, 4.0]), "z": [others["a"] - last]}


class Counter(nn.Module):
    """Writes to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += x
        return self.count * 2


def describe(module: Any) -> list[tuple[object, ...]]:
    return [(n.op, str(n.target), n.name, str(n.args), str(n.kwargs), sorted(n.meta)) for n in module.graph.nodes]


@pytest.fixture(scope="module")
def program() -> Any:
    x = torch.randn(2, 4)
    return torch.export.export(Names().eval(), (x, {"a": x + 1, "b": x + 2}), {"last": x - 1})


def test_graph_is_that_of_torch(program: Any) -> None:
    ours, theirs = unlift(program), program.module(check_guards=False)
    assert describe(ours) == describe(theirs)
    assert ours.code == theirs.code
    assert ours.training == theirs.training
    names = [str(n.target) for n in ours.graph.find_nodes(op="get_attr")]
    assert "inner.0.weight" in names
    for name in names:
        found: list[Any] = [ours, theirs]
        for part in name.split("."):
            found = [getattr(one, part) for one in found]
        assert found[0] is found[1], name


def test_other_batch_sizes(program: Any) -> None:
    x = torch.randn(5, 4)
    found = unlift(program)(x, {"a": x + 1, "b": x}, last=x)
    assert found["y"].shape == (5, 4)
    assert torch.equal(found["z"][0], x + 1 - x)


def test_origins_are_the_nodes_of_the_program(program: Any) -> None:
    origins = {n.name: n.meta["from_node"][-1].name for n in unlift(program).graph.nodes if n.op == "call_function"}
    assert origins == {n.name: n.name for n in program.graph.nodes if n.op == "call_function"}


def test_program_is_left_as_it_is(program: Any) -> None:
    before = str(program.graph)
    for node in unlift(program).graph.nodes:
        node.meta["mark"] = True
    assert str(program.graph) == before
    assert not any("mark" in n.meta for n in program.graph.nodes)


def test_written_buffers() -> None:
    program = torch.export.export(Counter().eval(), (torch.ones(4),)).run_decompositions({})
    module = unlift(program)
    assert any("copy_" in str(n.target) for n in module.graph.nodes)
    assert module(torch.ones(4)).tolist() == [2.0] * 4
    assert module(torch.ones(4)).tolist() == [4.0] * 4
