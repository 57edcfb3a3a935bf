"""Padding of bfloat16, at which the emulation layer of Vulkan 0.9 ends the process."""

from __future__ import annotations

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.encode import decode
from tosaic.ir.graph import DType, Graph, Op, Value
from tosaic.passes.replace import replace_ops


def concat_pads(graph: Graph) -> Graph:
    """Write a PAD of bfloat16 as a CONCAT with constants along each dimension that it pads.

    before: %1 = PAD(%0 : bf16[1, 4], [0, 0, 1, 0], 0)
    after:  %1 = CONCAT(0 : bf16[1, 1], %0, axis 1)
    """
    return replace_ops(graph, _concat, lambda op: op.kind == "PAD" and op.outputs[0].dtype is DType.BF16)


def _concat(b: Builder, op: Op) -> Value | None:
    value = op.inputs[0]
    sizes, filler = (None if one.op is None else one.op.data for one in op.inputs[1:])
    if sizes is None or filler is None:
        return None
    number = float(decode(filler, DType.BF16)[0])
    for axis, pair in enumerate(sizes.reshape(-1, 2).tolist()):
        before, after = ([] if not n else [_fill(b, value, axis, n, number)] for n in pair)
        if before or after:
            value = tosa.concat(b, [*before, value, *after], axis)
    return value


def _fill(b: Builder, value: Value, axis: int, size: int, number: float) -> Value:
    shape = [size if i == axis else n for i, n in enumerate(value.shape)]
    return b.const(np.full(shape, number, np.float32), DType.BF16)
