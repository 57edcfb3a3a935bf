"""The numbers that a .tosa file has for operators, types and choices, from the `tosa_serializer` extension."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from tosaic.ir.definition import Field
from tosaic.ir.graph import DType


class Enumeration(Protocol):
    @property
    def value(self) -> int: ...


_module: Mapping[str, Any] = vars(import_module("tosa_serializer"))

OPS: Mapping[str, Enumeration] = _module["Op"].__members__
CHOICES: Mapping[Field, Mapping[str, Enumeration]] = {
    Field.NAN_MODE: _module["NanPropagationMode"].__members__,
    Field.ROUNDING_MODE: _module["RoundingMode"].__members__,
    Field.RESIZE_MODE: _module["ResizeMode"].__members__,
}

_DTYPE_NAMES = {
    DType.BOOL: "BOOL",
    DType.I4: "INT4",
    DType.I8: "INT8",
    DType.I16: "INT16",
    DType.I32: "INT32",
    DType.I48: "INT48",
    DType.F32: "FP32",
    DType.F16: "FP16",
    DType.BF16: "BF16",
    DType.SHAPE: "SHAPE",
    DType.F8E4M3: "FP8E4M3",
    DType.F8E5M2: "FP8E5M2",
}
DTYPES: Mapping[DType, Enumeration] = {dtype: _module["DType"].__members__[n] for dtype, n in _DTYPE_NAMES.items()}
