"""Models in float16, bfloat16 or float64: they are quantized as float32 models, with casts at inputs and outputs."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from tosaic.fx.source import torch_op
from tosaic.fx.torch_compat import detect_fake_mode
from tosaic.quantization.prepare import attribute

_OTHERS = (torch.float16, torch.bfloat16, torch.float64)


def convert_to_float32(module: GraphModule) -> None:
    """Compute everything in float32; inputs and outputs keep their types."""
    _convert_constants(module)
    for node in module.graph.nodes:
        if node.op == "call_function":
            arguments: Any = map_aggregate((node.args, node.kwargs), _use_float32)
            node.args, node.kwargs = arguments
    _cast_inputs(module)
    _cast_outputs(module)
    _infer_types(module)
    module.recompile()


def _is_other(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _OTHERS


def _use_float32(argument: Any) -> Any:
    return torch.float32 if isinstance(argument, torch.dtype) and argument in _OTHERS else argument


def _convert_constants(module: GraphModule) -> None:
    for node in module.graph.find_nodes(op="get_attr"):
        value, (path, _, name) = attribute(module, node), str(node.target).rpartition(".")
        if not _is_other(value):
            continue
        trained = isinstance(value, torch.nn.Parameter)
        new = torch.nn.Parameter(value.float(), value.requires_grad) if trained else value.float()
        setattr(module.get_submodule(path), name, new)


def _cast_inputs(module: GraphModule) -> None:
    for node in module.graph.find_nodes(op="placeholder"):
        if _is_other(node.meta.get("val")):
            users = list(node.users)
            with module.graph.inserting_after(node):
                cast = module.graph.call_function(torch.ops.aten.to.dtype, (node, torch.float32))
            for user in users:
                user.replace_input_with(node, cast)


def _cast_outputs(module: GraphModule) -> None:
    output = module.graph.output_node()
    for node in output.all_input_nodes:
        if node.op == "call_function" and _is_other(node.meta.get("val")):
            with module.graph.inserting_before(output):
                cast = module.graph.call_function(torch.ops.aten.to.dtype, (node, node.meta["val"].dtype))
            output.replace_input_with(node, cast)


def _infer_types(module: GraphModule) -> None:
    """Compute the type of every node again."""
    mode = detect_fake_mode([n.meta["val"] for n in module.graph.nodes if "val" in n.meta])
    assert mode is not None

    def val(node: Node) -> Any:
        return node.meta["val"]

    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(attribute(module, node), torch.Tensor):
            node.meta["val"] = mode.from_tensor(attribute(module, node), static_shapes=True)
        elif node.op == "call_function":
            with mode, torch.no_grad():
                node.meta["val"] = torch_op(node)(*map_arg(node.args, val), **map_arg(node.kwargs, val))
