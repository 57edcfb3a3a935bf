"""Conversion of numbers to and from the form that each TOSA dtype has in memory and in a file."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import numpy.typing as npt

from tosaic.core.dtypes import SMALL_FLOATS
from tosaic.core.errors import Invalid
from tosaic.ir.graph import NUMPY, Array, DType

_SMALL_FLOATS: Mapping[DType, type[np.generic]] = {
    dtype: SMALL_FLOATS[dtype.torch_name] for dtype in (DType.BF16, DType.F8E4M3, DType.F8E5M2)
}


#: the largest number of fp8e4m3
LARGEST_E4M3 = 448.0


def encode(data: Array, dtype: DType) -> Array:
    """Convert an array to the memory form of `dtype`, read-only: raw bits unchanged, other numbers converted.

    Integers must fit; floats are rounded, and saturate in fp8e4m3, which has no infinity, as in torch.
    """
    kind = NUMPY[dtype]
    if data.dtype == kind:
        array = np.asarray(data, order="C").view()
    elif dtype in _SMALL_FLOATS:
        data = np.clip(data, -LARGEST_E4M3, LARGEST_E4M3) if dtype is DType.F8E4M3 else data
        array = np.asarray(data, order="C").astype(_SMALL_FLOATS[dtype]).view(kind)
    else:
        array = np.asarray(data, order="C").astype(kind)
        if not dtype.is_float and not np.array_equal(array, data):
            raise Invalid(f"numbers of {data.dtype} do not fit {dtype.value}")
    array.flags.writeable = False
    return array


def decode(data: Array, dtype: DType) -> Array:
    """Convert the raw bits of bf16 and fp8 to float32; return other arrays unchanged."""
    if dtype not in _SMALL_FLOATS:
        return data
    return data.view(_SMALL_FLOATS[dtype]).astype(np.float32)


def to_bytes(data: Array, dtype: DType) -> npt.NDArray[np.uint8]:
    """Convert a constant to its bytes in a file: int4 two to a byte, low half first; int48 as six bytes."""
    flat = np.ascontiguousarray(data).reshape(-1)
    if dtype is DType.I4:
        halves = flat.view(np.uint8) & np.uint8(0xF)
        if halves.size % 2:
            halves = np.append(halves, np.uint8(0))
        return halves[0::2] | (halves[1::2] << np.uint8(4))
    if dtype is DType.I48:
        return np.ascontiguousarray(flat.view(np.uint8).reshape(-1, 8)[:, :6]).reshape(-1)
    return flat.view(np.uint8)


def count_bytes(size: int, dtype: DType) -> int:
    """Count the bytes that `to_bytes` returns for `size` numbers."""
    if dtype is DType.I4:
        return (size + 1) // 2
    return size * (6 if dtype is DType.I48 else np.dtype(NUMPY[dtype]).itemsize)


def from_bytes(raw: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: DType) -> Array:
    """Invert `to_bytes`; the caller has checked the length."""
    if dtype is DType.I4:
        halves = np.stack((raw & 0xF, raw >> 4), axis=-1).reshape(-1)
        signed = (halves ^ 8).astype(np.int8) - np.int8(8)
        return _freeze(signed[: prod(shape)].reshape(shape))
    if dtype is DType.I48:
        wide = np.zeros((raw.size // 6, 8), dtype=np.uint8)
        wide[:, :6] = raw.reshape(-1, 6)
        wide[:, 6:] = np.where(wide[:, 5:6] >= 0x80, np.uint8(0xFF), np.uint8(0))
        return _freeze(wide.view(np.int64).reshape(shape))
    return _freeze(np.frombuffer(raw.tobytes(), dtype=NUMPY[dtype]).reshape(shape))


def _freeze(array: Array) -> Array:
    array.flags.writeable = False
    return array
