"""Casts in a graph of any dialect, and the types that follow from them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from tosaic.core.exir_compat import EdgeOpOverload, exir_ops
from tosaic.fx.torch_compat import detect_fake_mode

_LOCATION = ("stack_trace", "nn_module_stack")


def make_cast(graph: Graph, value: Node, dtype: torch.dtype) -> Node:
    """Make a cast in the dialect of the graph, at its insertion point."""
    edge = any(isinstance(n.target, EdgeOpOverload) for n in graph.nodes)
    ops: Any = exir_ops.edge
    target = ops.dim_order_ops._to_dim_order_copy.default if edge else torch.ops.aten._to_copy.default
    fake = value.meta["val"]
    kwargs: dict[str, Any] = {"dtype": dtype}
    if edge:
        kwargs["dim_order"] = list(fake.dim_order())
    made = graph.call_function(target, (value,), kwargs)
    made.meta = {key: value.meta[key] for key in _LOCATION if key in value.meta}
    made.meta["val"] = fake.to(dtype)
    return made


def retype(graph: Graph) -> None:
    """Compute the type of every call again, after inputs of some have changed from int64 to int32.

    A call that refuses int32 gets its inputs in int64, and so does an output of the graph.
    """
    old = {n: n.meta.get("val") for n in graph.nodes}
    mode = detect_fake_mode([v for v in old.values() if isinstance(v, torch.Tensor)])
    for node in list(graph.nodes):
        if node.op == "call_function" and mode is not None:
            with mode, torch.no_grad():
                try:
                    node.meta["val"] = _call(node)
                except (RuntimeError, TypeError, ValueError, IndexError):
                    _widen_inputs(node)
                    node.meta["val"] = _call(node)
        elif node.op == "output":
            for source in node.all_input_nodes:
                if _is(old.get(source), torch.int64) and _is(source.meta["val"], torch.int32):
                    with graph.inserting_before(node):
                        node.replace_input_with(source, make_cast(graph, source, torch.int64))


def _call(node: Node) -> Any:
    call: Any = node.target
    args: Any = map_arg(node.args, lambda n: n.meta["val"])
    kwargs: Any = map_arg(node.kwargs, lambda n: n.meta["val"])
    return call(*args, **kwargs)


def _widen_inputs(node: Node) -> None:
    for source in node.all_input_nodes:
        if _is(source.meta["val"], torch.int32):
            with node.graph.inserting_before(node):
                node.replace_input_with(source, make_cast(node.graph, source, torch.int64))


def _is(value: object, dtype: torch.dtype) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is dtype
