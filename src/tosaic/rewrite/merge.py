"""Common subexpressions: the same op on the same inputs is computed once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from tosaic.tosa.ir import Graph, Op, Value

_UNIQUE = frozenset({"VARIABLE", "VARIABLE_READ", "VARIABLE_WRITE", "COND_IF", "WHILE_LOOP", "CUSTOM", "CONST", "CONST_SHAPE"})


def merge_equal(graph: Graph) -> Graph:
    """Let later users read the first of several equal ops.

    before: %1 = RESCALE(%0); %2 = RESCALE(%0); %3 = ADD(%1, %2)
    after:  %1 = RESCALE(%0); %3 = ADD(%1, %1)
    """
    first: dict[Hashable, Op] = {}
    same: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        inputs = tuple(same.get(v, v) for v in op.inputs)
        key = None if op.kind in _UNIQUE else (op.kind, inputs, tuple(sorted(op.attrs.items(), key=lambda a: a[0])))
        if key is not None and _hashable(op) and key in first:
            for mine, theirs in zip(op.outputs, first[key].outputs, strict=True):
                same[mine] = theirs
            continue
        if inputs != op.inputs:
            new = Op(op.kind, inputs, tuple(Value(v.type) for v in op.outputs), op.attrs, op.origin)
            for old, value in zip(op.outputs, new.outputs, strict=True):
                value.op, same[old] = new, value
            op = new
        if key is not None and _hashable(op):
            first[key] = op
        ops.append(op)
    return Graph(graph.inputs, [same.get(v, v) for v in graph.outputs], ops)


def _hashable(op: Op) -> bool:
    return not any(isinstance(a, np.ndarray | Graph) for a in op.attrs.values())
