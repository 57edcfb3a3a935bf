"""The power under a square root: where activations have 16 bits, a sum of squares is not rounded at all.

Half of the bits of a power are those of its root: 16 bits of power leave 8 bits for small magnitudes. The NPU computes
squares and their sum in 32 bits, and reads the root from tables for parts of these. Norms of vectors, deviations and
the magnitudes of a spectrum are such roots.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from tosaic.fx.source import bind, overload
from tosaic.lower.registry import NormStep
from tosaic.ops import registry
from tosaic.quantization.prepare import ANNOTATION_KEY, CONSTANT, attribute
from tosaic.quantization.recurrent import LOOP


def keep_powers(module: torch.fx.GraphModule, own: set[Node]) -> None:
    """Remove the annotation of each sum of squares of 16 bits that only a root reads, and of the squares."""
    graph: Graph = module.graph
    for root in graph.nodes:
        given = root.args[0] if root in own and _is(root, "rooted") and root.args else None
        inner = _find_power(module, given, own) if isinstance(given, Node) else []
        readers = {user for node in inner for user in node.users}
        if inner and all(user in inner or (user in own and _is(user, "rooted")) for user in readers):
            for node in inner:
                _forget(node)


def _forget(node: Node) -> None:
    """Remove the annotation of a result, and of what a number is added to."""
    node.meta[ANNOTATION_KEY].output_qspec = None
    for user in node.users:
        read: dict[Node, Any] = user.meta[ANNOTATION_KEY].input_qspec_map
        read.pop(node, None)


def _is(node: Node, step: NormStep) -> bool:
    record = registry().find(overload(node))
    return record is not None and record.in_norm == step


def _find_power(module: torch.fx.GraphModule, node: Node, own: set[Node]) -> list[Node]:
    """Find the calls that make a sum of squares, the last one first; none if a node is something else."""
    if node not in own or LOOP in node.meta:
        return []
    if _is(node, "summed"):
        square: Any = node.args[0]
        return [node, square] if _is_square(square, own) and bind(node).get("dtype") is None else []
    if not _is(node, "added") or len(node.args) != 2 or node.kwargs:
        return []
    first, second = node.args
    if not isinstance(first, Node) or not isinstance(second, Node):
        return []
    if _is_square(first, own) and _is_square(second, own):
        return [node, first, second]
    # A number that keeps the root away from zero.
    if second.meta[CONSTANT] and second.meta["val"].numel() == 1 and float(attribute(module, second)) >= 0.0:
        inner = _find_power(module, first, own)
        return [node, *inner] if inner else []
    return []


def _is_square(node: Node, own: set[Node]) -> bool:
    """Tell whether a node multiplies a tensor of 16 bits by itself."""
    if node not in own:
        return False
    first: Any = node.args[0] if node.args else None
    second: Any = node.args[1] if len(node.args) > 1 else None
    same = (_is(node, "multiplied") and first is second) or (
        _is(node, "raised") and type(second) in (int, float) and second == 2
    )
    read: Any = node.meta[ANNOTATION_KEY].input_qspec_map.get(first)
    return same and getattr(read, "dtype", None) is torch.int16
