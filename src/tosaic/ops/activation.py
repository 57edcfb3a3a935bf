"""Activations: bounds (relu, relu6, clamp), curves (sigmoid, silu, gelu ...), prelu, softmax and log_softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import NUMPY, RANGES, DType
from tosaic.lower import arithmetic as arith
from tosaic.lower.arguments import unary
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import composite, op
from tosaic.lower.samples import F, Sample, call, f32, i32, module, nn, torch
from tosaic.lower.tensor import Const, Tensor, with_value
from tosaic.ops.elementwise import extreme
from tosaic.ops.norm import affine


def bounded(lo: Lowering, x: Tensor, low: float, high: float) -> Tensor:
    """x held between two numbers: pending on an accumulator or 16 bits, CLAMP elsewhere."""
    if isinstance(x, Const):
        raise Unsupported("its input is a constant")
    if x.is_accumulator or (x.q is not None and x.dtype is DType.I16 and x.q.zp == 0):
        old = x.clamp or (-math.inf, math.inf)
        return replace(x, clamp=(min(max(old[0], low), high), max(min(old[1], high), low)))
    if x.q is not None:
        lo.codes(x)
    if x.is_float:
        return with_value(x, tosa.clamp(lo.b, x.value, low, high))
    least, most = RANGES[x.dtype]
    value = x.value
    # TOSA has no CLAMP of int32.
    for bound, build in ((low, tosa.maximum), (high, tosa.minimum)):
        if math.isfinite(bound):
            number = np.full((1,) * value.rank, np.clip(bound, least, most), NUMPY[x.dtype])
            value = build(lo.b, value, lo.constant(number, x.dtype))
    return with_value(x, value)


def _times(lo: Lowering, x: Tensor, factor: float) -> Tensor:
    return arith.product(lo, x, lo.scalar(factor, x))


def _plus(lo: Lowering, x: Tensor, addend: float) -> Tensor:
    return arith.total(lo, x, lo.scalar(addend, x))


def _samples_bound(function: Callable[[Any], Any]) -> list[Sample]:
    return [
        call(function, f32(9)),
        call(function, f32(3, 17, 4, 4, low=-8.0, high=8.0)),
        call(lambda x, y: function(x + y), f32(1, 3, 5, 5), f32(1, 3, 5, 5)),
        call(function, f32(2, 3, low=-8.0, high=-1.0)),
    ]


@op(
    "relu",
    "aten.relu.default",
    "aten.relu_.default",
    pointwise=True,
    bounds=True,
    samples=lambda: [
        *_samples_bound(lambda x: torch.relu(x)),
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True)), f32(1, 3, 8, 8)),
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()), f32(1, 3, 8, 8)),
    ],
)
def relu(lo: Lowering, self: Tensor) -> Tensor:
    return bounded(lo, self, 0.0, math.inf)


@op(
    "relu6",
    "aten.relu6.default",
    "aten.relu6_.default",
    pointwise=True,
    bounds=True,
    samples=lambda: _samples_bound(lambda x: F.relu6(x)),
)
def relu6(lo: Lowering, self: Tensor) -> Tensor:
    return bounded(lo, self, 0.0, 6.0)


@op(
    "hardtanh",
    "aten.hardtanh.default",
    "aten.hardtanh_.default",
    pointwise=True,
    bounds=True,
    samples=lambda: [
        *_samples_bound(lambda x: F.hardtanh(x)),
        call(lambda x: F.hardtanh(x, -0.5, 1.25), f32(4, 4)),
        call(lambda x: F.hardtanh(x, 0.0, 6.0, inplace=True), f32(4, 4, low=-8.0, high=8.0)),
    ],
)
def hardtanh(lo: Lowering, self: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return bounded(lo, self, float(min_val), float(max_val))


@op(
    "clamp",
    "aten.clamp.default",
    "aten.clamp_.default",
    "aten.clamp_min.default",
    "aten.clamp_max.default",
    pointwise=True,
    bounds=True,
    samples=lambda: [
        *_samples_bound(lambda x: x.clamp(-0.75, 1.5)),
        call(lambda x: x.clamp(min=0.25), f32(5, 5)),
        call(lambda x: x.clamp(max=0.25), f32(5, 5)),
        call(lambda x: torch.clamp_min(x, 0.5), f32(5, 5)),
        call(lambda x: x.clamp(-7, 20), i32(3, 3)),
    ],
)
def clamp(lo: Lowering, self: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    return bounded(lo, self, -math.inf if min is None else float(min), math.inf if max is None else float(max))


@op(
    "sigmoid",
    "aten.sigmoid.default",
    "aten.sigmoid_.default",
    pointwise=True,
    samples=lambda: _samples_bound(lambda x: torch.sigmoid(x)),
)
def sigmoid(lo: Lowering, self: Tensor) -> Tensor:
    return unary(lo, tosa.sigmoid, self)


@op(
    "tanh",
    "aten.tanh.default",
    "aten.tanh_.default",
    pointwise=True,
    samples=lambda: _samples_bound(lambda x: torch.tanh(x)),
)
def tanh(lo: Lowering, self: Tensor) -> Tensor:
    return unary(lo, tosa.tanh, self)


@op(
    "gelu",
    "aten.gelu.default",
    "aten.gelu_.default",
    pointwise=True,
    samples=lambda: [
        *_samples_bound(lambda x: F.gelu(x)),
        call(lambda x: F.gelu(x, approximate="tanh"), f32(3, 7, low=-4.0, high=4.0)),
    ],
)
def gelu(lo: Lowering, self: Tensor, approximate: str = "none") -> Tensor:
    if self.q is not None:
        lo.codes(self)

    if approximate == "tanh":
        cube = arith.product(lo, arith.product(lo, self, self), self)
        inner = _times(lo, arith.total(lo, self, _times(lo, cube, 0.044715)), math.sqrt(2.0 / math.pi))
        curve = unary(lo, tosa.tanh, inner)
    else:
        curve = unary(lo, tosa.erf, _times(lo, self, math.sqrt(0.5)))
    return arith.product(lo, _times(lo, self, 0.5), _plus(lo, curve, 1.0))


@op(
    "silu",
    "aten.silu.default",
    "aten.silu_.default",
    pointwise=True,
    samples=lambda: [
        *_samples_bound(lambda x: F.silu(x)),
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(inplace=True)), f32(1, 3, 8, 8)),
    ],
)
def silu(lo: Lowering, self: Tensor) -> Tensor:
    return arith.product(lo, self, unary(lo, tosa.sigmoid, self))


@op(
    "hardsigmoid",
    "aten.hardsigmoid.default",
    "aten.hardsigmoid_.default",
    pointwise=True,
    samples=lambda: _samples_bound(lambda x: F.hardsigmoid(x)),
)
def hardsigmoid(lo: Lowering, self: Tensor) -> Tensor:
    return bounded(lo, _plus(lo, _times(lo, self, 1.0 / 6.0), 0.5), 0.0, 1.0)


@op(
    "hardswish",
    "aten.hardswish.default",
    "aten.hardswish_.default",
    pointwise=True,
    samples=lambda: [
        *_samples_bound(lambda x: F.hardswish(x)),
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardswish(inplace=True)), f32(1, 3, 8, 8)),
    ],
)
def hardswish(lo: Lowering, self: Tensor) -> Tensor:
    return arith.product(lo, self, hardsigmoid(lo, self))


@op(
    "leaky_relu",
    "aten.leaky_relu.default",
    "aten.leaky_relu_.default",
    pointwise=True,
    samples=lambda: [
        *_samples_bound(lambda x: F.leaky_relu(x)),
        call(lambda x: F.leaky_relu(x, 0.2), f32(1, 64, 2, 2)),
        call(lambda x: F.leaky_relu(x, 1.5, inplace=True), f32(4, 5)),
    ],
)
def leaky_relu(lo: Lowering, self: Tensor, negative_slope: float = 0.01) -> Tensor:
    below = _times(lo, bounded(lo, self, -math.inf, 0.0), float(negative_slope))
    return arith.total(lo, bounded(lo, self, 0.0, math.inf), below)


@op(
    "elu",
    "aten.elu.default",
    "aten.elu_.default",
    pointwise=True,
    samples=lambda: [
        *_samples_bound(lambda x: F.elu(x)),
        call(lambda x: F.elu(x, 0.5), f32(1, 64, 2, 2)),
        call(lambda x: torch.ops.aten.elu(x, 1.6732632, 1.0507009, 0.75), f32(4, 5)),
    ],
)
def elu(lo: Lowering, self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    # Without the bound, exp of a large number would be infinite, and infinity times zero is not a number.
    power = unary(lo, tosa.exp, _times(lo, bounded(lo, self, -math.inf, 0.0), float(input_scale)))
    below = _times(lo, _plus(lo, power, -1.0), float(alpha) * float(scale))
    return arith.total(lo, _times(lo, bounded(lo, self, 0.0, math.inf), float(scale)), below)


def _slope_shape(slopes: Sequence[int], rank: int) -> list[int]:
    """The shape that puts slopes along dimension 1; the decomposed form has them there already."""
    return list(slopes) if len(slopes) != 1 or rank < 2 else [slopes[0], *(1,) * (rank - 2)]


def _slopes(count: int, steepest: float = 1.25) -> Any:
    """Used by samples: a PReLU with slopes of both signs, by default some above one."""
    layer = nn.PReLU(count)
    for i in range(count):
        layer.weight.data[i] = steepest * math.cos(1.0 + i)
    return layer


@op(
    "prelu",
    "aten.prelu.default",
    "aten._prelu_kernel.default",
    quant="exact",
    pointwise=True,
    samples=lambda: [
        module(lambda: nn.PReLU(), f32(1, 3, 4, 4)),
        module(lambda: _slopes(17), f32(3, 17, 4, 4)),
        module(lambda: _slopes(64), f32(1, 64)),
        module(lambda: _slopes(3), f32(2, 3, 5, low=-30.0, high=1.0)),
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), _slopes(8)), f32(1, 3, 6, 6)),
        module(lambda: _slopes(1), f32(9)),
        module(lambda: _slopes(5, 0.5), f32(1, 5, 4, 4)),
        module(lambda: _slopes(3), f32(1, 3, 2, 2, 2)),
    ],
)
def prelu(lo: Lowering, self: Tensor, weight: Tensor) -> Tensor:
    """max(x, slope * x), and min for slopes above 1, rounded once; one slope for all is a table."""
    if self.q is None:
        slopes = lo.reshape(weight, _slope_shape(weight.shape, self.rank))
        below = arith.product(lo, bounded(lo, self, -math.inf, 0.0), slopes)
        return arith.total(lo, bounded(lo, self, 0.0, math.inf), below)
    x = lo.codes(self)
    if not isinstance(weight, Const):
        raise Unsupported("its slopes are not constants", "use a parameter or buffer as weight")
    q, xq = lo.out_q(), x.qparams
    slopes = weight.real().reshape(-1)
    steep = slopes > 1
    result = x
    if steep.any():
        lowered = affine(lo, x, np.where(steep, slopes, 1.0), np.zeros(len(slopes)))
        result = extreme(lo, result, lowered, tosa.minimum)
    if not steep.all():
        # A steep channel is finished: the other side is moved below all that the result can be.
        aside = (q.qmin - q.zp) * q.s - (xq.qmax - xq.zp) * xq.s
        other = affine(lo, x, np.where(steep, 1.0, slopes), np.where(steep, aside, 0.0))
        result = extreme(lo, result, other, tosa.maximum)
    return result


#: what is so low before a softmax is left out of it
_HIDDEN = -1e4


def softmax_of(aten: Any, x: Any, dim: int, keep: Any = None, alive: Any = None, dead: Any = None) -> Any:
    """exp(x - max) over its sum. `keep` (booleans, or ones and zeros) leaves elements out, a mask before it too.

    A row that is left out as a whole is zero: `alive` is 0 for it and `keep` takes all of it, or `dead` is 1 for it.
    """
    x, hide = unmasked(aten, x, dim)
    powers = aten("exp.default", aten("sub.Tensor", x, aten("amax.default", x, [dim], True)))
    if keep is not None and aten.is_bool(keep):
        powers = aten("where.ScalarOther", keep, powers, 0.0)
    elif keep is not None:
        powers = aten("mul.Tensor", powers, keep)
    if hide is not None:
        powers = hide(powers)
    total = aten("sum.dim_IntList", powers, [dim], True)
    if dead is not None:
        total = aten("add.Tensor", total, dead)
    factor = aten("reciprocal.default", total)
    if alive is not None:
        factor = aten("mul.Tensor", factor, alive)
    return aten("mul.Tensor", powers, factor)


def unmasked(aten: Any, x: Any, dim: int) -> tuple[Any, Callable[[Any], Any] | None]:
    """Scores without the mask that makes some of them very low, and what hides these after the exponential.

    Codes have no infinity: it would become the lowest score that was seen, which is not nothing. Rows that finite
    numbers hide as a whole are left as they are in torch.
    """
    args: list[Any] = list(getattr(x, "args", []))
    name = str(getattr(x, "target", ""))
    if name == "aten.add.Tensor" and not x.kwargs:
        data = aten.data(args[1]) if hasattr(args[1], "op") else None
        if data is not None and bool((data <= _HIDDEN).any()):
            return _without(aten, args[0], _align(data, aten.shape(x)), dim)
    found = _find_fill(aten, name, args)
    if found is None or found[3] > _HIDDEN:
        return x, None
    scores, condition, hides, fill = found
    mask = aten.data(condition) if math.isfinite(fill) else None
    if mask is not None:
        hidden = _align(mask if hides else ~mask, aten.shape(x))
        whole = hidden.all(dim, keepdims=True)
        if whole.any():
            seen = _as_float(aten, ~hidden | whole)
            return aten("mul.Tensor", scores, _as_float(aten, ~whole)), lambda powers: aten("mul.Tensor", powers, seen)
    if hides:
        return scores, lambda powers: aten("masked_fill.Scalar", powers, condition, 0.0)
    return scores, lambda powers: aten("where.ScalarOther", condition, powers, 0.0)


def _find_fill(aten: Any, name: str, args: Sequence[Any]) -> tuple[Any, Any, bool, float] | None:
    """The scores, the condition, whether it is true for what is hidden, and the highest number put there instead."""
    if name == "aten.masked_fill.Scalar":
        return args[0], args[1], True, float(args[2])
    if name == "aten.where.ScalarOther":
        return args[1], args[0], False, float(args[2])
    if name == "aten.where.ScalarSelf":
        return args[2], args[0], True, float(args[1])
    if name in ("aten.where.self", "aten.masked_fill.Tensor"):
        scores, condition = (args[1], args[0]) if name == "aten.where.self" else (args[0], args[1])
        for other, kept, hides in ((args[2], scores, name != "aten.where.self"), (args[1], args[2], True)):
            data = aten.data(other)
            if data is not None and data.dtype.kind == "f":
                return kept, condition, hides, float(data.max())
    return None


def _align(data: Any, shape: Sequence[int]) -> Any:
    """A constant with as many dimensions as what it is broadcast with."""
    return data.reshape((1,) * (len(shape) - data.ndim) + data.shape)


def _as_float(aten: Any, flags: Any) -> Any:
    return aten.constant(flags.astype(np.float32))


def _without(aten: Any, scores: Any, data: Any, dim: int) -> tuple[Any, Callable[[Any], Any] | None]:
    """The same for a mask that is added. In a row that is hidden as a whole, only differences count."""
    most = data.max(dim, keepdims=True)
    whole = (most <= _HIDDEN) & np.isfinite(most)
    data = np.where(whole, data - np.where(whole, most, 0.0), data)
    seen = data > _HIDDEN
    rest = np.where(seen, data, 0.0).astype(np.float32)
    # Float32 has no room for a score beside such a number.
    lost = whole & (np.spacing(np.abs(np.where(whole, most, 0.0)).astype(np.float32)) >= 1.0)
    if lost.any():
        scores = aten("mul.Tensor", scores, _as_float(aten, ~lost))
    if rest.any():
        scores = aten("add.Tensor", scores, aten.constant(rest))
    return scores, None if seen.all() else lambda powers: aten("mul.Tensor", powers, _as_float(aten, seen))


def _expand_softmax(aten: Any, self: Any, dim: int, **_: Any) -> Any:
    return softmax_of(aten, self, dim)


composite(
    "softmax",
    "aten.softmax.int",
    "aten._softmax.default",
    "aten._safe_softmax.default",
    expand=_expand_softmax,
    samples=lambda: [
        call(lambda x: torch.softmax(x, -1), f32(2, 10)),
        call(lambda x: torch.softmax(x, 1), f32(3, 17)),
        call(lambda x: torch.softmax(x, 1), f32(1, 3, 4, 4)),
        call(lambda x: torch.softmax(x, 0), f32(5)),
        call(lambda x: F.softmax(x, dim=-2), f32(2, 4, 6)),
        call(lambda x: F.softmax(x, dim=-1, dtype=torch.float32), f32(2, 6)),
        call(lambda x: torch.softmax(x, -1), f32(2, 8, low=-20.0, high=20.0)),
        call(lambda x: torch.softmax(x.masked_fill(_causal(5), -math.inf), -1), f32(2, 5, 5)),
        call(lambda x: torch.softmax(torch.where(_causal(5), -1e9, x), -1), f32(1, 3, 5, 5)),
        call(lambda x: torch.softmax(torch.where(~_causal(5), x, -1e9), -1), f32(5, 5)),
        call(lambda x: torch.softmax(x + torch.zeros(4, 4).masked_fill(_causal(4), -math.inf), -1), f32(3, 4, 4)),
        call(lambda x: torch.softmax(x.masked_fill(x > 1.0, -math.inf), -1), f32(3, 17)),
    ],
)


def _causal(size: int) -> Any:
    """Used by samples: a constant mask of what lies ahead."""
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def _expand_log_softmax(aten: Any, self: Any, dim: int, **_: Any) -> Any:
    shifted = aten("sub.Tensor", self, aten("amax.default", self, [dim], True))
    total = aten("sum.dim_IntList", aten("exp.default", shifted), [dim], True)
    return aten("sub.Tensor", shifted, aten("log.default", total))


composite(
    "log_softmax",
    "aten.log_softmax.int",
    "aten._log_softmax.default",
    expand=_expand_log_softmax,
    samples=lambda: [
        call(lambda x: torch.log_softmax(x, -1), f32(2, 10)),
        call(lambda x: torch.log_softmax(x, 1), f32(3, 17)),
        call(lambda x: torch.log_softmax(x, 1), f32(1, 64, 2, 2)),
        call(lambda x: torch.log_softmax(x, 0), f32(5)),
        call(lambda x: F.log_softmax(x, dim=-2, dtype=torch.float32), f32(2, 4, 6)),
        call(lambda x: torch.log_softmax(x, -1), f32(2, 8, low=-20.0, high=20.0)),
    ],
)
