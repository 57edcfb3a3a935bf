"""Activations: bounds (relu, relu6, clamp), curves (sigmoid, silu, gelu ...) and prelu."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import RANGES, DType
from tosaic.ir.qparams import accumulator
from tosaic.lower import arithmetic as arith
from tosaic.lower import convolution, elementwise, movement
from tosaic.lower.arguments import unary
from tosaic.lower.forms import pointwise, unop
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op, with_inplace
from tosaic.lower.samples import F, Sample, call, f32, i8, i16, i32, module, nn, torch
from tosaic.lower.tensor import Const, Tensor, with_value


def bound(lo: Lowering, x: Tensor, low: float, high: float) -> Tensor:
    """Clamp x between two numbers: pending on an accumulator or 16 bits, CLAMP elsewhere."""
    if isinstance(x, Const):
        raise Unsupported("its input is a constant")
    if x.is_accumulator or (x.q is not None and x.dtype is DType.I16 and x.q.zp == 0):
        old = x.clamp or (-math.inf, math.inf)
        return replace(x, clamp=(min(max(old[0], low), high), max(min(old[1], high), low)))
    if x.q is not None:
        lo.require_quantized(x)
    if x.is_float:
        return with_value(x, tosa.clamp(lo.b, x.value, low, high))
    least, most = RANGES[x.dtype]
    value = arith.to_int32(lo.b, x.value)
    # TOSA has no CLAMP of int32.
    for bound, build in ((low, tosa.maximum), (high, tosa.minimum)):
        if math.isfinite(bound):
            number = np.full((1,) * value.rank, np.clip(bound, least, most), np.int32)
            value = build(lo.b, value, lo.constant(number, DType.I32))
    return with_value(x, value if value.dtype is x.dtype else tosa.cast(lo.b, value, x.dtype))


def _multiply(lo: Lowering, x: Tensor, factor: float) -> Tensor:
    return arith.multiply(lo, x, lo.scalar(factor, x))


def _add(lo: Lowering, x: Tensor, addend: float) -> Tensor:
    return arith.add(lo, x, lo.scalar(addend, x))


def _samples_bound(function: Callable[[Any], Any]) -> list[Sample]:
    return [
        call(function, f32(9)),
        call(function, f32(3, 17, 4, 4, low=-8.0, high=8.0)),
        call(lambda x, y: function(x + y), f32(1, 3, 5, 5), f32(1, 3, 5, 5)),
        call(function, f32(2, 3, low=-8.0, high=-1.0)),
    ]


@pointwise(
    "relu",
    bounds=True,
    computes_int16=True,
    samples=lambda: [
        *_samples_bound(lambda x: torch.relu(x)),
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True)), f32(1, 3, 8, 8)),
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()), f32(1, 3, 8, 8)),
    ],
)
def relu(lo: Lowering, self: Tensor) -> Tensor:
    return bound(lo, self, 0.0, math.inf)


@pointwise(
    "relu6",
    bounds=True,
    computes_int16=True,
    samples=lambda: _samples_bound(lambda x: F.relu6(x)),
)
def relu6(lo: Lowering, self: Tensor) -> Tensor:
    return bound(lo, self, 0.0, 6.0)


@pointwise(
    "hardtanh",
    bounds=True,
    reads_int16=True,
    computes_int16=True,
    samples=lambda: [
        *_samples_bound(lambda x: F.hardtanh(x)),
        call(lambda x: F.hardtanh(x, -0.5, 1.25), f32(4, 4)),
        call(lambda x: F.hardtanh(x, 0.0, 6.0, inplace=True), f32(4, 4, low=-8.0, high=8.0)),
    ],
)
def hardtanh(lo: Lowering, self: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return bound(lo, self, float(min_val), float(max_val))


@op(
    "clamp",
    *with_inplace("clamp.default"),
    "clamp_min.default",
    "clamp_max.default",
    pointwise=True,
    bounds=True,
    computes_int16=True,
    samples=lambda: [
        *_samples_bound(lambda x: x.clamp(-0.75, 1.5)),
        call(lambda x: x.clamp(min=0.25), f32(5, 5)),
        call(lambda x: x.clamp(max=0.25), f32(5, 5)),
        call(lambda x: torch.clamp_min(x, 0.5), f32(5, 5)),
        call(lambda x: x.clamp(-7, 20), i32(3, 3)),
        call(lambda x: x.clamp(-7, 100), i8(3, 17)),
        call(lambda x: x.clamp(min=-7), i16(3, 3)),
    ],
)
def clamp(lo: Lowering, self: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    return bound(lo, self, -math.inf if min is None else float(min), math.inf if max is None else float(max))


@op(
    "clamp_tensor",
    *with_inplace("clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor"),
    pointwise=True,
    computes_int16=True,
    samples=lambda: [
        call(lambda x, y, z: torch.clamp(x, y, z), f32(3, 17), f32(3, 17, low=-2.0, high=0.0), f32(17, low=0.0)),
        call(lambda x, y: torch.clamp(x, min=y), f32(1, 3, 4, 4), f32(3, 1, 1)),
        call(lambda x, y: torch.clamp(x, max=y), f32(1, 5), f32(3, 5, low=-20.0, high=1.0)),
        call(lambda x, y: torch.clamp(x, y, x), f32(2, 64), f32(2, 64)),
        call(lambda x: torch.clamp(x, torch.tensor(-0.5), torch.linspace(0.0, 1.0, 5)), f32(3, 5)),
        call(lambda x: torch.clamp_min(x, torch.full((1, 5), 0.25)) * 2.0, f32(3, 5)),
        call(lambda x, y: torch.clamp_max(x, y), f32(3, 5), f32(5)),
        call(lambda x, y, z: torch.clamp(x, y, z), i32(3, 5), i32(3, 5, low=-50, high=0), i32(1, 5, low=-9, high=50)),
        call(lambda x, y: torch.clamp(x, min=y), i8(3, 5), i8(5)),
    ],
)
def clamp_tensor(lo: Lowering, self: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """Lower to MAXIMUM and MINIMUM: rounding keeps order, so quantized tensors are compared at the result's qparams."""
    bounds = [(b, build) for b, build in ((min, tosa.maximum), (max, tosa.minimum)) if b is not None]
    if all(t.q is None for t in (self, *(b for b, _ in bounds))):
        for bound, build in bounds:
            self = elementwise.take_extreme(lo, self, bound, build)
        return self
    q = lo.out_q()
    values, view = lo.align(*(movement.requantize(lo, t, q) for t in (self, *(b for b, _ in bounds))))
    value, *others = (lo.rescale(v, DType.I32, [1.0], q.zp) for v in values)
    for other, (_, build) in zip(others, bounds, strict=True):
        value = build(lo.b, value, other)
    return with_value(view, value, accumulator((q.s,)))


