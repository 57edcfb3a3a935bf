"""Quantize, dequantize, and the operators that change nothing: clone, dropout, to, alias."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.encode import decode, encode
from tosaic.ir.graph import NUMPY, RANGES, Array, DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower.arguments import find_dtype, find_qparams
from tosaic.lower.convert import to_codes
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import op
from tosaic.lower.samples import F, call, f32, module, nn, torch
from tosaic.lower.tensor import Const, Stored, Tensor


def _channel_params(scales: Tensor, zero_points: Tensor, axis: int, low: int, high: int, dtype: Any) -> QParams:
    if not (isinstance(scales, Const) and isinstance(zero_points, Const)):
        raise Unsupported("its scales are computed at run time", "use static quantization")
    per_tensor = find_qparams(1.0, 0, low, high, dtype)
    scale = tuple(float(s) for s in scales.real().reshape(-1))
    zero = tuple(int(z) for z in zero_points.real().reshape(-1))
    return replace(per_tensor, scale=scale, zero_point=zero, axis=int(axis))


@op("quantize", "quantized_decomposed.quantize_per_tensor.default", quant="none")
def quantize(
    lo: Lowering, input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: Any
) -> Tensor:
    """Where everything pending becomes an operator: RESCALE, TABLE or CLAMP; a float tensor is scaled and rounded."""
    q = find_qparams(scale, zero_point, quant_min, quant_max, dtype)
    if lo.has_float and input.is_float and isinstance(input, Stored):
        if not lo.spec.support_integer():
            raise Unsupported(f"{lo.spec} has no integers to quantize to", "use a specification with FP and INT")
        return to_codes(lo, input, q)
    return lo.quantize(input, q)


@op("dequantize", "quantized_decomposed.dequantize_per_tensor.default", quant="none")
def dequantize(
    lo: Lowering,
    input: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    out_dtype: Any = None,
) -> Tensor:
    """Codes get their meaning; nothing is emitted."""
    q = find_qparams(scale, zero_point, quant_min, quant_max, dtype)
    if input.q is not None or input.dtype is not q.dtype:
        raise Unsupported(f"it dequantizes {input.dtype.torch_name} as if it were {q.dtype.torch_name}")
    return replace(input, q=q)


@op("quantize_channel", "quantized_decomposed.quantize_per_channel.default", quant="none")
def quantize_channel(
    lo: Lowering,
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
) -> Tensor:
    """A float weight that was left unfolded becomes its codes."""
    if not input.is_const:
        raise Unsupported("per-channel quantization of an activation is not possible on the NPU", "quantize per tensor")
    return lo.quantize(input, _channel_params(scales, zero_points, axis, quant_min, quant_max, dtype))


@op("dequantize_channel", "quantized_decomposed.dequantize_per_channel.default", quant="none")
def dequantize_channel(
    lo: Lowering,
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    out_dtype: Any = None,
) -> Tensor:
    """Weights and biases get their per-channel meaning; nothing is emitted."""
    if not input.is_const:
        raise Unsupported("an activation is quantized per channel", "quantize activations per tensor")
    zeros = zero_points or Const(np.zeros(scales.shape, np.int32), DType.I32)
    return replace(input, q=_channel_params(scales, zeros, axis, quant_min, quant_max, dtype))


@op("assertion", "aten._assert_tensor_metadata.default", quant="none", moves=True)
def assertion(lo: Lowering, **_: Any) -> tuple[()]:
    """A check that torch.export made and that holds by construction: nothing remains of it."""
    return ()


def _samples_same() -> list[Any]:
    return [
        call(lambda x: x.clone() * 2.0, f32(2, 3)),
        call(lambda x: x.contiguous(memory_format=torch.contiguous_format) + 1.0, f32(1, 3, 4, 4)),
        call(lambda x: F.dropout(x, 0.3, False) + 1.0, f32(3, 5)),
        module(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 4)), f32(1, 8)),
        call(lambda x: x[:] + 1.0, f32(2, 4)),
        call(lambda x: x.detach() * 3.0, f32(4)),
    ]


@op(
    "same",
    "aten.clone.default",
    "aten.alias.default",
    "aten.alias_copy.default",
    "aten.contiguous.default",
    "aten.dropout.default",
    "aten.feature_dropout.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.detach_copy.default",
    "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default",
    "dim_order_ops._clone_dim_order.default",
    quant="share",
    moves=True,
    samples=_samples_same,
)
def same(lo: Lowering, train: bool = False, **arguments: Any) -> Tensor:
    """Operators that give their first argument back."""
    if train:
        raise Unsupported("dropout is in train mode", "call model.eval() before export")
    return next(a for a in arguments.values() if isinstance(a, Tensor))


def _meaning(tensor: Tensor) -> DType:
    """What torch holds where the NPU has codes."""
    return DType.F32 if tensor.q is not None else tensor.dtype


def _convert(lo: Lowering, value: Value, kind: DType) -> Value:
    """The numbers of a value in another type, as torch converts them.

    CAST rounds to the nearest integer and torch drops the fraction; what an integer type cannot hold saturates.
    """
    if value.dtype is DType.BOOL and kind.is_float:
        return tosa.select(lo.b, value, _number(lo, value, 1.0, kind), _number(lo, value, 0.0, kind))
    if kind.is_float and not value.dtype.is_float and kind is not DType.F32:
        # Torch rounds an integer to float32 first.
        value = tosa.cast(lo.b, value, DType.F32)
    if value.dtype.is_float and not kind.is_float:
        value = value if value.dtype is DType.F32 else tosa.cast(lo.b, value, DType.F32)
        zero = _number(lo, value, 0.0, DType.F32)
        if kind is DType.BOOL:
            return tosa.logical_not(lo.b, tosa.equal(lo.b, value, zero))
        above = tosa.greater_equal(lo.b, value, zero)
        value = tosa.select(lo.b, above, tosa.floor(lo.b, value), tosa.ceil(lo.b, value))
    return tosa.cast(lo.b, value, kind)


def _number(lo: Lowering, like: Value, number: float, dtype: DType) -> Value:
    return lo.constant(np.full((1,) * like.rank, number), dtype)


def _convert_array(numbers: Array, kind: DType) -> Array:
    if kind.is_float:
        return encode(numbers, kind)
    if numbers.dtype.kind != "f" or kind is DType.BOOL:
        return numbers.astype(NUMPY[kind])
    low, high = RANGES[kind]
    return np.clip(np.trunc(np.nan_to_num(numbers.astype(np.float64), nan=0.0)), low, high).astype(NUMPY[kind])


@op(
    "to",
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.other",
    "aten._to_copy.default",
    "aten.type_as.default",
    "dim_order_ops._to_dim_order_copy.default",
    quant="share",
    moves=True,
    samples=lambda: [
        call(lambda x: x.to(torch.float32) * 2.0, f32(2, 3)),
        call(lambda x, y: x.type_as(y) + y, f32(2, 3), f32(2, 3)),
        call(lambda x: x.to(torch.float16).to(torch.float32), f32(2, 3), flavours=()),
    ],
)
def to(lo: Lowering, self: Tensor, dtype: Any = None, other: Tensor | None = None, **_: Any) -> Tensor:
    """A cast; to the type that the tensor already has it is nothing."""
    meaning = _meaning(self)
    kind = _meaning(other) if other is not None else find_dtype(dtype)
    if kind is meaning or (dtype is None and other is None):
        return self
    if kind is None or self.q is not None:
        raise Unsupported(
            f"a cast from {meaning.torch_name} to {dtype} is not possible on the target", "keep one dtype"
        )
    if isinstance(self, Const):
        return Const(_convert_array(decode(self.array, self.dtype), kind), kind)
    if (self.is_float or kind.is_float) and not lo.has_float:
        raise Unsupported(
            f"a cast from {self.dtype.torch_name} to {kind.torch_name} needs float", "keep this part quantized"
        )
    return replace(self, value=_convert(lo, self.value, kind))
