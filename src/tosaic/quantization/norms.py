"""Folds batch norms into the convolutions before them, all at once.

`prepare_pt2e` does the same, with the same result, but looks for dead code in the whole graph after each of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn.utils.fusion import fuse_conv_bn_weights

from tosaic.fx.source import bind, overload
from tosaic.ops import registry
from tosaic.quantization.prepare import attribute, replace_result


def fold_norms(module: GraphModule) -> None:
    """Fold each norm that is the only reader of a convolution with weights of its own."""
    readers = Counter(node.target for node in module.graph.find_nodes(op="get_attr") for _ in node.users)
    for norm in list(module.graph.nodes):
        layer: Any = norm.args[0] if _has(norm, "folds_into_producer", True) else None
        if isinstance(layer, Node) and _has(layer, "quant", "weight") and len(layer.users) == 1:
            arguments = bind(layer)
            weight: Any = arguments["weight"]
            is_convolution = weight.meta["val"].dim() > 2 and "output_padding" not in arguments
            own = [p for p in (weight, arguments["bias"]) if p is not None]
            if is_convolution and all(p.op == "get_attr" and readers[p.target] == 1 for p in own):
                _fold(module, layer, norm)
    module.graph.eliminate_dead_code()


def _has(node: Node, field: str, value: object) -> bool:
    record = registry().find(overload(node)) if node.op == "call_function" else None
    return record is not None and getattr(record, field) == value


def _fold(module: GraphModule, layer: Node, norm: Node) -> None:
    def read(node: Node | None) -> Any:
        return None if node is None else attribute(module, node)

    own, other = bind(layer), bind(norm)
    statistics = (read(other["running_mean"]), read(other["running_var"]), other["eps"])
    weight, bias = fuse_conv_bn_weights(
        read(own["weight"]), read(own["bias"]), *statistics, read(other["weight"]), read(other["bias"])
    )
    _assign(module, own["weight"].target, weight)
    if own["bias"] is not None:
        _assign(module, own["bias"].target, bias)
    else:
        name = f"{own['weight'].target}_bias"
        _assign(module, name, bias)
        with module.graph.inserting_before(layer):
            new = module.graph.get_attr(name)
        new.meta["val"] = layer.meta["val"].fake_mode.from_tensor(bias, static_shapes=True)
        layer.args = (*layer.args[:2], new, *layer.args[3:])
    replace_result(module.graph, norm, layer)


def _assign(module: GraphModule, name: str, value: torch.nn.Parameter) -> None:
    owner, _, leaf = name.rpartition(".")
    module.get_submodule(owner).register_parameter(leaf, value)
