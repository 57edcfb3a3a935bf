"""The part of the `tosa_serializer` extension that we use, with types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tosaic.ir.definition import Field
from tosaic.ir.graph import DType


class Tensor(Protocol):
    def setDtype(self, dtype: object) -> None: ...


class Attribute(Protocol):
    def setAttribute(self, op: object, *args: object) -> object: ...


class Block(Protocol):
    def addInput(self, name: str) -> None: ...
    def addOutput(self, name: str) -> None: ...
    def addShape(self, name: str, rank: int, data: Sequence[int]) -> object: ...
    def addTensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: object,
        data: npt.NDArray[np.uint8] | None,
        *,
        variable: bool,
        variable_name: str,
    ) -> Tensor: ...
    def addOperator(
        self, op: object, inputs: Sequence[str], outputs: Sequence[str], attributes: Attribute, location: object
    ) -> None: ...


class Region(Protocol):
    @property
    def currBasicBlock(self) -> Block: ...
    def addBasicBlock(self, name: str) -> None: ...


class Serializer(Protocol):
    @property
    def currRegion(self) -> Region: ...
    def startRegion(self, name: str) -> None: ...
    def serialize(self) -> bytes: ...


class Enumeration(Protocol):
    @property
    def value(self) -> int: ...


_module: Mapping[str, Any] = vars(import_module("tosa_serializer"))

make_serializer: Callable[..., Serializer] = _module["TosaSerializer"]
make_attribute: Callable[[], Attribute] = _module["TosaSerializerAttribute"]
make_location: Callable[[str], object] = _module["TosaOpLocation"]

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