unop("sigmoid", tosa.sigmoid, lambda: _samples_bound(lambda x: torch.sigmoid(x)))
unop("tanh", tosa.tanh, lambda: _samples_bound(lambda x: torch.tanh(x)))


@pointwise(
    "gelu",
    samples=lambda: [
        *_samples_bound(lambda x: F.gelu(x)),
        call(lambda x: F.gelu(x, approximate="tanh"), f32(3, 7, low=-4.0, high=4.0)),
    ],
)
def gelu(lo: Lowering, self: Tensor, approximate: str = "none") -> Tensor:
    if self.q is not None:
        lo.require_quantized(self)

    if approximate == "tanh":
        cube = arith.multiply(lo, arith.multiply(lo, self, self), self)
        inner = _multiply(lo, arith.add(lo, self, _multiply(lo, cube, 0.044715)), math.sqrt(2.0 / math.pi))
        curve = unary(lo, tosa.tanh, inner)
    else:
        curve = unary(lo, tosa.erf, _multiply(lo, self, math.sqrt(0.5)))
    return arith.multiply(lo, _multiply(lo, self, 0.5), _add(lo, curve, 1.0))


@pointwise(
    "silu",
    samples=lambda: [
        *_samples_bound(lambda x: F.silu(x)),
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(inplace=True)), f32(1, 3, 8, 8)),
    ],
)
def silu(lo: Lowering, self: Tensor) -> Tensor:
    return arith.multiply(lo, self, unary(lo, tosa.sigmoid, self))


@pointwise(
    "hardsigmoid",
    samples=lambda: _samples_bound(lambda x: F.hardsigmoid(x)),
)
def hardsigmoid(lo: Lowering, self: Tensor) -> Tensor:
    return bound(lo, _add(lo, _multiply(lo, self, 1.0 / 6.0), 0.5), 0.0, 1.0)


