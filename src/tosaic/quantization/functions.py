"""Functions of one tensor: elementwise operators that depend on it alone become one table, and are rounded once.

`x * (x + 3).clamp(0, 6) / 6` is such a function. With a range for each operator it is rounded four times, and `x + 3`
by the same amount everywhere: 3 is rarely a multiple of the scale. The next convolution adds up such a shift.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Graph, Node
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpecBase, SharedQuantizationSpec

from tosaic.fx.source import has_tag, overload
from tosaic.ops import registry
from tosaic.quantization.prepare import ANNOTATION_KEY, CONSTANT
from tosaic.quantization.recurrent import LOOP


def fuse_functions(graph: Graph, own: set[Node]) -> None:
    """Remove the annotation of every tensor that only functions of the same tensor read; change only `own` nodes."""
    candidates = [node for node in graph.nodes if node in own and _is_elementwise(node)]
    inner = {node for node in candidates if LOOP not in node.meta}
    functions = _find_functions(candidates, inner)
    while outer := [n for n in inner if n not in functions or not n.users or not functions.issuperset(n.users)]:
        inner.difference_update(outer)
        functions = _find_functions(candidates, inner)
    for node in inner:
        node.meta[ANNOTATION_KEY].output_qspec = None
    for node in functions:
        specs: dict[Node, QuantizationSpecBase | None] = node.meta[ANNOTATION_KEY].input_qspec_map
        # A table takes constants as they are.
        for producer in [producer for producer in specs if producer in inner or producer.meta[CONSTANT]]:
            del specs[producer]


def _is_elementwise(node: Node) -> bool:
    """Tell whether a call can be a table: between one tensor of 8 bits and another of the same shape."""
    record = registry().find(overload(node))
    pointwise = record.pointwise if record is not None else has_tag(node, torch.Tag.pointwise)
    value: object = node.meta.get("val")
    if not pointwise or not isinstance(value, torch.Tensor) or value.dtype is not torch.float32:
        return False
    numbers = all(n.meta["val"].numel() == 1 for n in node.all_input_nodes if n.meta[CONSTANT])
    return numbers and _has_8_bits(node.meta[ANNOTATION_KEY].output_qspec)


def _has_8_bits(spec: QuantizationSpecBase | None) -> bool:
    """Tell whether a tensor has 8 bits; one that is fused with its only reader has no spec."""
    while isinstance(spec, SharedQuantizationSpec):
        place = spec.edge_or_node
        node = place if isinstance(place, Node) else place[1]
        annotation: QuantizationAnnotation = node.meta[ANNOTATION_KEY]
        spec = annotation.output_qspec if isinstance(place, Node) else annotation.input_qspec_map[place[0]]
    return spec is None or getattr(spec, "dtype", None) is torch.int8


def _find_functions(candidates: list[Node], inner: set[Node]) -> set[Node]:
    """Find the calls that depend on one stored tensor alone, if those of `inner` are not stored."""
    bases: dict[Node, Node] = {}
    for node in candidates:
        found = set(_list_bases(node, inner, bases))
        base = found.pop() if len(found) == 1 else None
        if base is not None and base.meta["val"].shape == node.meta["val"].shape:
            bases[node] = base
    return set(bases)


def _list_bases(node: Node, inner: set[Node], bases: dict[Node, Node]) -> Iterator[Node | None]:
    """Yield the stored tensors behind the operands of a call; None for one that is neither stored nor a function."""
    for producer in node.all_input_nodes:
        if producer in inner and producer in bases:
            yield bases[producer]
        elif not producer.meta[CONSTANT]:
            read: QuantizationSpecBase | None = node.meta[ANNOTATION_KEY].input_qspec_map.get(producer)
            made: QuantizationAnnotation | None = producer.meta.get(ANNOTATION_KEY)
            stored = getattr(read, "dtype", None) is torch.int8 and (made is None or _has_8_bits(made.output_qspec))
            yield producer if stored else None
