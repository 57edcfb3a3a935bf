"""Constants. They are separate from the other operators because the builder itself makes them."""

from __future__ import annotations

import numpy as np

from tosaic.core.errors import Invalid
from tosaic.ir.definition import ANY_FLOAT, Attribute, Field, OpDef, allow
from tosaic.ir.graph import NUMPY, DType, Op, Type

TYPE, DATA = Attribute("type", Field.TYPE), Attribute("data", Field.DATA)
#: The rows of an operator that only holds numbers.
HOLDS = ("bool, i8, i16, i32: INT | FP", "i4: int4", "i48: int16", *ANY_FLOAT)
#: TOSA excludes -8 from int4 so that weights are symmetric.
_LARGEST = {DType.I4: 7, DType.I48: (1 << 47) - 1}


def infer_held_type(op: Op) -> Type:
    """Return the type of a constant or variable; raise Invalid unless its data is of that type."""
    data, expected = op.data, op.get("type", Type)
    if data is None:
        return expected
    if data.shape != expected.shape or data.dtype != NUMPY[expected.dtype]:
        raise Invalid(f"data is {data.dtype}{list(data.shape)}, which does not hold {expected}")
    largest = _LARGEST.get(expected.dtype)
    if largest is not None and bool((np.abs(data.astype(np.int64)) > largest).any()):
        raise Invalid(f"a value is outside the range of {expected.dtype.value}")
    return expected


def _infer_const(op: Op) -> Type:
    if op.get("type", Type).dtype is DType.SHAPE:
        raise Invalid("a shape is held by CONST_SHAPE")
    return infer_held_type(op)


CONST = OpDef("CONST", (), (TYPE, DATA), infer=_infer_const, legal=allow("out", *HOLDS), constant=True)


def _infer_const_shape(op: Op) -> Type:
    declared = op.get("type", Type)
    if declared.dtype is not DType.SHAPE or declared.rank != 1:
        raise Invalid(f"must be a list of shape numbers, not {declared}")
    return infer_held_type(op)


CONST_SHAPE = OpDef(
    "CONST_SHAPE", (), (TYPE, DATA), infer=_infer_const_shape, legal=allow("", ": INT | FP"), constant=True
)
