"""The inputs and outputs of a delegate: the same in the call, in the graph and in a tool's artifact."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from tosaic.backends.protocol import Artifact
from tosaic.core.errors import Unsupported
from tosaic.driver.partition import Partition
from tosaic.fx.source import DTYPES, Source
from tosaic.ir.graph import Graph, Type
from tosaic.lower.tensor import inverse
from tosaic.lower.walk import find_permutation


class Unread(Unsupported):
    """A partition with unused inputs; `nodes` are those that seem to read them."""

    def __init__(self, partition: Partition, inputs: Sequence[Node]) -> None:
        names = ", ".join(f"`{n.name}`" for n in inputs)
        super().__init__(f"its result does not depend on {names}, which nothing else on the NPU uses")
        self.nodes = [n for n in partition.nodes if any(arg in inputs for arg in n.all_input_nodes)]


def check_graph(source: Source, partition: Partition, graph: Graph, nhwc: frozenset[Node]) -> None:
    """Raise Unread for inputs that the graph does not need, Unsupported if it does not match the call."""
    for side, nodes, values in (
        ("inputs", partition.inputs, graph.inputs),
        ("outputs", partition.outputs, graph.outputs),
    ):
        called, made = [_type(source, n, nhwc) for n in nodes], [v.type for v in values]
        if called != made:
            have, want = (", ".join(map(str, types)) for types in (made, called))
            raise Unsupported(f"the graph has the {side} ({have}), but the call has ({want})")
    read = {v for op in graph.ops for v in op.inputs} | set(graph.outputs)
    unread = [n for n, value in zip(partition.inputs, graph.inputs, strict=True) if value not in read]
    if unread:
        raise Unread(partition, unread)


def compare_io(source: Source, partition: Partition, artifact: Artifact) -> str:
    """Compare number and sizes of an artifact's inputs and outputs with the call; return what differs."""
    if artifact.io is None:
        return ""
    for side, nodes, sizes in zip(
        ("inputs", "outputs"), (partition.inputs, partition.outputs), artifact.io, strict=True
    ):
        called = tuple(_measure(source, n) for n in nodes)
        if called != sizes:
            return f"its {side} are {_describe(sizes)}, but those of the call are {_describe(called)}"
    return ""


def _type(source: Source, node: Node, nhwc: frozenset[Node]) -> Type | None:
    val = source.val(node)
    if not isinstance(val, torch.Tensor):
        return None
    # The bits of uint8 numbers are int8 numbers in TOSA.
    dtype = DTYPES.get(torch.int8 if val.dtype is torch.uint8 else val.dtype)
    if dtype is None:
        return None
    shape, perm = tuple(int(d) for d in val.shape), find_permutation(source, node, nhwc)
    return Type(dtype, shape if perm is None else tuple(shape[i] for i in inverse(perm)))


def _measure(source: Source, node: Node) -> tuple[int, int]:
    tensor = source.tensor(node)
    return tensor.element_size(), tensor.numel()


def _describe(sizes: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{count} x {each} bytes" for each, count in sizes) or "none"
