"""Arrays as .npy bytes: written deterministically, read without trusting the input."""

from __future__ import annotations

import math
import re
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid

Array: TypeAlias = npt.NDArray[np.generic]

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 4096
# Not numpy's own reader: that allocates whatever size a header claims.
_HEADER = re.compile(
    r"\{'descr': '([<>|=]?[biuf]\d{1,2})', 'fortran_order': (True|False), 'shape': \((\d[\d, ]*)?\),? *\}\s*"
)


def write_npy(array: Array, descr: str = "") -> bytes:
    """Return the .npy file of an array, in row-major order and little endian; `descr` overrides its type's name."""
    little = array.astype(array.dtype.newbyteorder("<"), order="C")
    text = repr({"descr": descr or little.dtype.str, "fortran_order": False, "shape": array.shape}).encode()
    # Magic, version 1.0, header length; the data begin at a multiple of 64.
    header = text + b" " * (-(len(text) + 11) % 64) + b"\n"
    return _MAGIC + b"\x01\x00" + len(header).to_bytes(2, "little") + header + little.tobytes()


def read_npy(data: bytes | bytearray | memoryview, what: str, budget: Budget | None = None) -> Array:
    """Read the array in a .npy file; `what` names the file in errors."""
    if data[:6] != _MAGIC or len(data) < 12:
        raise Invalid(f"{what} is not a .npy file", why=f"it begins with {bytes(data[:6])!r}")
    start = 10 if data[6] == 1 else 12
    end = start + int.from_bytes(data[8:start], "little")
    header = bytes(data[start : min(end, start + _MAX_HEADER)]).decode("latin-1")
    fields = _HEADER.fullmatch(header)
    if fields is None or end > len(data):
        why = f"its header is `{header[:80].strip()}`; only tensors of bools, integers or floats are read"
        raise Invalid(f"{what} cannot be used", why=why)
    shape = tuple(int(size) for size in (fields[3] or "").replace(" ", "").split(",") if size)
    try:
        dtype = np.dtype(fields[1])
    except TypeError:
        raise Invalid(f"{what} cannot be used", why=f"unknown type `{fields[1]}`") from None
    # Compared before anything is allocated: a header may claim any size.
    size = math.prod(shape) * dtype.itemsize
    if size != len(data) - end or len(shape) > 32:
        raise Invalid(
            f"{what} is damaged", why=f"{dtype} of shape {shape} takes {size} bytes, but {len(data) - end} follow"
        )
    (Budget(len(data)) if budget is None else budget).take(size, what)
    flat: Array = np.frombuffer(data, dtype, offset=end)
    return flat.reshape(shape, order="F" if fields[2] == "True" else "C").astype(dtype.newbyteorder("="), order="C")
