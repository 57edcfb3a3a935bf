"""Reductions: mean, sum, amax, amin, argmax."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Value
from tosaic.lower import arithmetic as arith
from tosaic.lower.arguments import dim_list, integers, keep_dims
from tosaic.lower.constraints import describe
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op
from tosaic.lower.samples import Sample, call, f32, torch
from tosaic.lower.tensor import Tensor, of_value


def _samples_reduce(name: str) -> list[Sample]:
    def run(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda x: getattr(torch, name)(x, *args, **kwargs)

    return [
        call(run(-1), f32(2, 17)),
        call(run(1), f32(3, 4, 5)),
        call(run((2, 3)), f32(1, 17, 6, 7)),
        call(run((-1, -2), keepdim=True), f32(3, 64, 4, 4)),
        call(run(1, keepdim=True), f32(1, 3, 4, 4)),
        call(run((0, 2)), f32(3, 2, 5)),
        call(run(0), f32(9)),
        call(run((1, 3)), f32(2, 3, 2, 4, 3)),
    ]


def _sum(lo: Lowering, x: Tensor, dim: Any, keepdim: bool, mean: bool) -> Tensor:
    dims = dim_list(dim, x.rank)
    count = int(np.prod([x.shape[d] for d in dims], dtype=np.int64)) if mean else 1
    return keep_dims(lo, arith.sum_over(lo, x, dims, float(count)), dims, keepdim)


def _check_float(lo: Lowering, a: Arguments) -> str:
    x = a["self"]
    return "" if x.q is not None or x.is_float else f"it is of {describe(x)}"


@op(
    "mean",
    "mean.dim",
    "mean.default",
    computes_in_float32=True,
    constraints=[Constraint("a mean takes float or quantized values", _check_float, "cast to float before the mean")],
    samples=lambda: [
        *_samples_reduce("mean"),
        call(lambda x: x.mean(), f32(2, 3, 4)),
        call(lambda x: x.mean((2, 3)), f32(1, 8, 65, 70)),
        call(lambda x: x.mean(-1, dtype=torch.float32), f32(2, 6)),
    ],
)
def mean(lo: Lowering, self: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return _sum(lo, self, dim, keepdim, True)


@op(
    "sum",
    "sum.dim_IntList",
    "sum.default",
    computes_in_float32=True,
    samples=lambda: [
        *_samples_reduce("sum"),
        call(lambda x: x.sum(), f32(2, 3, 4)),
        call(lambda x: x.sum(-1, dtype=torch.float32), f32(2, 6)),
    ],
)
def sum(lo: Lowering, self: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return _sum(lo, self, dim, keepdim, False)


def _reduce_extreme(lo: Lowering, x: Tensor, dim: Any, keepdim: bool, highest: bool) -> Tensor:
    def build(b: Builder, value: Value, axis: int) -> Value:
        if highest:
            return tosa.reduce_max(b, value, axis)
        if not lo.target.has_reduce_min and value.dtype is DType.I8:
            # Take the maximum of the negated numbers.
            mirror = np.arange(127, -129, -1).astype(np.int8)
            return tosa.table(b, tosa.reduce_max(b, tosa.table(b, value, mirror), axis), mirror)
        return tosa.reduce_min(b, value, axis)

    dims = dim_list(dim, x.rank)
    source = x if x.q is None else lo.codes(x)
    return keep_dims(lo, arith.reduce_codes(lo, source, dims, build), dims, keepdim)


@op("amax", quant="share", computes_in_float32=True, samples=lambda: _samples_reduce("amax"))
def amax(lo: Lowering, self: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return _reduce_extreme(lo, self, dim, keepdim, True)


@op("amin", quant="share", computes_in_float32=True, samples=lambda: _samples_reduce("amin"))
def amin(lo: Lowering, self: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return _reduce_extreme(lo, self, dim, keepdim, False)


def _check_argmax(lo: Lowering, a: Arguments) -> str:
    x, dim, target = a["self"], a.get("dim"), lo.target
    size = x.size if dim is None or not x.rank else x.shape[dim % x.rank]
    places = x.size // size
    fits = target.longest_argmax is None or size <= target.longest_argmax
    fits = fits and (target.most_argmaxes is None or places <= target.most_argmaxes)
    return "" if fits else f"it is among {size} numbers, in {places} places"


@op(
    "argmax",
    computes_in_float32=True,
    constraints=[
        Constraint(
            "argmax finds the largest of at most 127 numbers, in at most 65536 places",
            _check_argmax,
            "use an Ethos-U85, or argmax on the CPU",
            lambda target: target.longest_argmax is not None,
        )
    ],
    samples=lambda: [
        call(lambda x: x.argmax(-1).to(torch.int32), f32(3, 17)),
        call(lambda x: x.argmax(1).to(torch.int32), f32(1, 64, 3, 4)),
        call(lambda x: x.argmax(1, keepdim=True).to(torch.int32), f32(3, 5, 4)),
        call(lambda x: x.argmax().to(torch.int32), f32(2, 3)),
        call(lambda x: x.argmax(-1).to(torch.int32), f32()),
        call(lambda x: (x + 1.0).argmax(-1).to(torch.int32), f32(1, 200), targets=lambda t: t.longest_argmax is None),
        call(lambda x: x.argmax(1).to(torch.int32), f32(1, 3, 5, 5, low=-30.0, high=0.1)),
    ],
)
def argmax(lo: Lowering, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Lower to ARGMAX, which is int32; the partitioner lets it out of a delegate only if torch casts it to that."""
    x = self if self.q is None else lo.codes(self)
    everything = dim is None or not x.rank
    if everything:
        x = lo.reshape(x, (x.size,))
    d = 0 if dim is None else dim % x.rank
    rest = [n for i, n in enumerate(x.shape) if i != d]
    kept = [1] * self.rank if everything else [1 if i == d else n for i, n in enumerate(x.shape)]
    if lo.target.is_npu:
        # The dimension goes last and all others are merged: Ethos-U55 supports no other form.
        last = lo.permute(x, [*(i for i in range(x.rank) if i != d), d])
        found = tosa.argmax(lo.b, lo.emit(lo.reshape(last, (1, 1, prod(rest), x.shape[d]))), 3)
    else:
        found = tosa.argmax(lo.b, lo.emit(x), d)
    shape = kept if keepdim else rest
    if "INT" in lo.spec.profiles:
        return lo.reshape(of_value(found), shape)
    return of_value(integers(lo, of_value(found), shape))
