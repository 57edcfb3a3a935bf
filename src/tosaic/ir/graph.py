"""The typed TOSA graph: every value has a dtype and a shape, every op names its definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Invalid

if TYPE_CHECKING:
    from tosaic.ir.definition import OpDef

T = TypeVar("T")
Array: TypeAlias = npt.NDArray[np.generic]


class DType(StrEnum):
    """Element types of TOSA 1.0 (SHAPE is the type of a CONST_SHAPE value)."""

    BOOL = "bool"
    I4 = "i4"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I48 = "i48"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"
    SHAPE = "shape"

    @property
    def is_float(self) -> bool:
        return self in (DType.F16, DType.BF16, DType.F32, DType.F8E4M3, DType.F8E5M2)

    @property
    def is_int(self) -> bool:
        return self in (DType.I4, DType.I8, DType.I16, DType.I32, DType.I48)

    @property
    def torch_name(self) -> str:
        """The torch name of the type."""
        if self in _FLOAT8:
            return _FLOAT8[self]
        kind = self.value.rstrip("0123456789")
        return {"i": "int", "f": "float", "bf": "bfloat"}.get(kind, kind) + self.value[len(kind) :]


_FLOAT8: Mapping[DType, str] = {DType.F8E4M3: "float8_e4m3fn", DType.F8E5M2: "float8_e5m2"}

#: How a constant of each type is kept in memory (bf16 and fp8 as their raw bits, i4 in an int8, i48 in an int64).
NUMPY: Mapping[DType, type[np.generic]] = {
    DType.BOOL: np.bool_,
    DType.I4: np.int8,
    DType.I8: np.int8,
    DType.I16: np.int16,
    DType.I32: np.int32,
    DType.I48: np.int64,
    DType.F16: np.float16,
    DType.BF16: np.uint16,
    DType.F32: np.float32,
    DType.F8E4M3: np.uint8,
    DType.F8E5M2: np.uint8,
    DType.SHAPE: np.int64,
}


#: The types of torch tensors that become TOSA tensors, by torch's name.
FROM_TORCH: Mapping[str, DType] = {
    dtype.torch_name: dtype
    for dtype in (
        *(DType.BOOL, DType.I8, DType.I16, DType.I32),
        *(DType.F8E4M3, DType.F8E5M2, DType.F16, DType.BF16, DType.F32),
    )
}

#: The smallest and the largest number of each integer type.
RANGES: Mapping[DType, tuple[int, int]] = {
    dtype: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    for dtype, bits in ((DType.I4, 4), (DType.I8, 8), (DType.I16, 16), (DType.I32, 32), (DType.I48, 48))
}


@dataclass(frozen=True, slots=True)
class Type:
    """The dtype and shape of a value. A SHAPE value of n numbers has shape (n,)."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        n = 1
        for d in self.shape:
            n *= d
        return n

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@dataclass(eq=False, slots=True)
class Value:
    """A tensor in the graph. Compared by identity; `op` is its producer, None for a graph input."""

    type: Type
    op: Op | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def data(self) -> Array | None:
        """The numbers of a CONST or CONST_SHAPE value; None for any other value."""
        return self.op.data if self.op is not None and self.op.is_constant else None


#: int tuples for pads, strides and permutations; ndarray for constant data; Graph for the bodies of control flow;
#: types that a file expresses by the output's own type instead of an attribute (constants, variables, custom ops).
Attr: TypeAlias = (
    "int | float | bool | str | bytes | tuple[int, ...] | DType | Type | tuple[Type, ...] | Array | Graph | None"
)


@dataclass(eq=False, slots=True)
class Op:
    """One use of a TOSA operator. `origin` holds the keys of the source nodes it was lowered from."""

    definition: OpDef
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict[str, Attr])
    origin: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.definition.name

    @property
    def is_constant(self) -> bool:
        """Whether this is a CONST or CONST_SHAPE."""
        return self.definition.constant

    @property
    def data(self) -> Array | None:
        """The initial numbers of a constant or a variable, if the op has any."""
        data = self.attrs.get("data")
        return data if isinstance(data, np.ndarray) else None

    def operand(self, name: str) -> Value:
        """Find an input by its name in the definition."""
        return self.inputs[self.definition.find_position(name)]

    def rest(self, name: str) -> tuple[Value, ...]:
        """Return the values of a variadic operand."""
        return self.inputs[self.definition.find_position(name) :]

    def get(self, name: str, kind: type[T]) -> T:
        """Read an attribute of a known type."""
        value = self.attrs.get(name)
        if not isinstance(value, kind):
            raise Invalid(f"attribute {name} must be of type {kind.__name__}, not {value!r}")
        return value

    def get_ints(self, name: str) -> tuple[int, ...]:
        """Read an attribute that is a tuple of integers."""
        return self._get_items(name, int)

    def get_types(self, name: str) -> tuple[Type, ...]:
        """Read an attribute that is a tuple of types."""
        return self._get_items(name, Type)

    def _get_items(self, name: str, kind: type[T]) -> tuple[T, ...]:
        value = self.attrs.get(name)
        items = tuple(item for item in value if isinstance(item, kind)) if isinstance(value, tuple) else ()
        if items != value:
            raise Invalid(f"attribute {name} must be a tuple of {kind.__name__}, not {value!r}")
        return items


@dataclass(eq=False, slots=True)
class Graph:
    """Ops in execution order. Constants are ops too (CONST, CONST_SHAPE)."""

    inputs: list[Value]
    outputs: list[Value]
    ops: list[Op]

    def uses(self) -> dict[Value, list[Op]]:
        """Map every value to the ops that read it (an op that reads it twice is listed twice)."""
        table: dict[Value, list[Op]] = {}
        for op in self.ops:
            for value in op.inputs:
                table.setdefault(value, []).append(op)
        return table

    def values(self) -> Iterator[Value]:
        yield from self.inputs
        for op in self.ops:
            yield from op.outputs
