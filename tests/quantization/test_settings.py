"""Which configuration a node gets: settings for single nodes, modules, other quantizers, properties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, Quantizer

from tosaic.core.errors import Invalid
from tosaic.fx.source import overload
from tosaic.quantization.quantizer import TosaQuantizer, is_annotated
from tosaic.quantization.recipes import get_symmetric_quantization_config
from tosaic.quantizer import EthosUQuantizer, TOSAQuantizer
from tosaic.tosa import TosaCompileSpec

CONFIG = get_symmetric_quantization_config()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.sigmoid(self.second(torch.tanh(self.first(x)))), -1)


def make() -> TOSAQuantizer:
    return TOSAQuantizer("TOSA-1.0+INT").set_global(CONFIG)


def find_floats(quantizer: Quantizer) -> set[str]:
    """Annotate a net and find the operators that stay in float: neither inputs nor output are to be observed."""
    model = torch.export.export(Net().eval(), (torch.randn(3, 4),)).module()
    annotated = quantizer.annotate(quantizer.transform_for_annotation(model))
    return {overload(n) for n in annotated.graph.nodes if n.op == "call_function" and not _is_observed(n)}


def _is_observed(node: Node) -> bool:
    annotation = node.meta.get("quantization_annotation")
    return annotation is not None and bool(annotation.input_qspec_map or annotation.output_qspec)


def test_everything_is_quantized() -> None:
    assert find_floats(make()) == set()


def test_an_operator_in_float() -> None:
    assert find_floats(make().set_node_target(torch.ops.aten.tanh.default, None)) == {"aten.tanh.default"}


def test_a_decomposed_operator_in_float() -> None:
    """The operators that a softmax would be decomposed into have its setting."""
    assert find_floats(make().set_node_target(torch.ops.aten.softmax.int, None)) == {"aten.softmax.int"}


def test_a_node_in_float() -> None:
    assert find_floats(make().set_node_name("linear_1", None)) == {"aten.linear.default"}


def test_one_operator_quantized() -> None:
    quantizer = TOSAQuantizer("TOSA-1.0+INT").set_node_target(torch.ops.aten.tanh.default, CONFIG)
    assert "aten.tanh.default" not in find_floats(quantizer)
    assert "aten.sigmoid.default" in find_floats(quantizer)


def test_the_last_setting_wins() -> None:
    quantizer = make().set_node_target(torch.ops.aten.tanh.default, None).set_node_name("tanh", CONFIG)
    assert find_floats(quantizer) == set()


def test_a_finder() -> None:
    class Finder:
        def find_nodes(self, model: GraphModule) -> Iterator[Node]:
            return (n for n in model.graph.nodes if "sigmoid" in n.name)

    assert find_floats(make().set_node_finder(None, Finder())) == {"aten.sigmoid.default"}


def test_another_quantizer_comes_first() -> None:
    class LeaveTanh(Quantizer):
        def annotate(self, model: GraphModule) -> GraphModule:
            for node in model.graph.nodes:
                if node.target is torch.ops.aten.tanh.default:
                    node.meta["quantization_annotation"] = QuantizationAnnotation({}, None, _annotated=True)
                    assert is_annotated(node)
            return model

        def validate(self, model: GraphModule) -> None: ...

    assert find_floats(make().add_quantizer(LeaveTanh())) == {"aten.tanh.default"}


def test_properties_read_and_write() -> None:
    quantizer: Any = make()
    assert quantizer.global_config is CONFIG and quantizer.io_config is None
    quantizer.global_config, quantizer.io_config = None, CONFIG
    quantizer.module_name_config = {"first": CONFIG}
    quantizer.module_type_config = {torch.nn.Linear: CONFIG}
    assert (quantizer.global_config, quantizer.io_config) == (None, CONFIG)
    assert quantizer.module_name_config == {"first": CONFIG}
    assert quantizer.module_type_config == {torch.nn.Linear: CONFIG}
    with pytest.raises(Invalid, match="not a quantization configuration"):
        quantizer.module_name_config = {"first": 3}


@pytest.mark.parametrize("composable", [True, False])
def test_specs_of_any_target(composable: bool) -> None:
    from tosaic.ethosu import EthosUCompileSpec

    spec = EthosUCompileSpec("ethos-u55-128")
    assert EthosUQuantizer(spec, use_composable_quantizer=composable).tosa_spec.is_U55_subset
    assert TOSAQuantizer(spec, composable).compile_spec is spec
    assert TOSAQuantizer(spec.to_list()).compile_spec == spec
    assert isinstance(TOSAQuantizer("TOSA-1.0+INT"), TosaQuantizer)
    with pytest.raises(Invalid, match="no integer profile"):
        TOSAQuantizer(TosaCompileSpec("TOSA-1.0+FP"))
