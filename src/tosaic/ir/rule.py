"""What rules are made of: typed access to attributes and operands, and the shape arithmetic that ops share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Invalid
from tosaic.ir.encode import decode
from tosaic.ir.graph import Array, Attr, DType, Graph, Type, Value

Attrs: TypeAlias = Mapping[str, Attr]
#: From operands and attributes to the types of the outputs; raises Invalid where TOSA says ERROR_IF.
Rule: TypeAlias = Callable[[Sequence[Value], Attrs], tuple[Type, ...]]


def get_int(attrs: Attrs, name: str) -> int:
    value = attrs.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Invalid(f"attribute {name} must be an integer, not {value!r}")
    return value


def get_ints(attrs: Attrs, name: str, count: int) -> tuple[int, ...]:
    value = attrs.get(name)
    ints = tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()
    if not isinstance(value, tuple) or len(ints) != len(value) or len(ints) != count:
        raise Invalid(f"attribute {name} must be {count} integers, not {value!r}")
    return ints


def get_bool(attrs: Attrs, name: str) -> bool:
    value = attrs.get(name)
    if not isinstance(value, bool):
        raise Invalid(f"attribute {name} must be a bool, not {value!r}")
    return value


def get_number(attrs: Attrs, name: str) -> int | float:
    value = attrs.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Invalid(f"attribute {name} must be a number, not {value!r}")
    return value


def get_text(attrs: Attrs, name: str) -> str:
    value = attrs.get(name)
    if not isinstance(value, str) or isinstance(value, DType):
        raise Invalid(f"attribute {name} must be a text, not {value!r}")
    return value


def get_choice(attrs: Attrs, name: str, choices: Sequence[str]) -> str:
    value = get_text(attrs, name)
    if value not in choices:
        raise Invalid(f"attribute {name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def get_dtype(attrs: Attrs, name: str) -> DType:
    value = attrs.get(name)
    if not isinstance(value, DType):
        raise Invalid(f"attribute {name} must be a DType, not {value!r}")
    return value


def get_type(attrs: Attrs, name: str) -> Type:
    value = attrs.get(name)
    if not isinstance(value, Type):
        raise Invalid(f"attribute {name} must be a Type, not {value!r}")
    return value


def get_types(attrs: Attrs, name: str) -> tuple[Type, ...]:
    value = attrs.get(name)
    types = tuple(v for v in value if isinstance(v, Type)) if isinstance(value, tuple) else ()
    if not isinstance(value, tuple) or len(types) != len(value):
        raise Invalid(f"attribute {name} must be a tuple of Types, not {value!r}")
    return types


def get_bytes(attrs: Attrs, name: str) -> bytes:
    value = attrs.get(name)
    if not isinstance(value, bytes):
        raise Invalid(f"attribute {name} must be bytes, not {value!r}")
    return value


def get_graph(attrs: Attrs, name: str) -> Graph:
    value = attrs.get(name)
    if not isinstance(value, Graph):
        raise Invalid(f"attribute {name} must be a Graph, not {value!r}")
    return value


def get_data(attrs: Attrs, name: str) -> Array | None:
    value = attrs.get(name)
    if value is not None and not isinstance(value, np.ndarray):
        raise Invalid(f"attribute {name} must be an array or None, not {type(value).__name__}")
    return value


def get_axis(attrs: Attrs, rank: int) -> int:
    axis = get_int(attrs, "axis")
    if not 0 <= axis < rank:
        raise Invalid(f"axis {axis} is outside 0..{rank - 1}")
    return axis


def need_rank(value: Value, rank: int, name: str) -> None:
    if value.rank != rank:
        raise Invalid(f"{name} must have rank {rank}, not {value.rank} ({value.type})")


def need_dtype(value: Value, dtype: DType, name: str) -> None:
    if value.dtype is not dtype:
        raise Invalid(f"{name} must be {dtype.value}, not {value.dtype.value}")


def need_type(value: Value, expected: Type, name: str) -> None:
    if value.type != expected:
        raise Invalid(f"{name} must be {expected}, not {value.type}")


def need_zero_point(value: Value, of: Value, name: str) -> None:
    """A zero point is one number of its tensor's dtype, and only int8 tensors have one other than zero."""
    need_type(value, Type(of.dtype, (1,)), name)
    data = value.data
    if of.dtype is not DType.I8 and data is not None and np.count_nonzero(decode(data, of.dtype)):
        raise Invalid(f"{name} must be 0 for {of.dtype.value}: only i8 has a zero point")


def get_numbers(value: Value) -> npt.NDArray[np.int64] | None:
    """The integers of a constant operand, if they are known; None for floats."""
    return None if value.data is None or value.dtype.is_float else value.data.astype(np.int64)


def get_shape(value: Value, count: int | None, name: str) -> tuple[int, ...]:
    """The numbers of a CONST_SHAPE operand."""
    if value.dtype is not DType.SHAPE:
        raise Invalid(f"{name} must be a CONST_SHAPE value, not {value.type}")
    data = get_numbers(value)
    if data is None:
        raise Invalid(f"{name} must be a CONST_SHAPE with known numbers")
    numbers = tuple(int(n) for n in data)
    if count is not None and len(numbers) != count:
        raise Invalid(f"{name} must have {count} numbers, not {len(numbers)}")
    return numbers


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an elementwise result: equal ranks, and a dimension of 1 stretches."""
    if len(a) != len(b):
        raise Invalid(f"ranks differ: {list(a)} and {list(b)} (TOSA broadcasts only between equal ranks)")
    if a == b:
        return a
    if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        raise Invalid(f"shapes {list(a)} and {list(b)} do not broadcast")
    return tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))


def count_windows(span: int, stride: int, name: str) -> int:
    """How often a window fits: TOSA wants the division exact, padding and slicing are the caller's."""
    if span < 0:
        raise Invalid(f"the kernel is larger than the padded input in {name}")
    if span % stride:
        raise Invalid(f"{name}: {span} is not a multiple of the stride {stride}; trim or pad the input first")
    return span // stride + 1
