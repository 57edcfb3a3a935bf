"""Common subexpression elimination: the same op on the same inputs is computed once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from tosaic.ir.graph import DType, Graph, Op, Value
from tosaic.passes.replace import with_inputs

_UNIQUE = frozenset(
    {"VARIABLE", "VARIABLE_READ", "VARIABLE_WRITE", "COND_IF", "WHILE_LOOP", "CUSTOM", "CONST", "CONST_SHAPE"}
)


def merge_equal_ops(graph: Graph) -> Graph:
    """Redirect later users to the first of several equal ops.

    before: %1 = TABLE(%0); %2 = TABLE(%0); %3 = ADD(%1, %2)
    after:  %1 = TABLE(%0); %3 = ADD(%1, %1)
    """
    first: dict[Hashable, Op] = {}
    same: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        inputs = tuple(same.get(v, v) for v in op.inputs)
        key = _key(op, inputs)
        known = None if key is None else first.get(key)
        if known is None:
            known = with_inputs(op, inputs)
            ops.append(known)
            if key is not None:
                first[key] = known
        same.update(zip(op.outputs, known.outputs, strict=True))
    return Graph(graph.inputs, [same.get(v, v) for v in graph.outputs], ops)


def _key(op: Op, inputs: tuple[Value, ...]) -> Hashable:
    """Return a key that is equal for equal ops, None for an op that is never merged."""
    if op.kind in _UNIQUE or any(isinstance(a, np.ndarray | Graph) for a in op.attrs.values()):
        return None
    # Vela fuses an operand's rescale to 32 bits into its only user.
    if op.kind == "RESCALE" and op.outputs[0].type.dtype is DType.I32:
        return None
    return op.kind, inputs, tuple(sorted(op.attrs.items(), key=lambda a: a[0]))
