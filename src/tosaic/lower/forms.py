"""Short forms for records of plain operators: elementwise functions of one or two operands, and data movement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

from tosaic.ir.build import Builder
from tosaic.ir.graph import Value
from tosaic.lower.arguments import unary
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Fields, NormStep, add, op, with_inplace
from tosaic.lower.samples import Sample
from tosaic.lower.tensor import Stored, Tensor, is_int16

_Function = TypeVar("_Function", bound=Callable[..., Any])


def unop(
    name: str,
    build: Callable[[Builder, Value], Value],
    samples: Callable[[], Sequence[Sample]],
    int16: Callable[[Lowering, Stored], Stored] | None = None,
    *,
    is_steep: bool = False,
    in_norm: NormStep | None = None,
) -> None:
    """Register an elementwise operator that is one TOSA operator in float, and a TABLE in int8.

    `int16` is its lowering for quantized values of 16 bits, if that is better than a table.
    """

    def lower(lo: Lowering, self: Tensor) -> Tensor:
        return int16(lo, self) if int16 is not None and is_int16(self) else unary(lo, build, self)

    fields = Fields(pointwise=True, computes_int16=int16 is not None, is_steep=is_steep, samples=samples)
    if in_norm is not None:
        fields["in_norm"] = in_norm
    add(name, *with_inplace(f"{name}.default"), beside=samples, lower=lower, **fields)


def pointwise(name: str, **fields: Unpack[Fields]) -> Callable[[_Function], _Function]:
    """Register the decorated function as the lowering of an elementwise operator of one tensor."""
    return op(name, *with_inplace(f"{name}.default"), **{**fields, "pointwise": True})


def binop(name: str, *, inplace: bool = True, **fields: Unpack[Fields]) -> Callable[[_Function], _Function]:
    """Register the decorated function as the lowering of an elementwise operator of two tensors, or one and a number.

    With `inplace` the in-place overloads are registered too.
    """
    overloads = (f"{name}.Tensor", f"{name}.Scalar")
    return op(name, *(with_inplace(*overloads) if inplace else overloads), **{**fields, "pointwise": True})


def data_movement(name: str, *overloads: str, **fields: Unpack[Fields]) -> Callable[[_Function], _Function]:
    """Register the decorated function as the lowering of an operator that moves data without changing it."""
    return op(name, *overloads, **{**fields, "quant": "share", "moves": True})
