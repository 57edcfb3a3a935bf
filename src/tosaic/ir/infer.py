"""Building blocks of type inference: checks of operands, and the shape arithmetic that operators share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Invalid
from tosaic.ir.encode import decode
from tosaic.ir.graph import DType, Op, Type, Value


def get_axis(op: Op, rank: int) -> int:
    """Read the axis of an op on a tensor of this rank."""
    axis = op.get("axis", int)
    if not 0 <= axis < rank:
        raise Invalid(f"axis {axis} is outside 0..{rank - 1}")
    return axis


def get_numbers(value: Value) -> npt.NDArray[np.int64] | None:
    """Read the integers of a constant operand, if they are known; None for floats."""
    data = value.data
    return None if data is None or value.dtype.is_float else data.astype(np.int64)


def get_shape(op: Op, name: str, count: int | None = None) -> tuple[int, ...]:
    """Read the numbers of a CONST_SHAPE operand."""
    value = op.operand(name)
    data = get_numbers(value)
    if value.dtype is not DType.SHAPE or data is None:
        raise Invalid(f"{name} must be a CONST_SHAPE value, not {value.type}")
    if count is not None and data.size != count:
        raise Invalid(f"{name} must have {count} numbers, not {data.size}")
    return tuple(int(n) for n in data)


def need_rank(op: Op, name: str, rank: int) -> Value:
    """Return an operand that must have this rank."""
    value = op.operand(name)
    if value.rank != rank:
        raise Invalid(f"{name} must have rank {rank}, not {value.rank} ({value.type})")
    return value


def need_dtype(value: Value, dtype: DType, name: str) -> None:
    """Raise Invalid unless the value has this dtype."""
    if value.dtype is not dtype:
        raise Invalid(f"{name} must be {dtype.value}, not {value.dtype.value}")


def need_type(op: Op, name: str, expected: Type) -> Value:
    """Return an operand that must have this type."""
    value = op.operand(name)
    if value.type != expected:
        raise Invalid(f"{name} must be {expected}, not {value.type}")
    return value


def need_zero_point(op: Op, name: str, dtype: DType) -> None:
    """Check a zero point: one number of its tensor's dtype, and only int8 tensors have one other than zero."""
    data = need_type(op, name, Type(dtype, (1,))).data
    if dtype is not DType.I8 and data is not None and np.count_nonzero(decode(data, dtype)):
        raise Invalid(f"{name} must be 0 for {dtype.value}: only i8 has a zero point")


def keep_type(op: Op) -> Type:
    """Infer the type of an operator whose result is like its first operand."""
    return op.inputs[0].type


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an elementwise result: equal ranks, and a dimension of 1 is broadcast."""
    if len(a) != len(b):
        raise Invalid(f"ranks differ: {list(a)} and {list(b)} (TOSA broadcasts only between equal ranks)")
    if a == b:
        return a
    if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        raise Invalid(f"shapes {list(a)} and {list(b)} do not broadcast")
    return tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))


def count_windows(span: int, stride: int, name: str) -> int:
    """Count how often a window fits: TOSA requires an exact division, so the caller pads or slices."""
    if span < 0:
        raise Invalid(f"the kernel is larger than the padded input in {name}")
    if span % stride:
        raise Invalid(f"{name}: {span} is not a multiple of the stride {stride}; trim or pad the input first")
    return span // stride + 1
