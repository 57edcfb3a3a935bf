"""Keeps mutable buffers quantized between calls: caches, the past of a stream, the state of a filter.

A model reads such a buffer, and copies what it has computed into it at the end:

    past -> quantize -> ... -> dequantize -> copy_(past)

With one range for what is read and what is written, the buffer itself can hold the integers:

    past (int8) -> ... -> copy_(past)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch.fx import Graph, GraphModule, Node
from torchao.quantization.pt2e.quantizer import QuantizationSpec, QuantizationSpecBase, SharedQuantizationSpec

from tosaic.fx.source import DEQUANTIZE, QUANTIZE, input_node, overload, torch_op
from tosaic.quantization.prepare import ANNOTATION_KEY, attribute

#: what has a range: the result of a node, or what a node reads of another one
_Place: TypeAlias = "Node | tuple[Node, Node]"
_COPY = "aten.copy_.default"


def share_buffers(graph: Graph) -> None:
    """Let the read and the written values of each mutable buffer have one range."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    for buffer, copy in _find_writes(graph):
        value = input_node(copy, 1)
        reads = [(buffer, user) for user in buffer.users if user is not copy]
        # A tensor can only share the range of an earlier one.
        roots = sorted({_find_root(place) for place in (*reads, value)}, key=lambda place: _locate(place, order))
        found = [spec for root in roots if isinstance(spec := _get_spec(root), QuantizationSpec)]
        if len(found) == len(roots) and all(_get_type(spec) == _get_type(found[0]) for spec in found):
            for root in roots[1:]:
                _set_spec(root, SharedQuantizationSpec(roots[0]))


def quantize_buffers(module: GraphModule) -> None:
    """Store the integers of each mutable buffer that is always quantized when read and dequantized when written."""
    changed = False
    for buffer, copy in list(_find_writes(module.graph)):
        value = input_node(copy, 1)
        readers = [user for user in buffer.users if user is not copy]
        calls = [*readers, value]
        if not readers or overload(value) != DEQUANTIZE or any(overload(node) != QUANTIZE for node in readers):
            continue
        if len({node.args[1:] for node in calls}) > 1:
            continue
        stored = torch_op(readers[0])(attribute(module, buffer), *readers[0].args[1:])
        _assign(module, str(buffer.target), stored)
        buffer.meta["val"] = readers[0].meta.get("val", stored)
        for node in readers:
            node.replace_all_uses_with(buffer)
            module.graph.erase_node(node)
        copy.args = (buffer, input_node(value))
        changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def _find_writes(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield each buffer that is written once, and as a whole, with the call that writes it."""
    for buffer in graph.find_nodes(op="get_attr"):
        copies = [user for user in buffer.users if overload(user) == _COPY and user.args[0] is buffer]
        if len(copies) == 1 and isinstance(copies[0].args[1], Node):
            yield buffer, copies[0]


def _get_spec(place: _Place) -> QuantizationSpecBase | None:
    node = place if isinstance(place, Node) else place[1]
    annotation = node.meta.get(ANNOTATION_KEY)
    if annotation is None:
        return None
    return annotation.output_qspec if isinstance(place, Node) else annotation.input_qspec_map.get(place[0])


def _set_spec(place: _Place, spec: QuantizationSpecBase) -> None:
    if isinstance(place, Node):
        place.meta[ANNOTATION_KEY].output_qspec = spec
    else:
        place[1].meta[ANNOTATION_KEY].input_qspec_map[place[0]] = spec


def _find_root(place: _Place) -> _Place:
    """Find the place whose range a place shares; it is its own root if it shares none."""
    while isinstance(spec := _get_spec(place), SharedQuantizationSpec):
        place = spec.edge_or_node
    return place


def _locate(place: _Place, order: dict[Node, int]) -> tuple[int, bool]:
    """Locate a place in the order of a graph: what a node reads comes before its result."""
    is_result = isinstance(place, Node)
    return order[place if is_result else place[1]], is_result


def _get_type(spec: QuantizationSpec) -> tuple[object, ...]:
    return spec.dtype, spec.quant_min, spec.quant_max, spec.qscheme


def _assign(module: GraphModule, name: str, value: torch.Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    holder = module.get_submodule(owner)
    # A parameter that the model writes to cannot become integers.
    delattr(holder, leaf)
    holder.register_buffer(leaf, value)
