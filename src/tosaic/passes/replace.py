"""Replacing single ops: the part of a rewrite that is the same for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tosaic.ir.build import Builder
from tosaic.ir.graph import Graph, Op, Value

#: makes a new value for an op's only output out of its inputs, or None to leave the op as it is
Rule: TypeAlias = Callable[[Builder, Op], Value | None]


def replace_ops(graph: Graph, rule: Rule) -> Graph:
    """The graph with every op that the rule knows an answer for replaced by that answer."""
    same: dict[Value, Value] = {}
    builder = Builder()
    for op in graph.ops:
        moved = with_inputs(op, tuple(same.get(v, v) for v in op.inputs))
        builder.origin = op.origin
        value = rule(builder, moved)
        if value is None:
            builder.ops.append(moved)
            same.update(zip(op.outputs, moved.outputs, strict=True))
        else:
            same[op.outputs[0]] = value
    return Graph(graph.inputs, [same.get(v, v) for v in graph.outputs], builder.ops)


def with_inputs(op: Op, inputs: tuple[Value, ...]) -> Op:
    """The op on other inputs: itself if they are the same, else a new op with new results."""
    if inputs == op.inputs:
        return op
    new = Op(op.definition, inputs, tuple(Value(v.type) for v in op.outputs), op.attrs, op.origin)
    for value in new.outputs:
        value.op = new
    return new
