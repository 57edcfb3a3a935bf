"""Quantize, dequantize, casts, and the operators that change nothing: clone, dropout, alias."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.encode import decode, encode
from tosaic.ir.graph import NUMPY, RANGES, Array, DType, Value
from tosaic.ir.qparams import QParams, accumulator
from tosaic.lower import arithmetic as arith
from tosaic.lower import rounding
from tosaic.lower.arguments import UNSIGNED_OFFSET, find_dtype, find_qparams, is_unsigned
from tosaic.lower.booleans import CODES, PLAIN, PLAIN_INT16, is_table, to_condition, to_float
from tosaic.lower.constraints import describe
from tosaic.lower.convert import SMALL, cast_float, to_codes
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op, with_copy
from tosaic.lower.samples import F, Sample, boolean, call, f32, i8, i16, i32, module, nn, torch, with_booleans
from tosaic.lower.tensor import Const, Stored, Tensor, fill_gaps, is_int16, of_value, with_value


def _channel_params(scales: Tensor, zero_points: Tensor, axis: int, low: int, high: int, dtype: object) -> QParams:
    if not (isinstance(scales, Const) and isinstance(zero_points, Const)):
        raise Unsupported("its scales are computed at run time", "use static quantization")
    if is_unsigned(dtype):
        raise Unsupported("it is quantized to uint8 per channel", "use int8")
    per_tensor = find_qparams(1.0, 0, low, high, dtype)
    scale = tuple(float(s) for s in scales.real().reshape(-1))
    zero = tuple(int(z) for z in zero_points.real().reshape(-1))
    return replace(per_tensor, scale=scale, zero_point=zero, axis=int(axis))


def _read_unsigned(lo: Lowering, t: Stored) -> Stored:
    """Make int8 numbers of the bits of uint8 ones, if the graph received them."""
    if t.value.op is not None:
        return replace(t, unsigned=False)
    value = tosa.rescale(
        lo.b, t.value, DType.I8, multiplier=[1 << 30], shift=[30], in_zp=UNSIGNED_OFFSET, input_unsigned=True
    )
    return with_value(t, value)


def _check_profiles(lo: Lowering, a: Arguments) -> str:
    stays = isinstance(a["input"], Const) or lo.spec.support_integer()
    return "" if stays else f"the specification is {lo.spec}"


_PROFILES = Constraint(
    "quantized values next to float ones need the profiles FP and INT",
    _check_profiles,
    "use a specification with FP and INT",
    lambda target: not target.is_npu,
)


@op(
    "quantize",
    "quantized_decomposed.quantize_per_tensor.default",
    quant="none",
    is_qdq=True,
    constraints=[_PROFILES],
)
def quantize(
    lo: Lowering, input: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: object
) -> Tensor:
    """Materialize everything pending as an operator: RESCALE, TABLE or CLAMP; a float tensor is scaled and rounded."""
    q = find_qparams(scale, zero_point, quant_min, quant_max, dtype)
    stored = isinstance(input, Stored)
    codes = to_codes(lo, input, q) if stored and lo.has_float and input.is_float else lo.quantize(input, q)
    if not is_unsigned(dtype):
        return codes
    if isinstance(codes, Const):
        raise Unsupported("a constant is quantized to uint8", "use int8")
    return replace(codes, unsigned=True)


@op(
    "dequantize",
    "quantized_decomposed.dequantize_per_tensor.default",
    quant="none",
    is_qdq=True,
    constraints=[_PROFILES],
)
def dequantize(
    lo: Lowering,
    input: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: object,
    out_dtype: object = None,
) -> Tensor:
    """Attach the qparams to quantized values; nothing is emitted, except for uint8."""
    q = find_qparams(scale, zero_point, quant_min, quant_max, dtype)
    if isinstance(input, Stored) and input.unsigned:
        input = _read_unsigned(lo, input)
    if input.q is not None or input.dtype is not q.dtype:
        raise Unsupported(f"it dequantizes {input.dtype.torch_name} as if it were {q.dtype.torch_name}")
    return replace(input, q=q)


@op("quantize_channel", "quantized_decomposed.quantize_per_channel.default", quant="none", is_qdq=True)
def quantize_channel(
    lo: Lowering,
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: object,
) -> Tensor:
    """Quantize a float weight that was not folded."""
    if not isinstance(input, Const):
        raise Unsupported("per-channel quantization of an activation is not possible on the NPU", "quantize per tensor")
    return lo.quantize(input, _channel_params(scales, zero_points, axis, quant_min, quant_max, dtype))


@op("dequantize_channel", "quantized_decomposed.dequantize_per_channel.default", quant="none", is_qdq=True)
def dequantize_channel(
    lo: Lowering,
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: object,
    out_dtype: object = None,
) -> Tensor:
    """Attach per-channel qparams to weights and biases; nothing is emitted."""
    if not isinstance(input, Const):
        raise Unsupported("an activation is quantized per channel", "quantize activations per tensor")
    zeros = zero_points or Const(np.zeros(scales.shape, np.int32), DType.I32)
    return replace(input, q=_channel_params(scales, zeros, axis, quant_min, quant_max, dtype))


@op("assert_metadata", "_assert_tensor_metadata.default", quant="none", moves=True)
def assert_metadata(lo: Lowering, **_: object) -> tuple[()]:
    """Drop a check that torch.export inserted and that holds by construction."""
    return ()


def _samples_identity() -> list[Sample]:
    return [
        call(lambda x: x.clone() * 2.0, f32(2, 3)),
        call(lambda x: x.contiguous(memory_format=torch.contiguous_format) + 1.0, f32(1, 3, 4, 4)),
        call(lambda x: F.dropout(x, 0.3, False) + 1.0, f32(3, 5)),
        module(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 4)), f32(1, 8)),
        call(lambda x: x[:] + 1.0, f32(2, 4)),
        call(lambda x: x.detach() * 3.0, f32(4)),
    ]


@data_movement(
    "identity",
    "clone.default",
    *with_copy("alias.default"),
    "contiguous.default",
    "dropout.default",
    "feature_dropout.default",
    *with_copy("detach.default"),
    "detach_.default",
    *with_copy("lift_fresh.default"),
    "dim_order_ops._clone_dim_order.default",
    samples=_samples_identity,
)
def identity(lo: Lowering, train: bool = False, **arguments: object) -> Tensor:
    """Lower operators that return their first argument."""
    if train:
        raise Unsupported("dropout is in train mode", "call model.eval() before export")
    return next(a for a in arguments.values() if isinstance(a, Tensor))


def _get_dtype(tensor: Tensor) -> DType:
    """Return the dtype in torch of a tensor that is quantized on the NPU."""
    return DType.BOOL if is_table(tensor) else DType.F32 if tensor.q is not None else tensor.dtype


def _convert(lo: Lowering, value: Value, kind: DType) -> Value:
    """Convert a value to another type, as torch does.

    CAST rounds to the nearest integer and torch drops the fraction; out-of-range integers saturate.
    """
    if value.dtype is DType.BOOL and (kind.is_float or not lo.spec.support_integer()):
        value = to_float(lo, of_value(value)).value
        return value if kind is DType.F32 else cast_float(lo, value, kind)
    if not (lo.spec.support_integer() or value.dtype.is_float or kind.is_float):
        # The profile FP has no casts between integers, and float32 holds those of 16 bits.
        return tosa.cast(lo.b, tosa.cast(lo.b, value, DType.F32), kind)
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
    return cast_float(lo, value, kind) if value.dtype.is_float and kind.is_float else tosa.cast(lo.b, value, kind)


def _number(lo: Lowering, like: Value, number: float, dtype: DType) -> Value:
    return lo.constant(np.full((1,) * like.rank, number), dtype)


def _convert_array(numbers: Array, kind: DType) -> Array:
    if kind.is_float:
        return encode(numbers, kind)
    if numbers.dtype.kind != "f" or kind is DType.BOOL:
        return numbers.astype(NUMPY[kind])
    low, high = RANGES[kind]
    return np.clip(np.trunc(np.nan_to_num(numbers.astype(np.float64), nan=0.0)), low, high).astype(NUMPY[kind])


def _find_dtype(x: Tensor, dtype: object, other: Tensor | None) -> DType | None:
    """Return the dtype of a cast's result, None if TOSA has none for it; int64 is int32 inside a delegate."""
    if other is not None:
        return _get_dtype(other)
    if str(dtype) == "torch.int64":
        return DType.I32
    return _get_dtype(x) if dtype is None else find_dtype(dtype)


