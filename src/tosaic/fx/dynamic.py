"""Dynamic shapes, which cannot be compiled for an NPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from tosaic.core.errors import Unsupported
from tosaic.fx.torch_compat import pytree


def has_fixed_shape(value: Any) -> bool:
    """Tell whether every tensor in a node's result has a size in every dimension."""
    tensors = [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return not any(isinstance(size, torch.SymInt) for x in tensors for size in x.shape)


def find_dynamic(node: Node) -> Unsupported | None:
    """Find the reason against a node with a tensor of dynamic shape as input or result."""
    for one in (*node.all_input_nodes, node):
        value = one.meta.get("val")
        if has_fixed_shape(value):
            continue
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        dims = ", ".join(str(d) for d, size in enumerate(shape) if isinstance(size, torch.SymInt))
        what = f"dimension {dims} of `{one.name}`" if dims else f"the shape of `{one.name}`"
        return Unsupported(
            f"{what} is dynamic, but an NPU command stream has fixed shapes",
            "export without dynamic_shapes, once per shape",
        )
    return None
