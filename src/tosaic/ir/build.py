"""The builder: collects ops in order, infers their types by RULES, and keeps each constant once."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np

from tosaic.core.errors import Invalid
from tosaic.ir.encode import encode
from tosaic.ir.graph import Array, Attr, DType, Graph, Op, Type, Value
from tosaic.ir.rules import RULES


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

    def emit(self, kind: str, inputs: Sequence[Value], **attrs: Attr) -> tuple[Value, ...]:
        """Append one op; its output types come from its rule, which raises Invalid if the op is wrong."""
        if kind not in RULES:
            raise Invalid(f"{kind} is no TOSA 1.0 operator")
        outputs = tuple(Value(type) for type in RULES[kind](inputs, attrs))
        op = Op(kind, tuple(inputs), outputs, attrs, self.origin)
        for value in outputs:
            value.op = op
        self.ops.append(op)
        return outputs

    def const(self, data: Array, dtype: DType) -> Value:
        """A CONST of these numbers; equal constants are one value."""
        return self._keep("CONST", encode(data, dtype), dtype)

    def const_shape(self, values: Sequence[int]) -> Value:
        """A CONST_SHAPE of these numbers; equal lists are one value."""
        return self._keep("CONST_SHAPE", np.array(values, dtype=np.int64), DType.SHAPE)

    def hole(self, type: Type) -> Value:
        """A constant whose numbers are not known yet: for dry runs, where only types matter."""
        return self.emit("CONST", (), type=type, data=None)[0]

    def finish(self, outputs: Sequence[Value]) -> Graph:
        return Graph(list(self._inputs), list(outputs), list(self.ops))

    def _keep(self, kind: str, data: Array, dtype: DType) -> Value:
        raw = data.reshape(-1).view(np.uint8)
        same = self._constants.setdefault((dtype, data.shape, crc32(raw.data)), [])
        for value in same:
            if value.data is not None and np.array_equal(value.data.reshape(-1).view(np.uint8), raw):
                return value
        (value,) = self.emit(kind, (), type=Type(dtype, data.shape), data=data)
        same.append(value)
        return value
