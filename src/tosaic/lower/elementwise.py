"""Operands of elementwise operators, operators of plain integers, and the larger or smaller of two numbers."""

from __future__ import annotations

from tosaic.ir import ops as tosa
from tosaic.ir.graph import NUMPY, DType
from tosaic.ir.qparams import accumulator
from tosaic.lower import arithmetic as arith
from tosaic.lower import movement
from tosaic.lower.arguments import Operand, operand
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Const, Tensor, with_value


def match_operands(lo: Lowering, a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """Convert two operands to tensors; a Python number takes the dtype of the other one."""
    tensors = [t for t in (a, b) if isinstance(t, Tensor)]
    like = next((t for t in tensors if not t.is_const), tensors[-1])
    return operand(lo, a, like), operand(lo, b, like)


#: integer types, from narrow to wide
_WIDTHS = (DType.BOOL, DType.I8, DType.I16, DType.I32)


def promote(lo: Lowering, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Convert plain integers of two types to the wider one, as torch does; return any others unchanged."""
    if x.q is not None or y.q is not None or x.dtype not in _WIDTHS or y.dtype not in _WIDTHS:
        return x, y
    wider = max(x.dtype, y.dtype, key=_WIDTHS.index)
    return _cast(lo, x, wider), _cast(lo, y, wider)


def _cast(lo: Lowering, t: Tensor, dtype: DType) -> Tensor:
    if t.dtype is dtype:
        return t
    if isinstance(t, Const):
        return Const(t.array.astype(NUMPY[dtype]), dtype)
    return with_value(t, tosa.cast(lo.b, t.value, dtype))


def take_extreme(lo: Lowering, a: Operand, b: Operand, build: arith.Binary) -> Tensor:
    """Take the larger or smaller of two: rounding keeps order, so both are compared at the result's qparams."""
    x, y = match_operands(lo, a, b)
    if x.q is None and y.q is None:
        return arith.build_binary(lo, arith.in_int32(lo, build), *promote(lo, x, y))
    q = lo.out_q()
    (u, v), view = lo.align(movement.requantize(lo, x, q), movement.requantize(lo, y, q))
    wide = [lo.rescale(w, DType.I32, [1.0], q.zp) for w in (u, v)]
    return with_value(view, build(lo.b, wide[0], wide[1]), accumulator((q.s,)))
