"""Conversion between quantized values, 16-bit floats and float32 inside one delegate, in TOSA FP.

Quantize and dequantize match torch's quantize_per_tensor and dequantize_per_tensor, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.encode import LARGEST_E4M3, encode
from tosaic.ir.graph import DType, Value
from tosaic.ir.qparams import QParams, along
from tosaic.lower.booleans import is_table, store_bool
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Const, Stored, Tensor, fill_gaps, with_value

#: the floats of less than 32 bits
FLOAT8 = (DType.F8E4M3, DType.F8E5M2)
SMALL = (DType.F16, DType.BF16, *FLOAT8)


def is_real(t: Tensor) -> bool:
    """Tell whether the tensor is stored as real numbers, with nothing pending."""
    return t.q is None and (isinstance(t, Const) or t.lut is None)


def can_be_real(lo: Lowering, t: Tensor) -> bool:
    """Tell whether `to_real` can make a stored tensor of floats or booleans of it."""
    if is_table(t):
        return lo.target.has_booleans
    return lo.has_float and not t.is_const and t.dtype is not DType.I48


def to_real(lo: Lowering, t: Tensor) -> Tensor:
    """Convert quantized values, an accumulator or a pending table to float32; a table of booleans to these."""
    if is_real(t):
        return t
    if is_table(t):
        return store_bool(lo, t)
    if isinstance(t, Const):
        return _dequantize_const(t)
    if t.dtype is DType.I48:
        raise Unsupported("a 48-bit accumulator cannot become float", "quantize the result of this operator")
    if t.lut is not None:
        return with_value(t, _look_up(lo, t.value, t.lut))
    q = t.qparams
    value = tosa.cast(lo.b, t.value, DType.F32)
    if any(q.zero_point):
        value = tosa.sub(lo.b, value, _along(lo, value, tuple(map(float, q.zero_point)), q))
    value = tosa.mul(lo.b, value, _along(lo, value, q.scale, q))
    if t.clamp is not None:
        value = tosa.clamp(lo.b, value, *t.clamp)
    return with_value(t, value)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Tell whether a bound argument is a list."""
    return isinstance(value, list)


def convert_all(value: object, convert: Callable[[Tensor], Tensor]) -> object:
    """Convert an argument that is a tensor, or every tensor in one that is a list."""
    if is_list(value):
        return [convert_all(item, convert) for item in value]
    return convert(value) if isinstance(value, Tensor) else value


def is_small(t: Tensor) -> bool:
    """Tell whether it is a float of 16 or 8 bits."""
    return t.dtype in SMALL


def widen(lo: Lowering, t: Tensor) -> Tensor:
    """Convert a float tensor of 16 or 8 bits to float32; return any other unchanged."""
    if not is_small(t):
        return t
    if isinstance(t, Const):
        return Const(t.real().astype(np.float32), DType.F32)
    return with_value(t, tosa.cast(lo.b, t.value, DType.F32))


def cast_float(lo: Lowering, value: Value, dtype: DType) -> Value:
    """Cast floats to a float type as torch does."""
    if value.dtype in FLOAT8 and dtype in FLOAT8:
        # CAST has no form between two types of 8 bits.
        value = tosa.cast(lo.b, value, DType.F32)
    if dtype is DType.F8E4M3:
        # Torch saturates, and CAST makes NaN of numbers beyond the largest one.
        value = tosa.clamp(lo.b, value, -LARGEST_E4M3, LARGEST_E4M3)
    return tosa.cast(lo.b, value, dtype)


def narrow(lo: Lowering, t: Tensor, dtype: DType) -> Tensor:
    """Convert a float tensor to the float type that torch gives it."""
    if not (t.is_float and dtype.is_float and is_real(t)) or t.dtype is dtype:
        return t
    if isinstance(t, Const):
        return Const(encode(t.real(), dtype), dtype)
    return with_value(t, cast_float(lo, t.value, dtype))


def to_codes(lo: Lowering, t: Stored, q: QParams) -> Stored:
    """Quantize a float tensor: scale, round half to even, add the zero point, clip."""
    if q.axis is not None:
        raise Unsupported("an activation is quantized per channel", "quantize activations per tensor")
    value = t.value if t.dtype is DType.F32 else tosa.cast(lo.b, t.value, DType.F32)
    inverse = float(np.float32(1.0 / q.s))
    value = tosa.mul(lo.b, value, _along(lo, value, (inverse,), q))
    # Clipping first keeps the numbers small, and at integer bounds it commutes with the rounding.
    value = tosa.clamp(lo.b, value, float(q.qmin - q.zp), float(q.qmax - q.zp))
    if q.zp:
        # TOSA has no rounding operator: a cast to an integer rounds half to even.
        value = tosa.cast(lo.b, tosa.cast(lo.b, value, DType.I32), DType.F32)
        value = tosa.add(lo.b, value, _along(lo, value, (float(q.zp),), q))
    return with_value(t, tosa.cast(lo.b, value, q.dtype))


def _dequantize_const(t: Const) -> Const:
    q = t.qparams
    zero = along(q.zero_point, q.axis, t.rank).astype(np.float32)
    scale = along(q.scale, q.axis, t.rank).astype(np.float32)
    return Const((t.array.astype(np.float32) - zero) * scale, DType.F32)


def _along(lo: Lowering, like: Value, numbers: tuple[float, ...], q: QParams) -> Value:
    """Emit a constant that broadcasts over `like`: one number, or one per channel."""
    shape = [1] * like.rank
    if q.axis is not None:
        shape[q.axis] = len(numbers)
    return lo.constant(np.asarray(numbers, np.float32).reshape(shape), DType.F32)


def _look_up(lo: Lowering, value: Value, lut: npt.NDArray[np.float32]) -> Value:
    """Look up a function of one int8 value in the table of the 256 floats that torch computes."""
    count = int(np.prod(value.shape, dtype=np.int64))
    index = tosa.cast(lo.b, value, DType.I32)
    index = tosa.add(lo.b, index, lo.b.number(128, index, DType.I32))
    table = lo.constant(fill_gaps(lut).astype(np.float32).reshape(1, 256, 1), DType.F32)
    found = tosa.gather(lo.b, table, tosa.reshape(lo.b, index, (1, count)))
    return tosa.reshape(lo.b, found, value.shape)