def _check_cast(lo: Lowering, a: Arguments) -> str:
    x, dtype, other = a["self"], a.get("dtype"), a.get("other")
    before, kind = _get_dtype(x), _find_dtype(x, dtype, other)
    small = kind in SMALL and (x.q is not None or not lo.has_float)
    if kind is before or (kind is not None and not small and (lo.has_float or not x.is_float)):
        return ""
    result = kind.torch_name if kind is not None else str(dtype).removeprefix("torch.")
    return f"it is from {describe(x)} to {result}"


_CASTS = (
    Constraint(
        "a cast is between bool, int8, int16, int32, float32, and floats of 16 or 8 bits if the target has them",
        _check_cast,
        "cast to float32 or int32 instead",
    ),
)


def _dequantize_integers(lo: Lowering, x: Stored) -> Stored:
    """Take integers as quantized values with a scale of one; nothing is emitted for most of them."""
    if is_table(x):
        assert x.lut is not None
        return replace(x, lut=x.lut.astype(np.float32))
    if x.dtype is DType.BOOL:
        x = with_value(x, tosa.cast(lo.b, x.value, DType.I8))
    q = {DType.I8: PLAIN, DType.I16: PLAIN_INT16}.get(x.dtype)
    if q is not None:
        return replace(x, q=q)
    if lo.next_q is None:
        return replace(x, q=accumulator((1.0,)))
    # A RESCALE is not defined for numbers far outside of the range that it scales them to.
    ends = [(n - lo.next_q.zp) * lo.next_q.s for n in (lo.next_q.qmin - 1, lo.next_q.qmax + 1)]
    value = x.value
    for end, build in zip(ends, (tosa.maximum, tosa.minimum), strict=True):
        number = np.full((1,) * value.rank, np.clip(math.floor(end) if end < 0 else math.ceil(end), *RANGES[DType.I32]))
        value = build(lo.b, value, lo.constant(number, DType.I32))
    return with_value(x, value, accumulator((1.0,)))


