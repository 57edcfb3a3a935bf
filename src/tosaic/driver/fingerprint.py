"""A key of everything that the lowering of a partition depends on: equal keys, equal .tosa."""

from __future__ import annotations

import torch
from torch.fx import Node

from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Unsupported
from tosaic.driver.partition import Partition
from tosaic.fx.arrays import to_numpy
from tosaic.fx.source import Source, bind, overload, torch_op
from tosaic.lower.arguments import is_sequence
from tosaic.lower.steps import quantized_to
from tosaic.tools.cache import make_key


def fingerprint(source: Source, partition: Partition, spec: ArmCompileSpec) -> str:
    """Hash a partition for a compile spec. The names of nodes do not count, nor the dialect of the graph.

    Raises Unsupported for a partition that cannot be lowered anyway.
    """
    labels: dict[Node, str] = {n: f"input {i}" for i, n in enumerate(partition.inputs)}
    labels |= {n: f"node {i}" for i, n in enumerate(partition.nodes)}
    parts: list[bytes | str] = [str(spec.target)]

    def label(value: object) -> object:
        """Replace nodes by labels; a constant is its data, since exir may copy it."""
        if is_sequence(value):
            return [label(v) for v in value]
        if not isinstance(value, Node):
            return repr(value)
        if value not in labels and value not in source.constants:
            raise Unsupported(f"`{value.name}` is neither an input of the partition nor a constant")
        if value not in labels:
            labels[value] = make_key((_read_bytes(source.constants[value]),))
        return labels[value], _describe(source.val(value)), source.orders.get(value)

    for node in (*partition.inputs, *partition.outputs):
        parts.append(str(label(node)))
    for node in partition.nodes:
        arguments = bind(node) if hasattr(torch_op(node), "_schema") else {"args": node.args}
        bound = {name: label(value) for name, value in arguments.items()}
        # The users of a node count too: whether it has any, and what its result is quantized to.
        parts.append(str((overload(node), bound, label(node), bool(node.users), quantized_to(node))))
    return make_key(parts)


def _describe(fake: object) -> object:
    if is_sequence(fake):
        return [_describe(one) for one in fake]
    return (fake.dtype, tuple(fake.shape)) if isinstance(fake, torch.Tensor) else repr(fake)


def _read_bytes(tensor: torch.Tensor) -> bytes:
    return to_numpy(tensor.detach().contiguous().reshape(-1).view(torch.uint8)).tobytes()