@pointwise(
    "hardswish",
    samples=lambda: [
        *_samples_bound(lambda x: F.hardswish(x)),
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardswish(inplace=True)), f32(1, 3, 8, 8)),
    ],
)
def hardswish(lo: Lowering, self: Tensor) -> Tensor:
    return arith.multiply(lo, self, hardsigmoid(lo, self))


@pointwise(
    "leaky_relu",
    samples=lambda: [
        *_samples_bound(lambda x: F.leaky_relu(x)),
        call(lambda x: F.leaky_relu(x, 0.2), f32(1, 64, 2, 2)),
        call(lambda x: F.leaky_relu(x, 1.5, inplace=True), f32(4, 5)),
    ],
)
def leaky_relu(lo: Lowering, self: Tensor, negative_slope: float = 0.01) -> Tensor:
    below = _multiply(lo, bound(lo, self, -math.inf, 0.0), float(negative_slope))
    return arith.add(lo, bound(lo, self, 0.0, math.inf), below)


@pointwise(
    "elu",
    samples=lambda: [
        *_samples_bound(lambda x: F.elu(x)),
        call(lambda x: F.elu(x, 0.5), f32(1, 64, 2, 2)),
        call(lambda x: torch.ops.aten.elu(x, 1.6732632, 1.0507009, 0.75), f32(4, 5)),
    ],
)
def elu(lo: Lowering, self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    # Without the clamp, exp of a large number would be infinite, and infinity times zero is NaN.
    power = unary(lo, tosa.exp, _multiply(lo, bound(lo, self, -math.inf, 0.0), float(input_scale)))
    below = _multiply(lo, _add(lo, power, -1.0), float(alpha) * float(scale))
    return arith.add(lo, _multiply(lo, bound(lo, self, 0.0, math.inf), float(scale)), below)


def _slope_shape(slopes: Sequence[int], rank: int) -> list[int]:
    """Return the shape that puts slopes along dimension 1; the decomposed form already has them there."""
    return list(slopes) if len(slopes) != 1 or rank < 2 else [slopes[0], *(1,) * (rank - 2)]


def _slopes(count: int, steepest: float = 1.25) -> Any:
    """Make a PReLU for samples, with slopes of both signs, by default some above one."""
    layer = nn.PReLU(count)
    for i in range(count):
        layer.weight.data[i] = steepest * math.cos(1.0 + i)
    return layer


def _check_slopes(lo: Lowering, a: Arguments) -> str:
    return "they are computed" if a["self"].q is not None and not isinstance(a["weight"], Const) else ""


@op(
    "prelu",
    "prelu.default",
    "_prelu_kernel.default",
    quant="exact",
    pointwise=True,
    constraints=[
        Constraint(
            "the slopes of a quantized prelu are constants", _check_slopes, "use a parameter or buffer as weight"
        )
    ],
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
    """Lower to max(x, slope * x), and min for slopes above 1, rounded once; a single slope becomes a TABLE."""
    if self.q is None:
        slopes = lo.reshape(weight, _slope_shape(weight.shape, self.rank))
        below = arith.multiply(lo, bound(lo, self, -math.inf, 0.0), slopes)
        return lo.reshape(arith.add(lo, bound(lo, self, 0.0, math.inf), below), self.shape)
    x = lo.require_quantized(self)
    assert isinstance(weight, Const), "a constraint refuses slopes that are computed"
    q, xq = lo.out_q(), x.qparams
    slopes = weight.real().reshape(-1)
    steep = slopes > 1
    result = x
    if steep.any():
        lowered = convolution.scale_channels(lo, x, np.where(steep, slopes, 1.0), np.zeros(len(slopes)))
        result = elementwise.take_extreme(lo, result, lowered, tosa.minimum)
    if not steep.all():
        # A steep channel is done: the other side is moved below all possible results.
        aside = (q.qmin - q.zp) * q.s - (xq.qmax - xq.zp) * xq.s
        other = convolution.scale_channels(lo, x, np.where(steep, 1.0, slopes), np.where(steep, aside, 0.0))
        result = elementwise.take_extreme(lo, result, other, tosa.maximum)
    return result
