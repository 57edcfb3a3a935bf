"""Operands of an operator record: a constant, or a stored TOSA value with its qparams and pending operations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported
from tosaic.ir.encode import decode
from tosaic.ir.graph import Array, DType, Value
from tosaic.ir.qparams import QParams, Reals, dequantize


class _Typed(Protocol):
    """The interface of both kinds of tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def q(self) -> QParams | None: ...


class _Described:
    """Properties that both kinds of tensor share."""

    __slots__ = ()

    @property
    def rank(self: _Typed) -> int:
        return len(self.shape)

    @property
    def size(self: _Typed) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) if self.shape else 1

    @property
    def is_float(self: _Typed) -> bool:
        """Whether it is stored as float (not merely quantized from it)."""
        return self.dtype.is_float

    @property
    def qparams(self: _Typed) -> QParams:
        """The qparams of a tensor that is known to be quantized."""
        assert self.q is not None, "the tensor is not quantized"
        return self.q

    @property
    def zp(self: _Typed) -> int:
        """The stored number that stands for zero."""
        return 0 if self.q is None else self.q.zp


@dataclass(frozen=True, slots=True)
class Const(_Described):
    """A constant of the torch program, already in logical layout. With `q`, `array` holds quantized values."""

    array: Array
    dtype: DType
    q: QParams | None = None

    is_const = True
    is_accumulator = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def is_plain_quantized(self) -> bool:
        """Whether it is quantized to 8 or 16 bits."""
        return self.q is not None and self.dtype in (DType.I8, DType.I16)

    def real(self) -> Reals:
        """Return the real numbers that it stands for."""
        return decode(self.array, self.dtype).astype(np.float64) if self.q is None else dequantize(self.array, self.q)


@dataclass(frozen=True, slots=True)
class Stored(_Described):
    """A computed tensor of the torch program: a TOSA value, and its pending operations.

    The number at a logical position is found by three steps that cost nothing until they are needed:
    `reshape(transpose(value, perm), shape)` gives the stored number, `q` (or `lut`) the real number it stands for, and
    `clamp` bounds that number.
    An int32 value with `q` is an accumulator: it becomes int8 where the program quantizes it.
    TOSA has no unsigned types: `unsigned` numbers are uint8 in torch. A value that the graph receives has their bits, a
    computed one has the numbers less 128 until it leaves the graph. Only a dequantize reads them.
    `reach` is the largest magnitude of numbers that are quantized to 32 bits; None if it is not known.
    """

    shape: tuple[int, ...]
    value: Value
    perm: tuple[int, ...]
    q: QParams | None = None
    lut: npt.NDArray[np.float32] | None = None
    clamp: tuple[float, float] | None = None
    unsigned: bool = False
    reach: float | None = None

    is_const = False

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    @property
    def is_accumulator(self) -> bool:
        return self.q is not None and self.dtype in (DType.I32, DType.I48)

    @property
    def is_plain_quantized(self) -> bool:
        """Whether it is quantized to 8 or 16 bits with no function or clamp pending."""
        return self.q is not None and self.dtype in (DType.I8, DType.I16) and self.lut is None and self.clamp is None

    @property
    def viewed(self) -> tuple[int, ...]:
        """The shape after the pending permutation and before the pending reshape."""
        return tuple(self.value.shape[p] for p in self.perm)

    @property
    def has_reshape(self) -> bool:
        return self.viewed != self.shape

    @property
    def is_materialized(self) -> bool:
        """Whether the value has the logical layout: no permutation and no reshape is pending."""
        return not self.has_reshape and self.perm == tuple(range(len(self.perm)))


Tensor: TypeAlias = Const | Stored


@dataclass(frozen=True, slots=True)
class Opaque:
    """A result that TOSA cannot hold (int64, float64, complex ...).

    kind  its type; empty if the type is not the problem
    """

    what: str
    kind: str


#: The result of lowering a node: a tensor, several (some may have no lowering), or a type that TOSA lacks.
Result: TypeAlias = Tensor | Opaque | tuple[Tensor | Unsupported, ...]


def is_int16(t: Tensor) -> TypeGuard[Stored]:
    """Tell whether a tensor is computed and quantized to 16 bits, with no function or clamp pending."""
    return isinstance(t, Stored) and t.is_plain_quantized and t.dtype is DType.I16


def of_value(value: Value, q: QParams | None = None) -> Stored:
    """Make a tensor from a value that has the logical layout."""
    return Stored(value.shape, value, tuple(range(value.rank)), q)


def with_value(like: Stored, value: Value, q: QParams | None = None) -> Stored:
    """Wrap a new value of the same physical shape in the same pending view."""
    reach = like.reach if q is not None and q is like.q else None
    return replace(like, value=value, q=q, lut=None, clamp=None, unsigned=False, reach=reach)


def fill_gaps(table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Replace NaN in a table: outside its domain a function gets the value of the nearest entry that is inside.

    The entry at the end of a domain often represents a number just outside it.
    """
    lost = np.isnan(table)
    if not lost.any():
        return table
    if lost.all():
        raise Unsupported("it returns NaN for every possible input value", "calibrate inside its domain")
    known = np.flatnonzero(~lost)
    middles = (known[:-1] + known[1:]) / 2
    return table[known[np.searchsorted(middles, np.arange(len(table)))]]


def find_most(t: Tensor) -> float | None:
    """Find a bound of the magnitude of quantized numbers; None if it is not known, as that of a sum of products."""
    if isinstance(t, Const):
        return float(np.abs(t.real()).max(initial=0.0))
    if t.lut is not None:
        return float(np.abs(fill_gaps(t.lut.astype(np.float32))).max())
    if t.is_plain_quantized:
        return max(t.qparams.qmax - t.qparams.zp, t.qparams.zp - t.qparams.qmin) * t.qparams.s
    return None if t.reach is None else t.reach * t.qparams.s


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    """Return the permutation that undoes `perm`."""
    out = [0] * len(perm)
    for i, p in enumerate(perm):
        out[p] = i
    return tuple(out)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that all of these broadcast to."""
    return tuple(int(d) for d in np.broadcast_shapes(*shapes))
