"""What goes into a delegate and what comes out: the same in the call, in the graph and in what a tool made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch.fx import Node

from tosaic.core.errors import Unsupported
from tosaic.driver.partition import Region
from tosaic.formats import vgf as reader
from tosaic.fx.source import DTYPES, Source
from tosaic.ir.graph import Graph, Type
from tosaic.lower.tensor import inverse
from tosaic.lower.walk import find_permutation
from tosaic.tools.vela import Compiled

#: bytes per element and number of elements
Size: TypeAlias = tuple[int, int]


class Unread(Unsupported):
    """A region has inputs that nothing in it reads; `nodes` are those that seem to."""

    def __init__(self, region: Region, inputs: Sequence[Node]) -> None:
        names = ", ".join(f"`{n.name}`" for n in inputs)
        super().__init__(f"its result does not depend on {names}, which nothing else on the NPU reads")
        self.nodes = [n for n in region.nodes if any(arg in inputs for arg in n.all_input_nodes)]


def check_graph(source: Source, region: Region, graph: Graph, nhwc: frozenset[Node]) -> None:
    """Raise Unread for inputs that the graph does not need, Unsupported where it is not what will be called."""
    for side, nodes, values in (("inputs", region.inputs, graph.inputs), ("outputs", region.outputs, graph.outputs)):
        called, made = [_type(source, n, nhwc) for n in nodes], [v.type for v in values]
        if called != made:
            have, want = (", ".join(map(str, types)) for types in (made, called))
            raise Unsupported(f"the graph has the {side} ({have}), but the call has ({want})")
    read = {v for op in graph.ops for v in op.inputs} | set(graph.outputs)
    unread = [n for n, value in zip(region.inputs, graph.inputs, strict=True) if value not in read]
    if unread:
        raise Unread(region, unread)


def check_blob(source: Source, region: Region, blob: bytes, compiled: Compiled | None, is_vgf: bool) -> None:
    """Compare number and sizes of a blob's inputs and outputs with the call. A TOSA blob is the graph itself."""
    if compiled is not None:
        made = [[(io.elem_size, math.prod(io.shape)) for io in side] for side in (compiled.inputs, compiled.outputs)]
    elif is_vgf:
        vgf = reader.read(blob)
        made = [[_vgf_size(vgf.resources[i]) for i in side] for side in (vgf.inputs, vgf.outputs)]
    else:
        return
    for side, nodes, sizes in zip(("inputs", "outputs"), (region.inputs, region.outputs), made, strict=True):
        called = [_size(source, n) for n in nodes]
        if called != sizes:
            raise Unsupported(
                f"the compiled delegate has {side} of {_describe(sizes)}, but the call has {_describe(called)}"
            )


def _type(source: Source, node: Node, nhwc: frozenset[Node]) -> Type | None:
    val = source.val(node)
    if not isinstance(val, torch.Tensor) or val.dtype not in DTYPES:
        return None
    shape, perm = tuple(int(d) for d in val.shape), find_permutation(source, node, nhwc)
    return Type(DTYPES[val.dtype], shape if perm is None else tuple(shape[i] for i in inverse(perm)))


def _size(source: Source, node: Node) -> Size:
    tensor = source.tensor(node)
    return tensor.element_size(), tensor.numel()


def _vgf_size(resource: reader.Resource) -> Size:
    bytes_each = reader.FORMATS[resource.vk_format][1] if resource.vk_format in reader.FORMATS else 0
    return bytes_each, math.prod(resource.shape)


def _describe(sizes: Sequence[Size]) -> str:
    return ", ".join(f"{count} x {each} bytes" for each, count in sizes) or "none"
