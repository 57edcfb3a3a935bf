"""What an operator record works on: a TOSA value with its meaning, its pending view and its pending function."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported
from tosaic.ir.encode import decode
from tosaic.ir.graph import Array, DType, Value
from tosaic.ir.qparams import QParams, Reals, dequantize


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the torch program while it becomes TOSA.

    The number at a logical position is found by three steps that cost nothing until they are needed:
    `reshape(transpose(value, perm), shape)` gives the stored code, `q` (or `lut`) the real number it stands for, and
    `clamp` bounds that number. Constants hold their data in `array`, already in logical layout.
    An int32 value with `q` is an accumulator: it becomes int8 where the program quantizes it.
    """

    shape: tuple[int, ...]
    dtype: DType
    value: Value | None = None
    array: Array | None = None
    perm: tuple[int, ...] = ()
    q: QParams | None = None
    lut: npt.NDArray[np.float32] | None = None
    clamp: tuple[float, float] | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) if self.shape else 1

    @property
    def is_const(self) -> bool:
        return self.value is None

    @property
    def is_float(self) -> bool:
        """Float in storage (not merely in meaning)."""
        return self.dtype.is_float

    @property
    def is_accumulator(self) -> bool:
        return self.q is not None and self.dtype in (DType.I32, DType.I48) and not self.is_const

    @property
    def is_code(self) -> bool:
        """Quantized to 8 or 16 bits, nothing pending."""
        return self.q is not None and self.dtype in (DType.I8, DType.I16) and self.lut is None and self.clamp is None

    @property
    def viewed(self) -> tuple[int, ...]:
        """The shape after the pending permutation and before the pending reshape."""
        assert self.value is not None
        return tuple(self.value.shape[p] for p in self.perm)

    @property
    def has_reshape(self) -> bool:
        return self.value is not None and self.viewed != self.shape

    @property
    def is_settled(self) -> bool:
        return self.value is None or (not self.has_reshape and self.perm == tuple(range(len(self.perm))))

    def real(self) -> Reals:
        """The real numbers of a constant."""
        assert self.array is not None
        return decode(self.array, self.dtype).astype(np.float64) if self.q is None else dequantize(self.array, self.q)


def of_value(value: Value, q: QParams | None = None) -> Tensor:
    """A plain tensor: the value as it stands."""
    return Tensor(value.shape, value.dtype, value, perm=tuple(range(value.rank)), q=q)


def of_array(array: Array, dtype: DType, q: QParams | None = None) -> Tensor:
    """A constant."""
    return Tensor(tuple(int(d) for d in array.shape), dtype, array=array, q=q)


def with_value(like: Tensor, value: Value, q: QParams | None = None) -> Tensor:
    """A new value of the same physical shape under the same pending view."""
    return replace(like, value=value, dtype=value.dtype, q=q, lut=None, clamp=None, array=None)


def fill_gaps(table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A table without NaN: outside its domain a function has the value of the nearest code that is inside.

    The code at the end of a domain often stands for a number just outside it.
    """
    lost = np.isnan(table)
    if not lost.any():
        return table
    if lost.all():
        raise Unsupported("it gives NaN for every value that its input can have", "calibrate inside its domain")
    known = np.flatnonzero(~lost)
    nearest = np.abs(np.arange(len(table))[:, None] - known).argmin(1)
    return table[known[nearest]]


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `perm`."""
    out = [0] * len(perm)
    for i, p in enumerate(perm):
        out[p] = i
    return tuple(out)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all of these broadcast to."""
    return tuple(int(d) for d in np.broadcast_shapes(*shapes))
