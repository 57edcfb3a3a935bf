"""Precisions by name: of a model, of its modules, and of its inputs and outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph

from tosaic.core.errors import Invalid
from tosaic.driver.exported import export
from tosaic.quantization.precisions import PRECISIONS, Precision
from tosaic.quantization.quantizer import TosaQuantizer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)


def make_graph() -> Graph:
    return export(Net().eval(), (torch.randn(3, 4),)).graph


def find_settings(precision: Precision, io: str = "float") -> list[tuple[str, int] | None]:
    """Type of the activations and largest weight of each linear layer of the net; None if it is in float."""
    quantizer = precision.make_quantizer(make_graph(), io)
    model = quantizer.annotate(quantizer.transform_for_annotation(export(Net().eval(), (torch.randn(3, 4),)).module()))
    return [describe(n) for n in model.graph.nodes if "linear" in str(n.target)]


def describe(node: Any) -> tuple[str, int] | None:
    annotation = node.meta.get("quantization_annotation")
    if annotation is None:
        return None
    specs = {argument.op: spec for argument, spec in annotation.input_qspec_map.items() if argument in node.args[:2]}
    activation = annotation.input_qspec_map[node.args[0]]
    return str(activation.dtype).removeprefix("torch."), specs["get_attr"].quant_max


INT8, WIDE, NARROW = ("int8", 127), ("int16", 127), ("int8", 7)


@pytest.mark.parametrize(
    ("everywhere", "parts", "wanted"),
    [
        ("int8", {}, [INT8] * 4),
        ("a16w8", {}, [WIDE] * 4),
        ("a8w4", {}, [NARROW] * 4),
        ("int8", {"head": "a16w8"}, [INT8, INT8, INT8, WIDE]),
        ("int8", {"stem": "a8w4"}, [NARROW, INT8, INT8, INT8]),
        # A list of modules is never called, and yet it has modules inside.
        ("int8", {"blocks": "a8w4"}, [INT8, NARROW, NARROW, INT8]),
        ("int8", {"blocks.1": "a16w8"}, [INT8, INT8, WIDE, INT8]),
        ("int8", {"Linear": "a8w4"}, [NARROW] * 4),
        # A path is more specific than a class.
        ("int8", {"Linear": "a8w4", "blocks": "a16w8"}, [NARROW, WIDE, WIDE, NARROW]),
        ("a16w8", {"head": "float"}, [WIDE, WIDE, WIDE, None]),
        ("int8", {"Net": "a16w8", "head": "int8"}, [WIDE, WIDE, WIDE, INT8]),
    ],
)
def test_settings(everywhere: str, parts: dict[str, str], wanted: list[Any]) -> None:
    assert find_settings(Precision(everywhere, parts)) == wanted


@pytest.mark.parametrize(
    ("everywhere", "io", "wanted"),
    [
        ("int8", "float", None),
        ("int8", "int8", None),
        ("a8w4", "int8", None),
        ("a16w8", "int16", None),
        ("int8", "uint8", torch.uint8),
        ("int8", "int16", torch.int16),
        ("a16w8", "int8", torch.int8),
        ("a16w8", "uint8", torch.uint8),
    ],
)
def test_inputs_and_outputs_have_a_setting_if_their_type_differs(everywhere: str, io: str, wanted: Any) -> None:
    config = Precision(everywhere).make_quantizer(make_graph(), io).io_config
    assert (config and config.input_activation.dtype) == wanted


@pytest.mark.parametrize(
    ("name", "fix"),
    [("haed", "`head`"), ("block", "`blocks`"), ("linear", "`Linear`"), ("qqqqqqqq", "`model.named_modules\\(\\)`")],
)
def test_an_unknown_module_is_refused_with_near_matches(name: str, fix: str) -> None:
    with pytest.raises(Invalid, match=f"no module or class `{name}`") as caught:
        Precision("int8", {name: "a16w8"}).make_quantizer(make_graph(), "float")
    assert fix.replace("\\", "") in str(caught.value.fix)


def test_unknown_precisions() -> None:
    with pytest.raises(Invalid, match="precision is `int4`"):
        Precision("int4")
    with pytest.raises(Invalid, match="precision is `float`"):
        Precision("float")
    with pytest.raises(Invalid, match="the precision of `head` is `w4`"):
        Precision("int8", {"head": "w4"})


def test_descriptions() -> None:
    assert Precision().describe() == {}
    assert Precision("a8w4").describe() == {"precision": "a8w4"}
    assert Precision("int8", {"head": "a16w8", "stem": "float"}).describe() == {
        "precision": "int8",
        "precision_for": "head=a16w8, stem=float",
    }


def test_recipes_are_for_quantization_after_training() -> None:
    """The recipe of 4-bit weights is for training by default, as in ExecuTorch."""
    for make in PRECISIONS.values():
        assert "FakeQuantize" not in str(make().input_activation)
    assert isinstance(Precision().make_quantizer(make_graph(), "float"), TosaQuantizer)
