"""Tensors that take only their shape from another one: copy, fill."""

from __future__ import annotations

from tosaic.lower import movement
from tosaic.lower.aten import Aten, T
from tosaic.lower.constraints import describe
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint
from tosaic.lower.samples import call, f32, i32, torch
from tosaic.lower.tensor import Tensor


def _expand(
    aten: Aten[T], self: T, src: T | None = None, value: T | None = None, non_blocking: bool = False
) -> T | None:
    """Write it as a broadcast, so that the range of a tensor whose numbers are not used is not measured."""
    given = value if src is None else src
    if given is None or not aten.same_dtype(self, given):
        return None
    shape = aten.shape(self)
    return given if aten.shape(given) == shape else aten("expand.default", given, list(shape))


def _check_dtype(lo: Lowering, a: Arguments) -> str:
    x, y = a["self"], a.get("src", a.get("value"))
    return "" if x.dtype is y.dtype or y.q is not None else f"it is from {describe(y)} to {describe(x)}"


@data_movement(
    "copy",
    "copy.default",
    "fill.Tensor",
    constraints=[Constraint("a copy keeps the dtype", _check_dtype, "cast the tensor that is copied first")],
    decompose=_expand,
    samples=lambda: [
        call(lambda x: torch.ops.aten.copy(torch.zeros(2, 3, 4), x + 1.0), f32(3, 4)),
        call(lambda x: torch.ops.aten.copy(torch.ones(1, 17), x) * 2.0, f32(1, 17)),
        call(lambda x, y: torch.ops.aten.copy(y, x) + y, f32(3, 1, 2), f32(3, 64, 2)),
        call(lambda x: torch.ops.aten.copy(torch.zeros(2, 3).int(), x + 1), i32(3)),
        call(lambda x: x + torch.ops.aten.fill(x, torch.tensor(0.5)), f32(3, 4)),
        call(lambda x: x * torch.ops.aten.fill(x, x.amax()), f32(1, 17)),
    ],
)
def copy(
    lo: Lowering, self: Tensor, src: Tensor | None = None, value: Tensor | None = None, non_blocking: bool = False
) -> Tensor:
    given = value if src is None else src
    assert given is not None
    return movement.expand(lo, movement.require_movable(lo, given), self.shape)
