"""Operands of elementwise operators, and the larger or smaller of two."""

from __future__ import annotations

from typing import Any

from tosaic.ir.graph import DType
from tosaic.ir.qparams import accumulator
from tosaic.lower import arithmetic as arith
from tosaic.lower import movement
from tosaic.lower.arguments import operand
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Tensor, with_value


def match_operands(lo: Lowering, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Convert two operands to tensors; a Python number takes the dtype of the other one."""
    like = a if isinstance(a, Tensor) and not (a.is_const and isinstance(b, Tensor)) else b
    return operand(lo, a, like), operand(lo, b, like)


def take_extreme(lo: Lowering, a: Any, b: Any, build: arith.Binary) -> Tensor:
    """Take the larger or smaller of two: rounding keeps order, so both are compared at the result's qparams."""
    x, y = match_operands(lo, a, b)
    if x.q is None and y.q is None:
        return arith.build_binary(lo, build, x, y)
    q = lo.out_q()
    (u, v), view = lo.align(movement.requantize(lo, x, q), movement.requantize(lo, y, q))
    wide = [lo.rescale(w, DType.I32, [1.0], q.zp) for w in (u, v)]
    return with_value(view, build(lo.b, wide[0], wide[1]), accumulator((q.s,)))
