"""Pairs of operations that Vela 5.2 gets wrong.

Vela reads a slice where it is used, and makes one command of what it can. Where it makes several commands of the reader
of a slice, they take more of the tensor than was cut, and write more than there is room for. The same happens to a
rescale to more bits after a tensor that was put together of parts; after a maximum it keeps the limits of 8 bits.
`tests/npu/test_pairs.py` has the smallest graph for each pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from tosaic.rewrite.replace import replace_ops, with_inputs
from tosaic.tosa import ops as tosa
from tosaic.tosa.build import Builder
from tosaic.tosa.ir import DType, Graph, Op, Value

#: What must not be read by a rescale to more bits, unless that is part of a sum or product.
_BEFORE_WIDENING = frozenset({"SLICE", "CONCAT", "PAD", "TILE", "MAX_POOL2D"})
#: The same by the operation that reads.
_BEFORE: Mapping[str, frozenset[str]] = {
    kind: frozenset({"SLICE"}) for kind in ("MATMUL", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_SUM", "TRANSPOSE_CONV2D")
}
_FUSES = ("ADD", "SUB", "MUL")


def settle(graph: Graph) -> Graph:
    """Put a table that changes nothing between two operations that Vela would get wrong.

    before: %1 = SLICE(%0); %2 = REDUCE_MAX(%1)
    after:  %1 = SLICE(%0); %a = TABLE(%1); %2 = REDUCE_MAX(%a)
    """
    fused = _find_fused(graph)

    def rule(b: Builder, op: Op) -> Value | None:
        widens = op.kind == "RESCALE" and op.outputs[0].dtype is not DType.I8 and op.outputs[0] not in fused
        wrong = _BEFORE_WIDENING if widens else _BEFORE.get(op.kind)
        if wrong is None or op.inputs[0].dtype is not DType.I8 or _find_source(op.inputs[0]) not in wrong:
            return None
        settled = with_inputs(op, (tosa.table(b, op.inputs[0], _SAME), *op.inputs[1:]))
        b.ops.append(settled)
        return settled.outputs[0]

    return replace_ops(graph, rule)


_SAME = np.arange(-128, 128, dtype=np.int8)


def _find_fused(graph: Graph) -> set[Value]:
    """Rescales that Vela makes part of the sum or product that they are for: all operands are, and for nothing else."""
    uses = Counter(value for op in graph.ops for value in op.inputs)
    uses.update(graph.outputs)

    def is_single(value: Value) -> bool:
        return value.op is not None and value.op.kind == "RESCALE" and uses[value] == 1

    sums = (op.inputs[:2] for op in graph.ops if op.kind in _FUSES)
    return {value for operands in sums if all(map(is_single, operands)) for value in operands}


def _find_source(value: Value) -> str:
    """The kind of the operation that made a tensor, whatever shape it was given since."""
    while value.op is not None and value.op.kind == "RESHAPE":
        value = value.op.inputs[0]
    return "" if value.op is None else value.op.kind
