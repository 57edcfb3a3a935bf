"""Folds batch norms into the layers before them, all at once.

`prepare_pt2e` does the same, with the same result, but looks for dead code in the whole graph after each of them. It
also folds the norm of a layer whose result has other readers, which then see what is normalized: here it stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

from tosaic.fx.source import bind, overload
from tosaic.ops import registry
from tosaic.quantization.prepare import attribute, replace_result


def fold_norms(module: GraphModule) -> None:
    """Fold each norm that is the only reader of a layer; layers with the same weights need the same norm."""
    readers = Counter(node.target for node in module.graph.find_nodes(op="get_attr") for _ in node.users)
    groups: dict[object, list[tuple[Node, Node]]] = {}
    for layer, norm in _find_pairs(module):
        groups.setdefault(bind(layer)["weight"].target, []).append((layer, norm))
    for pairs in groups.values():
        arguments = bind(pairs[0][0])
        own = [p for p in (arguments["weight"], arguments["bias"]) if p is not None]
        alone = all(p.op == "get_attr" and readers[p.target] == len(pairs) for p in own)
        if alone and len({_describe(*pair) for pair in pairs}) == 1:
            _fold(module, pairs)
    module.graph.eliminate_dead_code()


def _find_pairs(module: GraphModule) -> Iterator[tuple[Node, Node]]:
    """Yield layers, each with the norm that reads it."""
    for norm in module.graph.nodes:
        layer = norm.args[0] if _has(norm, "folds_into_producer", True) else None
        if not isinstance(layer, Node) or not _has(layer, "quant", "weight") or len(layer.users) != 1:
            continue
        # The channels of a norm are dimension 1, and those of a linear layer are the last one.
        if bind(layer)["weight"].meta["val"].dim() > 2 or layer.meta["val"].dim() == 2:
            yield layer, norm


def _describe(layer: Node, norm: Node) -> tuple[object, ...]:
    """Describe the parameters that a layer has after its norm is folded."""
    kept = (bind(layer)["bias"], *(bind(norm)[name] for name in ("weight", "bias", "running_mean", "running_var")))
    return *(None if node is None else node.target for node in kept), bind(norm)["eps"]


def _has(node: Node, field: str, value: object) -> bool:
    record = registry().find(overload(node))
    return record is not None and getattr(record, field) == value


def _fold(module: GraphModule, pairs: list[tuple[Node, Node]]) -> None:
    def read(node: Node | None) -> Any:
        return None if node is None else attribute(module, node)

    own, other = bind(pairs[0][0]), bind(pairs[0][1])
    parameters = (read(own["weight"]), read(own["bias"]), read(other["running_mean"]), read(other["running_var"]))
    scaling = (other["eps"], read(other["weight"]), read(other["bias"]))
    if own["weight"].meta["val"].dim() == 2:
        weight, bias = fuse_linear_bn_weights(*parameters, *scaling)
    else:
        transposed = own.get("transposed", "output_padding" in own)
        weight, bias = fuse_conv_bn_weights(*parameters, *scaling, transpose=transposed)
    _assign(module, own["weight"].target, weight)
    name = f"{own['weight'].target}_bias" if own["bias"] is None else own["bias"].target
    _assign(module, name, bias)
    for layer, norm in pairs:
        if own["bias"] is None:
            with module.graph.inserting_before(layer):
                new = module.graph.get_attr(name)
            new.meta["val"] = _describe_bias(bias, layer, bind(norm)["running_mean"])
            layer.args = (*layer.args[:2], new, *layer.args[3:])
        replace_result(module.graph, norm, layer)


def _describe_bias(bias: torch.Tensor, layer: Node, mean: Node) -> torch.Tensor:
    """Return the example value of a new bias: that of the norm's mean, if it has the same type."""
    like = mean.meta["val"]
    if (like.shape, like.dtype) == (bias.shape, bias.dtype):
        return like
    return layer.meta["val"].fake_mode.from_tensor(bias, static_shapes=True)


def _assign(module: GraphModule, name: str, value: torch.nn.Parameter) -> None:
    owner, _, leaf = name.rpartition(".")
    module.get_submodule(owner).register_parameter(leaf, value)
