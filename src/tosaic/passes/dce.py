"""Dead code elimination: removes ops whose results are unused."""

from __future__ import annotations

from tosaic.ir.graph import Graph, Op

#: ops with side effects
_EFFECTS = frozenset({"VARIABLE", "VARIABLE_WRITE"})


def remove_dead_ops(graph: Graph) -> Graph:
    """Keep only the ops that the outputs depend on.

    before: %1 = EXP(%0); %2 = TANH(%0); return %2
    after:  %2 = TANH(%0); return %2
    """
    needed = set(graph.outputs)
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if op.kind in _EFFECTS or any(v in needed for v in op.outputs):
            needed.update(op.inputs)
            kept.append(op)
    return Graph(graph.inputs, graph.outputs, kept[::-1])
