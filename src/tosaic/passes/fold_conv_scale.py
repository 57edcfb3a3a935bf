"""Folds a per-channel factor or addend, as of BatchNorm, into the weights and bias of the float convolution before."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Op, Value
from tosaic.passes.replace import count_uses, replace_ops

#: Convolutions, with the axes of the weights that determine the output's channels.
_CHANNELS: Mapping[str, tuple[int, ...]] = {
    "CONV2D": (0,),
    "CONV3D": (0,),
    "TRANSPOSE_CONV2D": (0,),
    "DEPTHWISE_CONV2D": (2, 3),
}


def fold_conv_scale(graph: Graph) -> Graph:
    """Fold a MUL or ADD with one constant per channel into the float32 convolution before it.

    before: %1 = CONV2D(%0, w, b); %2 = MUL(%1, s); %3 = ADD(%2, t)
    after:  %3 = CONV2D(%0, w * s, b * s + t)
    """
    uses = count_uses(graph)
    return replace_ops(graph, _fold, where=lambda op: bool(op.inputs) and uses[op.inputs[0]] == 1)


def _fold(b: Builder, op: Op) -> Value | None:
    """Emit the convolution before a MUL or ADD with both folded into one; None if there is none."""
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
