"""Works around shared weights in Vela 5.2: two convolutions that differ only in their bias both get the first one's.

Vela stores weights together with biases and rescale factors, and finds out by weights and factors alone whether it has
stored them before. `tests/npu/test_pairs.py` has the smallest graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import TypeAlias

import numpy as np

from tosaic.ir.build import Builder
from tosaic.ir.graph import Array, Graph, Op, Value
from tosaic.passes.replace import replace_ops

#: Convolutions, with the axis of the weights that is the kernel's width.
_WIDTH: Mapping[str, int] = {"CONV2D": 2, "DEPTHWISE_CONV2D": 1}

#: the factors of each RESCALE that reads a value
_Factors: TypeAlias = Mapping[Value, frozenset[Hashable]]


def separate_biases(graph: Graph) -> Graph:
    """Widen the kernel of a convolution by a column of zeros if it differs from an earlier one only in its bias.

    before: %1 = CONV2D(%0, w, b); %2 = CONV2D(%0, w, c)
    after:  %1 = CONV2D(%0, w, b); %2 = CONV2D(%0, [w 0], c) with one more column of padding
    """
    columns = _count_columns(graph)
    # The rule sees an op with new inputs and outputs, but for these in the same order.
    counts = iter(columns.values())
    return replace_ops(graph, lambda b, op: _widen(b, op, next(counts)), where=lambda op: op in columns)


def _count_columns(graph: Graph) -> dict[Op, int]:
    """Count for each convolution that needs columns of zeros how many make it different from all others."""
    factors = _find_factors(graph)
    similar: dict[Hashable, list[tuple[Array, list[Array]]]] = defaultdict(list)
    columns: dict[Op, int] = {}
    for op in graph.ops:
        weight, bias = _find_constants(op)
        if weight is None or bias is None:
            continue
        known = similar[op.kind, weight.shape, factors[op.outputs[0]]]
        biases = next((found for other, found in known if np.array_equal(other, weight)), None)
        if biases is None:
            known.append((weight, [bias]))
            continue
        index = next((i for i, other in enumerate(biases) if np.array_equal(other, bias)), len(biases))
        if index == len(biases):
            biases.append(bias)
        if index:
            columns[op] = index
    return columns


def _find_factors(graph: Graph) -> _Factors:
    found: dict[Value, frozenset[Hashable]] = defaultdict(frozenset)
    for op in graph.ops:
        if op.kind == "RESCALE":
            pairs = (op.operand(name).data for name in ("multiplier", "shift"))
            found[op.inputs[0]] |= {tuple(b"" if data is None else data.tobytes() for data in pairs)}
    return found


def _find_constants(op: Op) -> tuple[Array | None, Array | None]:
    """Return the weights and the bias of a convolution; None for what is computed, or if it is none."""
    if op.kind not in _WIDTH:
        return None, None
    return op.operand("weight").data, op.operand("bias").data


def _widen(b: Builder, op: Op, columns: int) -> Value:
    """Emit a convolution with columns of zeros at the right of its kernel."""
    weight, zero = op.operand("weight"), op.operand("weight_zp")
    assert weight.data is not None and zero.data is not None
    axis = _WIDTH[op.kind]
    more = [(0, columns if i == axis else 0) for i in range(weight.rank)]
    wide = np.pad(weight.data, more, constant_values=int(zero.data.reshape(-1)[0]))
    top, bottom, left, right = op.get_ints("pad")
    pad = (top, bottom, left, right + columns * op.get_ints("dilation")[1])
    inputs = tuple(b.const(wide, weight.dtype) if v is weight else v for v in op.inputs)
    return b.emit(op.definition, inputs, **{**op.attrs, "pad": pad})[0]
