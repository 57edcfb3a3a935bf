"""How closely a program can match torch at each output, from the operators before it."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from tosaic.formats.sidecar import Trait
from tosaic.fx.source import DEQUANTIZE, QDQ, Source, bind, overload
from tosaic.fx.torch_compat import pytree
from tosaic.ops import registry

#: from the most bits to the fewest
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def find_traits(source: Source) -> tuple[Trait, ...]:
    """Find the traits of every output, in the order in which the program returns them."""
    known: dict[Node, Trait] = {}
    for node in source.graph.nodes:
        if node.op in ("placeholder", "get_attr", "call_function"):
            known[node] = _find_trait(source, node, known)
    outputs = [n for n in pytree.tree_leaves(source.returned) if isinstance(n, Node)]
    return tuple(_add_qparams(source, node, known[node]) for node in outputs)


def _find_trait(source: Source, node: Node, known: dict[Node, Trait]) -> Trait:
    """Find the traits of a node's result, from its operator and its arguments."""
    before = [known[n] for n in node.all_input_nodes]
    dtypes = [x.dtype for x in pytree.tree_leaves(source.val(node)) if isinstance(x, torch.Tensor)]
    floats = [d for d in dtypes if d in _FLOATS]
    call = node.op == "call_function"
    quantized = call and overload(node) in QDQ
    # An operator of unknown type may do anything.
    computes = call and not quantized and not _moves(node) and (bool(floats) or not dtypes)
    narrow = [_FLOATS.index(d) for d in floats] + [_FLOATS.index(getattr(torch, t.dtype)) for t in before if t.dtype]
    return Trait(
        rounded=computes or any(t.rounded for t in before),
        quantized=quantized or any(t.quantized for t in before),
        dtype=str(_FLOATS[max(narrow)]).removeprefix("torch.") if narrow else "",
    )


def _moves(node: Node) -> bool:
    record = registry().find(overload(node))
    return overload(node) == "getitem" or (record is not None and record.moves)


def _add_qparams(source: Source, node: Node, trait: Trait) -> Trait:
    """Add the qparams of the dequantize that makes an output, looking through data movement."""
    while node.op == "call_function" and getattr(source.val(node), "dtype", None) in _FLOATS:
        if overload(node) == DEQUANTIZE:
            a = bind(node)
            scale: Any = a["scale"]
            dtype = str(a["dtype"]).removeprefix("torch.")
            return trait if isinstance(scale, Node) else Trait(trait.rounded, True, float(scale), dtype)
        if not _moves(node) or len(node.all_input_nodes) != 1:
            break
        node = node.all_input_nodes[0]
    return trait
