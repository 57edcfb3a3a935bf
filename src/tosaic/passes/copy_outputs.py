"""Outputs that the model converter would leave unwritten."""

from __future__ import annotations

from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Value


def copy_outputs(graph: Graph) -> Graph:
    """Copy an output that is an input or an earlier output by an operator that the converter keeps.

    before: %1 = ABS(%0); return %1, %1
    after:  %1 = ABS(%0); %2 = MAXIMUM(%1, %1); return %1, %2
    """
    taken, outputs, b = set(graph.inputs), list[Value](), Builder()
    for value in graph.outputs:
        outputs.append(_copy(b, value) if value in taken else value)
        taken.add(value)
    return Graph(graph.inputs, outputs, [*graph.ops, *b.ops]) if b.ops else graph


def _copy(b: Builder, value: Value) -> Value:
    if value.dtype is DType.BOOL:
        return tosa.logical_or(b, value, value)
    if value.dtype.is_float or value.dtype is DType.I32:
        return tosa.maximum(b, value, value)
    return tosa.bitwise_or(b, value, value)
