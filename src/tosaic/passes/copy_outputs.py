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
        tensor = _find_folded(value)
        outputs.append(_copy(b, value) if tensor in taken else value)
        taken.add(tensor)
    return Graph(graph.inputs, outputs, [*graph.ops, *b.ops]) if b.ops else graph


#: operators that change nothing where the type of their result is that of their input; the converter folds those
_FOLDED = frozenset(
    (
        *("REDUCE_MAX", "REDUCE_MIN", "REDUCE_SUM", "REDUCE_PRODUCT", "REDUCE_ALL", "REDUCE_ANY"),
        *("TRANSPOSE", "RESHAPE", "SLICE", "TILE", "PAD", "CONCAT", "REVERSE", "IDENTITY"),
    )
)


def _find_folded(value: Value) -> Value:
    """Find the tensor that an output is once the converter has folded what may change nothing."""
    while value.op is not None and value.op.kind in _FOLDED and value.op.inputs[0].type == value.type:
        value = value.op.inputs[0]
    return value


def _copy(b: Builder, value: Value) -> Value:
    if value.dtype is DType.BOOL:
        return tosa.logical_or(b, value, value)
    if value.dtype.is_float or value.dtype is DType.I32:
        return tosa.maximum(b, value, value)
    return tosa.bitwise_or(b, value, value)
