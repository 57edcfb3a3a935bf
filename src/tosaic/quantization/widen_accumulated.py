"""Sums of two products: the operands of such a sum get 16 bits, so that only the sum itself is rounded to 8.

Recurrent cells consist of such sums. There the rounding errors of one step are the input of the next. A sum that only
steep functions read gets 16 bits too: the square root of a power of 8 bits has steps of a 16th near zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node
from torchao.quantization.pt2e import FakeQuantizeBase, MinMaxObserver
from torchao.quantization.pt2e.quantizer import QuantizationSpec

from tosaic.fx.source import input_node, overload
from tosaic.lower.registry import Record
from tosaic.ops import registry
from tosaic.quantization.prepare import ANNOTATION_KEY, CONSTANT

#: Marks a sum of products that the next step continues with: its previous factor comes second.
STATE = "tosaic_state"


def widen_sums(graph: Graph, *, stores_int16: bool) -> None:
    """Widen the products in an annotated graph to 16 bits, if only sums of products read them.

    A product is added before it is stored. What a steep function reads is stored, which not every target can.
    """
    steep = {n for n in graph.nodes if stores_int16 and _is_sum(n) and _is_read_by_steep(n)}
    sums = {n: found for n in graph.nodes if _is_sum(n) and (found := _find_products(n, functions=n in steep))}
    while narrow := [n for n, products in sums.items() if not all(_is_read_by(sums, p) for p in products)]:
        for node in narrow:
            del sums[node]
    for product in {p for products in sums.values() for p in products} | steep & sums.keys():
        _set_wide(product, _list_edges(product))
    # The last state may be read by its tanh alone, and is then not stored.
    for state in (n for n in sums if STATE in n.meta and n.meta[ANNOTATION_KEY].output_qspec is not None):
        _set_wide(state, [(state, user) for user in state.users if _reads_int16(user)])
        kept = sums[state][0]
        before = input_node(kept, 1)
        if STATE not in before.meta:
            kept.meta[ANNOTATION_KEY].input_qspec_map[before] = _widen(
                kept.meta[ANNOTATION_KEY].input_qspec_map[before]
            )


def _set_wide(node: Node, edges: Iterable[tuple[Node, Node]]) -> None:
    annotation = node.meta[ANNOTATION_KEY]
    annotation.output_qspec = _widen(annotation.output_qspec)
    for read, user in edges:
        user.meta[ANNOTATION_KEY].input_qspec_map[read] = annotation.output_qspec


def _widen(spec: QuantizationSpec) -> QuantizationSpec:
    """Widen to symmetric 16 bits. These need no search for outliers, and a histogram is too coarse for one."""
    make: Any = spec.observer_or_fake_quant_ctr
    kind = make
    while not isinstance(kind, type):  # with_args wraps it
        kind = kind.p.func if hasattr(kind, "p") else kind.func
    if not issubclass(kind, FakeQuantizeBase):
        make = MinMaxObserver
    return replace(
        spec,
        dtype=torch.int16,
        observer_or_fake_quant_ctr=make,
        quant_min=-(2**15),
        quant_max=2**15 - 1,
        qscheme=torch.per_tensor_symmetric,
    )


def _find_record(node: Node) -> Record | None:
    return registry().find(overload(node)) if node.op == "call_function" and ANNOTATION_KEY in node.meta else None


def _is_sum(node: Node) -> bool:
    record = _find_record(node)
    return record is not None and record.is_sum


def _reads_int16(node: Node) -> bool:
    record = _find_record(node)
    return record is not None and record.reads_int16


def _moves(node: Node) -> bool:
    """Tell whether a node passes on numbers of one tensor, as `select` does for one step of many."""
    record = _find_record(node)
    plain = len(node.all_input_nodes) == 1 and isinstance(node.meta.get("val"), torch.Tensor)
    return record is not None and record.moves and record.quant == "share" and plain


def _find_products(total: Node, *, functions: bool) -> list[Node]:
    """Find the products behind both operands of a sum; none if one of them is something else."""
    found = [_find_product(a, functions=functions) if isinstance(a, Node) else None for a in total.args[:2]]
    return [p for p in found if p is not None] if None not in found else []


def _find_product(node: Node, *, functions: bool) -> Node | None:
    """Find the product that a value is, or with `functions` a function of one tensor, such as a square."""
    while _moves(node):
        node = node.all_input_nodes[0]
    record = _find_record(node)
    if record is None or not (record.is_product or (functions and record.pointwise)):
        return None
    annotation = node.meta[ANNOTATION_KEY]
    # A square, or a product with one constant number, is a table.
    factors = [n for n in node.all_input_nodes[:2] if n in annotation.input_qspec_map]
    fixed = [n for n in factors if n.meta[CONSTANT] and n.meta["val"].numel() == 1]
    is_table = len(factors) == 1 or bool(fixed)
    return node if factors and is_table <= functions and _has_8_bits(node) else None


def _is_read_by_steep(node: Node) -> bool:
    """Tell whether all that reads a value, after it was moved or not, are steep functions."""
    records = [_find_record(user) for _, user in _list_edges(node) if not _moves(user)]
    return _has_8_bits(node) and bool(records) and all(record is not None and record.is_steep for record in records)


def _has_8_bits(node: Node) -> bool:
    return getattr(node.meta[ANNOTATION_KEY].output_qspec, "dtype", None) is torch.int8


def _list_edges(node: Node) -> Iterator[tuple[Node, Node]]:
    """Yield pairs of what is read and its reader, from a product on to its sums."""
    for user in node.users:
        yield node, user
        if _moves(user):
            yield from _list_edges(user)


def _is_read_by(sums: dict[Node, list[Node]], product: Node) -> bool:
    return all(user in sums or _moves(user) for _, user in _list_edges(product))
