"""Memory order of a tensor's dimensions where ExecuTorch plans it, as for channels last."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir import tensor as planned
from torch.export import ExportedProgram
from torch.fx import Graph

from tosaic.core.errors import Invalid
from tosaic.fx.arrays import find_memory_order
from tosaic.fx.dynamic import has_fixed_shape
from tosaic.fx.source import Orders, input_node


def find_orders(graph: Graph) -> Orders:
    """Return the order from outer to inner of every tensor that is not in the order of its dimensions."""
    orders: Orders = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not has_fixed_shape(value) or 0 in value.stride():
            continue
        # The same order that exir's memory plan uses, also where sizes of 1 leave a choice.
        order = _find_order(value.stride())
        if order != tuple(range(value.dim())):
            orders[node] = order
    return orders


def _find_order(strides: tuple[int, ...]) -> tuple[int, ...]:
    find: Any = planned.dim_order_from_stride
    return tuple(int(d) for d in find(strides))


def permute_strided(program: ExportedProgram) -> bool:
    """Let `as_strided` read a tensor whose dimensions are in the order of its memory; tell if anything was changed.

    In exir, results are stored in the order of their dimensions, also those of a transpose.
    """
    changed = False
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default):
        read = input_node(node)
        value = read.meta["val"]
        order = find_memory_order(value)
        if order is None or order == tuple(range(value.dim())):
            continue
        with program.graph.inserting_before(node):
            permuted = program.graph.call_function(torch.ops.aten.permute.default, (read, list(order)))
        permuted.meta = {**node.meta, "val": value.permute(order)}
        node.replace_input_with(read, permuted)
        changed = True
    return changed


def refuse_expanded(program: ExportedProgram) -> None:
    """Raise for expanded tensors, which repeat an element in memory: ExecuTorch rejects them without naming one."""
    names = set(program.graph_signature.user_inputs)
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name in names and isinstance(value, torch.Tensor) and has_fixed_shape(value) and 0 in value.stride():
            dims = ", ".join(str(d) for d, stride in enumerate(value.stride()) if stride == 0)
            raise Invalid(
                f"the example for input `{node.name}` is an expanded tensor",
                why=f"its dimension {dims} repeats the same memory (stride 0), which ExecuTorch does not support",
                fix="export with `x.contiguous()` instead of `x`",
            )