def _truncate(lo: Lowering, x: Stored, kind: DType) -> Stored:
    """Convert quantized values to integers: those of 8 bits by tables, one for each byte of the numbers."""
    if is_int16(x):
        whole = rounding.round_to_zero(lo, x)
        return replace(whole, q=None) if kind is DType.I32 else with_value(x, lo.rescale(whole.value, kind, [1.0]))
    if x.lut is None:
        if lo.require_quantized(x).dtype is not DType.I8:
            raise Unsupported(f"it is from {describe(x)} to {kind.torch_name}", "quantize to int8")
        x = replace(x, lut=(CODES - x.qparams.zp).astype(np.float32) * np.float32(x.qparams.s))
    assert x.lut is not None
    numbers = np.trunc(np.clip(fill_gaps(x.lut.astype(np.float32)), *RANGES[kind])).astype(np.int64)
    low = ((numbers + 128) & 255) - 128
    value = tosa.table(lo.b, x.value, low.astype(np.int8))
    if np.array_equal(low, numbers):
        return with_value(x, value if kind is DType.I8 else tosa.cast(lo.b, value, kind))
    value, rest, factor = tosa.cast(lo.b, value, DType.I32), (numbers - low) >> 8, 256
    while rest.any():
        low = ((rest + 128) & 255) - 128
        part = tosa.cast(lo.b, tosa.table(lo.b, x.value, low.astype(np.int8)), DType.I32)
        scale = lo.constant(np.full((1,) * part.rank, factor), DType.I32)
        value = tosa.add(lo.b, value, tosa.mul(lo.b, part, scale))
        rest, factor = (rest - low) >> 8, factor * 256
    return with_value(x, value if kind is DType.I32 else tosa.cast(lo.b, value, kind))


@data_movement(
    "to",
    "to.dtype",
    "to.dtype_layout",
    "to.device",
    "to.other",
    "_to_copy.default",
    "type_as.default",
    "dim_order_ops._to_dim_order_copy.default",
    constraints=_CASTS,
    samples=lambda: [
        call(lambda x: x.to(torch.float32) * 2.0, f32(2, 3)),
        call(lambda x, y: x.type_as(y) + y, f32(2, 3), f32(2, 3)),
        call(lambda x: x.to(torch.float16).to(torch.float32), f32(2, 3), flavors=()),
        call(lambda x: x.to(torch.float32) * 0.5, i8(3, 17)),
        call(lambda x: x.to(torch.float32) + 1.0, i16(1, 3, 4, 4)),
        call(lambda x: x.float().sigmoid(), i32(3, 64, low=-5, high=5)),
        call(lambda x: (x > 0.5).float() * 3.0, f32(3, 17)),
        call(lambda x, y: (x > y).float() + x, f32(3, 17), f32(1, 17)),
        call(lambda x: x.float() * 2.0, boolean(2, 3), targets=with_booleans),
        call(lambda x: x.to(torch.int32) + 1, f32(3, 17, low=-9.0, high=9.0), flavors=("INT",)),
        call(lambda x: (x * 1.5).to(torch.int8), f32(3, 17, low=-80.0, high=80.0), flavors=("INT",)),
        call(lambda x: x.abs().to(torch.int32), f32(1, 64, low=-9000.0, high=70000.0), flavors=("INT",)),
        call(lambda x: torch.where(x.floor().to(torch.bool), x, 1.0), f32(3, 17)),
        call(lambda x: (x > 0.0).to(torch.int8), f32(3, 17), flavors=("INT",)),
        call(lambda x: (x + x).to(torch.int16), i8(3, 17)),
        call(lambda x: (x + x).to(torch.int8), i16(3, 17)),
    ],
)
def to(lo: Lowering, self: Tensor, dtype: object = None, other: Tensor | None = None, **_: object) -> Tensor:
    """Lower a cast; a cast to the tensor's own type emits nothing."""
    kind = _find_dtype(self, dtype, other)
    if kind is _get_dtype(self):
        return self
    assert kind is not None
    if isinstance(self, Const):
        return Const(_convert_array(decode(self.array, self.dtype), kind), kind)
    if kind is DType.BOOL and (self.q is not None or not self.is_float):
        return to_condition(lo, self)
    if kind.is_float and not lo.has_float:
        return _dequantize_integers(lo, self)
    if self.q is not None and not is_table(self):
        return _truncate(lo, self, kind)
    value = lo.emit_table(self) if is_table(self) else self.value
    if value.dtype in (DType.I16, DType.I32) and kind in (DType.I8, DType.I16) and value.dtype is not kind:
        return with_value(self, arith.wrap(lo, arith.to_int32(lo.b, value), kind))
    return with_value(self, value if value.dtype is kind else _convert(lo, value, kind))
