"""Replacement of single ops: the common part of all passes that do it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from tosaic.ir.build import Builder
from tosaic.ir.graph import Graph, Op, Value

#: makes a new value for an op's only output from its inputs, or None to keep the op
Rule: TypeAlias = Callable[[Builder, Op], Value | None]


def replace_ops(graph: Graph, rule: Rule, where: Callable[[Op], bool] = lambda _: True) -> Graph:
    """Replace every op for which the rule makes a new value.

    `where` selects ops as they are in `graph`; the rule sees them on the new values of their inputs.
    """
    same: dict[Value, Value] = {}
    builder = Builder()
    for op in graph.ops:
        moved = with_inputs(op, tuple(same.get(v, v) for v in op.inputs))
        builder.origin = op.origin
        value = rule(builder, moved) if where(op) else None
        if value is None:
            builder.ops.append(moved)
            same.update(zip(op.outputs, moved.outputs, strict=True))
        else:
            same[op.outputs[0]] = value
    return Graph(graph.inputs, [same.get(v, v) for v in graph.outputs], builder.ops)


def with_inputs(op: Op, inputs: tuple[Value, ...]) -> Op:
    """Return the op on other inputs: itself if they are the same, else a new op with new results."""
    if inputs == op.inputs:
        return op
    new = Op(op.definition, inputs, tuple(Value(v.type) for v in op.outputs), op.attrs, op.origin)
    for value in new.outputs:
        value.op = new
    return new


def count_uses(graph: Graph) -> Counter[Value]:
    """Count how often each value is read, by ops and as an output of the graph."""
    uses = Counter(value for op in graph.ops for value in op.inputs)
    uses.update(graph.outputs)
    return uses
