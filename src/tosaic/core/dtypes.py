"""The element types of tensors: one row each, with their names in torch, numpy, ExecuTorch, Vulkan and C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type.

    name         torch's name without `torch.`
    bytes        bytes per element in a file or in memory
    numpy        its type in arrays: types that numpy lacks as their bits; None if it is never computed with
    scalar_type  its number in a .pte file, ExecuTorch's `ScalarType`
    vk_format    its number in a .vgf file, Vulkan's `VkFormat`; None if it has none
    c_type       the C type of an element; empty if there is none
    c_name       its name in an output line of Arm's runner; empty if it prints no such tensors
    """

    name: str
    bytes: int
    numpy: type[np.generic] | None
    scalar_type: int
    vk_format: int | None = None
    c_type: str = ""
    c_name: str = ""


#: All types by torch's name.
DTYPES: Mapping[str, ElementType] = MappingProxyType(
    {
        row.name: row
        for row in (
            ElementType("uint8", 1, np.uint8, 0, 13, "uint8_t", "byte"),
            ElementType("int8", 1, np.int8, 1, 14, "int8_t", "char"),
            ElementType("int16", 2, np.int16, 2, 75, "int16_t", "short"),
            ElementType("int32", 4, np.int32, 3, 99, "int32_t", "int"),
            ElementType("int64", 8, np.int64, 4, 111, "int64_t", "long"),
            ElementType("float16", 2, np.float16, 5, 76, "uint16_t", "half"),
            ElementType("float32", 4, np.float32, 6, 100, "float", "float"),
            ElementType("float64", 8, np.float64, 7, 112, "double", "double"),
            ElementType("complex64", 8, np.complex64, 9),
            ElementType("complex128", 16, np.complex128, 10),
            ElementType("bool", 1, np.bool_, 11, 1000460000, "uint8_t", "bool"),
            ElementType("qint8", 1, None, 12),
            ElementType("quint8", 1, None, 13),
            ElementType("qint32", 4, None, 14),
            ElementType("bfloat16", 2, np.uint16, 15, 1000460001, "uint16_t"),
            ElementType("quint4x2", 1, None, 16),
            ElementType("quint2x4", 1, None, 17),
            ElementType("bits16", 2, None, 22),
            ElementType("float8_e5m2", 1, np.uint8, 23),
            ElementType("float8_e4m3fn", 1, np.uint8, 24),
            ElementType("float8_e5m2fnuz", 1, np.uint8, 25),
            ElementType("float8_e4m3fnuz", 1, np.uint8, 26),
            ElementType("uint16", 2, np.uint16, 27, 74),
            ElementType("uint32", 4, np.uint32, 28, 98),
            ElementType("uint64", 8, np.uint64, 29, 110),
        )
    }
)

#: The same by their numbers in .pte and in .vgf files.
BY_SCALAR_TYPE: Mapping[int, ElementType] = MappingProxyType({row.scalar_type: row for row in DTYPES.values()})
BY_VK_FORMAT: Mapping[int, ElementType] = MappingProxyType(
    {row.vk_format: row for row in DTYPES.values() if row.vk_format is not None}
)

#: The array type of each type that is computed with, by torch's name.
NUMPY: Mapping[str, type[np.generic]] = MappingProxyType(
    {row.name: row.numpy for row in DTYPES.values() if row.numpy is not None}
)


#: Floats that numpy lacks: arrays hold their raw bits, and these types read them.
SMALL_FLOATS: Mapping[str, type[np.generic]] = MappingProxyType(
    {
        "bfloat16": ml_dtypes.bfloat16,
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2,
    }
)


def count_item_bytes(name: str) -> int:
    """Return the bytes of one element; 0 for a type that is not in the table."""
    row = DTYPES.get(name)
    return 0 if row is None else row.bytes
