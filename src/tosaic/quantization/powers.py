"""The power under a square root: where activations have 16 bits, a sum of two squares is not rounded at all.

Half of the bits of a power are those of its root: 16 bits of power leave 8 bits for small magnitudes. The NPU computes
squares and their sum in 32 bits, and reads the root from tables for parts of these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from tosaic.fx.source import overload
from tosaic.ops import registry
from tosaic.quantization.prepare import ANNOTATION_KEY
from tosaic.quantization.recurrent import LOOP


def keep_powers(graph: Graph, own: set[Node]) -> None:
    """Remove the annotation of each sum of two squares of 16 bits that only steep functions read."""
    for power in graph.nodes:
        squares = _find_squares(power, own)
        if not squares or not power.users or not all(user in own and _is_steep(user) for user in power.users):
            continue
        for node in (power, *squares):
            annotation: Any = node.meta[ANNOTATION_KEY]
            annotation.output_qspec = None
            for user in node.users:
                read: dict[Node, Any] = user.meta[ANNOTATION_KEY].input_qspec_map
                read.pop(node, None)


def _is_steep(node: Node) -> bool:
    record = registry().find(overload(node))
    return record is not None and record.is_steep


def _find_squares(node: Node, own: set[Node]) -> list[Node]:
    """Find the two squares that are added up in a node and read nowhere else; none if it is something else."""
    if (
        node not in own
        or LOOP in node.meta
        or overload(node) != "aten.add.Tensor"
        or node.kwargs
        or len(node.args) != 2
    ):
        return []
    squares = [a for a in node.args if isinstance(a, Node) and a in own and _is_square(a) and list(a.users) == [node]]
    return squares if len(squares) == 2 else []


def _is_square(node: Node) -> bool:
    """Tell whether a node multiplies a tensor of 16 bits by itself."""
    first: Any = node.args[0] if node.args else None
    second: Any = node.args[1] if len(node.args) > 1 else None
    name = overload(node)
    same = first is second if name == "aten.mul.Tensor" else name == "aten.pow.Tensor_Scalar" and second in (2, 2.0)
    read: Any = node.meta[ANNOTATION_KEY].input_qspec_map.get(first)
    return same and getattr(read, "dtype", None) is torch.int16
