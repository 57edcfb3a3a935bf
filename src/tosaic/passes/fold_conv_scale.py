"""A factor or addend per channel after a float convolution goes into its weights and bias: BatchNorm above all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Op, Value
from tosaic.passes.replace import with_inputs

#: Convolutions, with the axes of the weights that make the output's channels.
_CHANNELS: Mapping[str, tuple[int, ...]] = {
    "CONV2D": (0,),
    "CONV3D": (0,),
    "TRANSPOSE_CONV2D": (0,),
    "DEPTHWISE_CONV2D": (2, 3),
}


def fold_channels(graph: Graph) -> Graph:
    """Let a float32 convolution do what comes after it with one constant per channel.

    before: %1 = CONV2D(%0, w, b); %2 = MUL(%1, s); %3 = ADD(%2, t)
    after:  %3 = CONV2D(%0, w * s, b * s + t)
    """
    same: dict[Value, Value] = {}
    uses, builder = graph.uses(), Builder()
    for op in graph.ops:
        moved = with_inputs(op, tuple(same.get(v, v) for v in op.inputs))
        builder.origin = op.origin
        image = op.inputs[0] if op.inputs else None
        alone = image is not None and len(uses[image]) == 1 and image not in graph.outputs
        value = _fold(builder, moved) if alone else None
        if value is None:
            builder.ops.append(moved)
            same.update(zip(op.outputs, moved.outputs, strict=True))
        else:
            same[op.outputs[0]] = value
    return Graph(graph.inputs, [same.get(v, v) for v in graph.outputs], builder.ops)


def _fold(b: Builder, op: Op) -> Value | None:
    """The convolution before a MUL or ADD that does its work as well, None if there is none."""
    conv = op.inputs[0].op
    if op.kind not in ("MUL", "ADD") or conv is None or conv.kind not in _CHANNELS or op.outputs[0].dtype != DType.F32:
        return None
    operands = (op.operand("input2"), conv.operand("weight"), conv.operand("bias"))
    factor, weight, bias = (_numbers(v) for v in operands)
    channels = op.outputs[0].shape[-1]
    if factor is None or weight is None or bias is None or factor.shape[-1] != factor.size or bias.size != channels:
        return None
    factor = np.broadcast_to(factor.reshape(-1), (channels,))
    if op.kind == "MUL":
        axes = _CHANNELS[conv.kind]
        shape = [size if axis in axes else 1 for axis, size in enumerate(weight.shape)]
        weight, bias = weight * factor.reshape(shape), bias * factor
    else:
        bias = bias + factor
    b.origin = tuple(dict.fromkeys((*conv.origin, *op.origin)))
    zero_points = (conv.operand("input_zp"), conv.operand("weight_zp"))
    inputs = (conv.operand("input"), b.const(weight, DType.F32), b.const(bias, DType.F32), *zero_points)
    return b.emit(conv.definition, inputs, **conv.attrs)[0]


def _numbers(value: Value) -> npt.NDArray[np.float64] | None:
    data = value.data
    return None if data is None or value.dtype != DType.F32 else data.astype(np.float64)
