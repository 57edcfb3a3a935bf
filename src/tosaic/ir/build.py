"""The builder: collects ops in order, infers their types by their definitions, and keeps each constant once."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from tosaic.ir.definition import OpDef
from tosaic.ir.encode import encode
from tosaic.ir.graph import Array, Attr, DType, Graph, Op, Type, Value
from tosaic.ir.ops_const import CONST, CONST_SHAPE


class Builder:
    """Makes one graph. `origin` is stamped on every op emitted while it is set."""

    def __init__(self, origin: tuple[str, ...] = ()) -> None:
        self.origin = origin
        self._inputs: list[Value] = []
        self.ops: list[Op] = []
        self._constants: dict[tuple[DType, tuple[int, ...], int], list[Value]] = {}

    def input(self, type: Type) -> Value:
        value = Value(type)
        self._inputs.append(value)
        return value

    def emit(self, definition: OpDef, inputs: Sequence[Value], **attrs: Attr) -> tuple[Value, ...]:
        """Append one op; attributes that are not given have their defaults. Raise Invalid if the op is wrong."""
        op = Op(definition, tuple(inputs), (), definition.complete(attrs), self.origin)
        op.outputs = tuple(Value(type, op) for type in definition.infer_types(op))
        self.ops.append(op)
        return op.outputs

    def const(self, data: Array, dtype: DType) -> Value:
        """Make a CONST of these numbers; equal constants are one value."""
        return self._keep(CONST, encode(data, dtype), dtype)

    def number(self, number: float, like: Value, dtype: DType) -> Value:
        """Make a CONST of one number that broadcasts over a value."""
        return self.const(np.full((1,) * like.rank, number, np.float64 if dtype.is_float else np.int64), dtype)

    def const_shape(self, values: Sequence[int]) -> Value:
        """Make a CONST_SHAPE of these numbers; equal lists are one value."""
        return self._keep(CONST_SHAPE, np.array(values, dtype=np.int64), DType.SHAPE)

    def zero_point(self, value: int, dtype: DType, *, unsigned: bool = False) -> Value:
        """Make a zero point operand: one number of the tensor's dtype (an unsigned one by its bit pattern)."""
        if unsigned and dtype in (DType.I8, DType.I16):
            bits = 8 if dtype is DType.I8 else 16
            value = value - (1 << bits) if value >= 1 << (bits - 1) else value
        return self.const(np.array([value], dtype=np.int64), dtype)

    def finish(self, outputs: Sequence[Value]) -> Graph:
        return Graph(list(self._inputs), list(outputs), list(self.ops))

    def _keep(self, definition: OpDef, data: Array, dtype: DType) -> Value:
        raw = data.reshape(-1).view(np.uint8)
        same = self._constants.setdefault((dtype, data.shape, crc32(raw.data)), [])
        for value in same:
            if value.data is not None and np.array_equal(value.data.reshape(-1).view(np.uint8), raw):
                return value
        (value,) = self.emit(definition, (), type=Type(dtype, data.shape), data=data)
        same.append(value)
        return value
