"""Keeps all operators apart, for a graph that Vela miscompiles although the known pairs were separated."""

from __future__ import annotations

from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Op, Value
from tosaic.passes.copies import copy_value
from tosaic.passes.replace import replace_ops, with_inputs

_SMALL = (DType.I8, DType.I16)


def separate_all(graph: Graph) -> Graph:
    """Copy every operand and every output of 8 or 16 bits, so that no operator reads a view or a shared tensor.

    before: %1 = SLICE(%0); %2 = RESHAPE(%1); return %2
    after:  %a = TABLE(%0); %1 = SLICE(%a); %b = TABLE(%1); %2 = RESHAPE(%b); %c = TABLE(%2); return %c
    """

    def copy(b: Builder, value: Value) -> Value:
        is_constant = value.op is not None and value.op.is_constant
        return copy_value(b, value) if value.dtype in _SMALL and not is_constant else value

    def rule(b: Builder, op: Op) -> Value | None:
        # Operators with several results only move the state of a model.
        if op.kind == "TABLE" or len(op.outputs) != 1:
            return None
        b.ops.append(with_inputs(op, tuple(copy(b, value) for value in op.inputs)))
        return b.ops[-1].outputs[0]

    separated, b = replace_ops(graph, rule), Builder()
    outputs = list[Value]()
    for value in separated.outputs:
        b.origin = () if value.op is None else value.op.origin
        outputs.append(copy(b, value))
    return Graph(separated.inputs, outputs, [*separated.ops, *b.ops])
