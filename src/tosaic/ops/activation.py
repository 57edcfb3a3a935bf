"""Activations: bounds (relu, relu6, clamp), curves (sigmoid, tanh, gelu) and softmax."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tosaic.errors import Unsupported
from tosaic.lower import arith
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Tensor, with_value
from tosaic.ops._registry import composite, op
from tosaic.ops._rules import unary
from tosaic.ops._samples import F, Sample, call, f32, i32, module, nn, torch
from tosaic.tosa import ops as tosa
from tosaic.tosa.ir import NUMPY, RANGES


def bounded(lo: Lowering, x: Tensor, low: float, high: float) -> Tensor:
    """x held between two numbers: pending on an accumulator, CLAMP elsewhere."""
    if x.is_accumulator:
        old = x.clamp or (-math.inf, math.inf)
        return replace(x, clamp=(min(max(old[0], low), high), max(min(old[1], high), low)))
    if x.q is not None:
        lo.codes(x)
    if x.is_const:
        raise Unsupported("its input is a constant")
    assert x.value is not None
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


def _samples_bound(function: Any) -> list[Sample]:
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

    def times(x: Tensor, factor: float) -> Tensor:
        return arith.product(lo, x, lo.scalar(factor, x))

    if approximate == "tanh":
        cube = arith.product(lo, arith.product(lo, self, self), self)
        inner = times(arith.total(lo, self, times(cube, 0.044715)), math.sqrt(2.0 / math.pi))
        curve = unary(lo, tosa.tanh, inner)
    else:
        curve = unary(lo, tosa.erf, times(self, math.sqrt(0.5)))
    return arith.product(lo, times(self, 0.5), arith.total(lo, curve, lo.scalar(1.0, self)))


def softmax_of(aten: Any, x: Any, dim: int, mask: Any = None) -> Any:
    """exp(x - max) over its sum; `mask` (ones and zeros) leaves elements out."""
    shifted = aten("sub.Tensor", x, aten("amax.default", x, [dim], True))
    powers = aten("exp.default", shifted)
    if mask is not None:
        powers = aten("mul.Tensor", powers, mask)
    total = aten("sum.dim_IntList", powers, [dim], True)
    return aten("mul.Tensor", powers, aten("reciprocal.default", total))


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
    ],
)
