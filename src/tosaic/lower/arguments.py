"""Helpers of several record files: reading arguments, and the plain forms of unary and binary operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeGuard

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.encode import decode, encode
from tosaic.ir.graph import FROM_TORCH, NUMPY, DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Const, Stored, Tensor, with_value

#: the dimensions of a reduction; None means all of them
Dims: TypeAlias = int | Sequence[int] | None
#: a size for each spatial dimension, or one for all
Sizes: TypeAlias = int | Sequence[int]
#: an operand of an elementwise function: a tensor or a Python number
Operand: TypeAlias = Tensor | float


def is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    """Tell whether an argument is a list or tuple."""
    return isinstance(value, (list, tuple))


def pair(value: Sizes) -> tuple[int, int]:
    """Return an int[2] argument as a pair: torch also accepts one number, alone or in a list."""
    first, second = spread(value, 2)
    return first, second


def triple(value: Sizes) -> tuple[int, int, int]:
    """Return an int[3] argument as a triple: torch also accepts one number, alone or in a list."""
    first, second, third = spread(value, 3)
    return first, second, third


def spread(value: Sizes, count: int) -> list[int]:
    """Return an argument with one number for each of several dimensions."""
    numbers = [value] if isinstance(value, int) else [int(v) for v in value]
    return numbers * count if len(numbers) == 1 else numbers


#: what uint8 numbers are larger by than the int8 numbers that stand for them
UNSIGNED_OFFSET = 128


def find_dtype(dtype: object) -> DType | None:
    """Return the type that has the name of a torch dtype; None if TOSA has none. Works without importing torch."""
    return FROM_TORCH.get(str(dtype).removeprefix("torch."))


def is_unsigned(dtype: object) -> bool:
    """Tell whether a torch dtype is uint8, whose numbers are int8 numbers plus 128 on the target."""
    return str(dtype) == "torch.uint8"


def find_qparams(scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: object) -> QParams:
    """Make qparams from the arguments of a per-tensor quantize or dequantize; those of uint8 as int8 has them."""
    unsigned = is_unsigned(dtype)
    kind, offset = (DType.I8, UNSIGNED_OFFSET) if unsigned else (find_dtype(dtype), 0)
    if kind is None:
        raise Unsupported(f"it is quantized to {str(dtype).removeprefix('torch.')}", "use int8")
    return QParams((float(scale),), (int(zero_point) - offset,), kind, int(quant_min) - offset, int(quant_max) - offset)


def dim_list(dims: Dims, rank: int) -> list[int]:
    """Return dimensions as non-negative numbers; none given means all of them."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank))
    chosen = [dims] if isinstance(dims, int) else list(dims)
    return sorted({d % rank for d in chosen}) if rank else []


def operand(lo: Lowering, value: Operand, like: Tensor) -> Tensor:
    """Return a tensor operand; a Python number becomes a constant like the other operand."""
    if isinstance(value, Tensor):
        return _match_dtype(value, like)
    if like.q is not None:
        return Const(np.full((1,) * like.rank, value, np.float32), DType.F32)
    if isinstance(value, float) and not like.dtype.is_float:
        raise Unsupported(
            f"it mixes {like.dtype.torch_name} with the float number {value}", "cast the integers to float32 before"
        )
    if not like.dtype.is_float and not -(2**31) <= value < 2**31:
        raise Unsupported(f"the number {value} does not fit 32 bits", "use a smaller number")
    return lo.scalar(value, like)


def first_tensor(*operands: Operand) -> Tensor:
    """Return the first operand that is a tensor; the others may be numbers."""
    return next(o for o in operands if isinstance(o, Tensor))


def _match_dtype(value: Tensor, like: Tensor) -> Tensor:
    """Convert a constant of one element, or of integers, to the dtype of the other operand, as torch promotes it."""
    if not isinstance(value, Const) or value.dtype is like.dtype:
        return value
    promoted = like.is_float and not value.is_float and value.dtype is not DType.BOOL
    if value.q is None and like.q is None and (value.size == 1 or promoted):
        numbers = decode(value.array, value.dtype)
        if like.dtype.is_float or np.array_equal(numbers, numbers.astype(NUMPY[like.dtype])):
            return Const(encode(numbers, like.dtype), like.dtype)
    return value


def unary(lo: Lowering, op: Callable[[Builder, Value], Value], x: Tensor) -> Stored:
    """Build an elementwise op on a float or plain integer tensor. Quantized tensors use tables instead."""
    if x.q is not None:
        lo.require_quantized(x)
        raise Unsupported("its input is quantized in a form that does not fit a lookup table", "quantize to int8")
    if isinstance(x, Const):
        raise Unsupported("its input is a constant")
    return with_value(x, op(lo.b, x.value))


def keep_dims(lo: Lowering, reduced: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """Drop the reduced dimensions (of size one) unless they are to be kept."""
    if keepdim:
        return reduced
    return lo.reshape(reduced, [d for i, d in enumerate(reduced.shape) if i not in set(dims)])


def make_movable(lo: Lowering, t: Tensor) -> Tensor:
    """Return integers in a type that can be moved: in a float profile that is float32, which is exact up to 2**24."""
    if t.dtype is not DType.I32 or "INT" in lo.spec.profiles:
        return t
    if isinstance(t, Const):
        return Const(t.array.astype(np.float32), DType.F32)
    return with_value(t, tosa.cast(lo.b, t.value, DType.F32))


def integers(lo: Lowering, t: Tensor, shape: Sequence[int], times: int = 1) -> Value:
    """Return int32 numbers in another shape, with its first dimension repeated."""
    if t.dtype is DType.I32 and (isinstance(t, Const) or t.is_materialized) and (t.shape, times) == (tuple(shape), 1):
        return lo.emit(t)
    moved = lo.emit(lo.reshape(make_movable(lo, t), shape))
    if times > 1:
        moved = tosa.tile(lo.b, moved, (times, *(1 for _ in shape[1:])))
    return moved if moved.dtype is DType.I32 else tosa.cast(lo.b, moved, DType.I32)
