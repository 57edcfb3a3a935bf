"""Reductions: mean, sum, amax, amin, argmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Value
from tosaic.lower import arithmetic as arith
from tosaic.lower.arguments import dim_list, integers, keep_dims
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Limit, op
from tosaic.lower.samples import NOT_U55, Sample, call, f32, torch
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


def _add(lo: Lowering, x: Tensor, dim: Any, keepdim: bool, mean: bool) -> Tensor:
    dims = dim_list(dim, x.rank)
    if x.q is None and not x.is_float and mean:
        raise Unsupported("a mean of integers is not available", "cast to float before the mean")
    count = int(np.prod([x.shape[d] for d in dims], dtype=np.int64)) if mean else 1
    return keep_dims(lo, arith.sum_over(lo, x, dims, float(count)), dims, keepdim)


@op(
    "mean",
    "aten.mean.dim",
    "aten.mean.default",
    samples=lambda: [
        *_samples_reduce("mean"),
        call(lambda x: x.mean(), f32(2, 3, 4)),
        call(lambda x: x.mean((2, 3)), f32(1, 8, 65, 70)),
        call(lambda x: x.mean(-1, dtype=torch.float32), f32(2, 6)),
    ],
)
def mean(lo: Lowering, self: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return _add(lo, self, dim, keepdim, True)


@op(
    "sum",
    "aten.sum.dim_IntList",
    "aten.sum.default",
    samples=lambda: [
        *_samples_reduce("sum"),
        call(lambda x: x.sum(), f32(2, 3, 4)),
        call(lambda x: x.sum(-1, dtype=torch.float32), f32(2, 6)),
    ],
)
def sum(lo: Lowering, self: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return _add(lo, self, dim, keepdim, False)


def _extreme(lo: Lowering, x: Tensor, dim: Any, keepdim: bool, highest: bool) -> Tensor:
    def build(b: Builder, value: Value, axis: int) -> Value:
        if highest:
            return tosa.reduce_max(b, value, axis)
        if lo.target.family in ("u55", "u65") and value.dtype is DType.I8:
            # Vela 5.2.0 miscompiles REDUCE_MIN before a RESHAPE there: take the maximum of the mirrored codes.
            mirror = np.arange(127, -129, -1).astype(np.int8)
            return tosa.table(b, tosa.reduce_max(b, tosa.table(b, value, mirror), axis), mirror)
        return tosa.reduce_min(b, value, axis)

    dims = dim_list(dim, x.rank)
    source = x if x.q is None else lo.codes(x)
    return keep_dims(lo, arith.reduce_codes(lo, source, dims, build), dims, keepdim)


@op("amax", "aten.amax.default", quant="share", samples=lambda: _samples_reduce("amax"))
def amax(lo: Lowering, self: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return _extreme(lo, self, dim, keepdim, True)


@op("amin", "aten.amin.default", quant="share", samples=lambda: _samples_reduce("amin"))
def amin(lo: Lowering, self: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return _extreme(lo, self, dim, keepdim, False)


def _over_channels(lo: Lowering, a: Mapping[str, Any]) -> bool:
    x, dim = a["self"], a.get("dim")
    size = x.size if dim is None else x.shape[dim % max(x.rank, 1)]
    return size <= 127 and x.size // size <= 1 << 16


@op(
    "argmax",
    "aten.argmax.default",
    limits=[
        Limit(
            "Ethos-U55 and Ethos-U65 find the largest of at most 127 numbers, in at most 65536 places",
            _over_channels,
            ("u55", "u65"),
            "use an Ethos-U85, or argmax on the CPU",
        )
    ],
    samples=lambda: [
        call(lambda x: x.argmax(-1).to(torch.int32), f32(3, 17)),
        call(lambda x: x.argmax(1).to(torch.int32), f32(1, 64, 3, 4)),
        call(lambda x: x.argmax(1, keepdim=True).to(torch.int32), f32(3, 5, 4)),
        call(lambda x: x.argmax().to(torch.int32), f32(2, 3)),
        call(lambda x: (x + 1.0).argmax(-1).to(torch.int32), f32(1, 200), targets=NOT_U55),
        call(lambda x: x.argmax(1).to(torch.int32), f32(1, 3, 5, 5, low=-30.0, high=0.1)),
    ],
)
def argmax(lo: Lowering, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The result is int32; the partitioner lets it out of a delegate only where torch has cast it to that."""
    x = self if self.q is None else lo.codes(self)
    if dim is None:
        x = lo.reshape(x, (x.size,))
    d = 0 if dim is None else dim % max(x.rank, 1)
    rest = [n for i, n in enumerate(x.shape) if i != d]
    kept = [1] * self.rank if dim is None else [1 if i == d else n for i, n in enumerate(x.shape)]
    if lo.target.is_npu:
        # The dimension goes last and all others into one: Ethos-U55 has no other form.
        last = lo.permute(x, [*(i for i in range(x.rank) if i != d), d])
        found = tosa.argmax(lo.b, lo.emit(lo.reshape(last, (1, 1, prod(rest), x.shape[d]))), 3)
    else:
        found = tosa.argmax(lo.b, lo.emit(x), d)
    shape = kept if keepdim else rest
    if "INT" in lo.spec.profiles:
        return lo.reshape(of_value(found), shape)
    return of_value(integers(lo, found, shape))
