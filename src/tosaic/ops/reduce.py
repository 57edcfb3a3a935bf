"""Reductions: mean, sum, product, any, all, count_nonzero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType
from tosaic.lower import arithmetic as arith
from tosaic.lower import movement, powers
from tosaic.lower.arguments import Dims, dim_list, find_dtype, keep_dims
from tosaic.lower.aten import Aten, T
from tosaic.lower.booleans import (
    PLAIN,
    PLAIN_INT16,
    invert,
    is_condition,
    of_sign,
    store_bool,
    to_condition,
    to_float,
    to_ones,
)
from tosaic.lower.constraints import describe
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op
from tosaic.lower.samples import Sample, boolean, call, f32, i8, i16, i32, reduce_dims, torch, with_booleans
from tosaic.lower.tensor import Stored, Tensor, with_value


def _sum(lo: Lowering, x: Tensor, dim: Dims, keepdim: bool, mean: bool) -> Tensor:
    dims = dim_list(dim, x.rank)
    count = int(np.prod([x.shape[d] for d in dims], dtype=np.int64)) if mean else 1
    out = powers.sum_over(lo, x, dims, float(count)) or arith.sum_over(lo, x, dims, float(count))
    return keep_dims(lo, out, dims, keepdim)


def _to_numbers(lo: Lowering, x: Tensor) -> Tensor:
    """Return booleans as ones and zeros; mark integers of 8 and 16 bits as quantized values with a scale of one.

    The profile FP has no sums of integers: there they become float32, which is exact up to 2**24.
    """
    if not lo.spec.support_integer() and isinstance(x, Stored):
        return to_float(lo, x) if x.dtype is DType.BOOL else with_value(x, tosa.cast(lo.b, x.value, DType.F32))
    if is_condition(x):
        x = to_ones(lo, x)
    plain = {DType.I8: PLAIN, DType.I16: PLAIN_INT16}.get(x.dtype)
    return x if x.q is not None or plain is None else replace(x, q=plain)


def _to_integers(lo: Lowering, x: Tensor) -> Tensor:
    """Return a sum of integers as plain int32 numbers."""
    if isinstance(x, Stored) and x.is_float:
        # The profile FP has no RESHAPE of integers.
        x = lo.materialize(x)
        return with_value(x, tosa.cast(lo.b, x.value, DType.I32))
    if isinstance(x, Stored) and x.dtype is DType.I48:
        return with_value(x, lo.rescale(x.value, DType.I32, [1.0]))
    return replace(x, q=None)


def _check_float(lo: Lowering, a: Arguments) -> str:
    x, kind = a["self"], find_dtype(a.get("dtype"))
    given = lo.has_float and kind is not None and kind.is_float
    return "" if x.q is not None or x.is_float or given else f"it is of {describe(x)}"


@op(
    "mean",
    "mean.dim",
    "mean.default",
    in_norm="summed",
    computes_in_float32=True,
    constraints=[Constraint("a mean takes float or quantized values", _check_float, "cast to float before the mean")],
    samples=lambda: [
        *reduce_dims("mean"),
        call(lambda x: x.mean(), f32(2, 3, 4)),
        call(lambda x: x.mean((2, 3)), f32(1, 8, 65, 70)),
        call(lambda x: x.mean(-1, dtype=torch.float32), f32(2, 6)),
    ],
)
def mean(lo: Lowering, self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: object = None) -> Tensor:
    x = self if self.q is not None or self.is_float else _to_numbers(lo, self)
    return _sum(lo, x, dim, keepdim, True)


def _check_width(lo: Lowering, a: Arguments) -> str:
    """Find int32 numbers whose sum torch has in 64 bits, and sums that float32 cannot hold."""
    x = a["self"]
    wide = x.q is None and x.dtype is DType.I32 and find_dtype(a.get("dtype")) is not DType.I32
    long = not lo.spec.support_integer() and x.size * _MOST.get(x.dtype, 1) > 1 << 24
    return f"it is of {x.size} {describe(x)} numbers" if wide or long else ""


#: the largest magnitude of integers whose sums are computed in float32
_MOST = {DType.I8: 1 << 7, DType.I16: 1 << 15}


_WIDTH = Constraint(
    "a sum or product of int32 numbers has 32 bits, and torch's has 64",
    _check_width,
    "use dtype=torch.int32",
)


@op(
    "sum",
    "sum.dim_IntList",
    "sum.default",
    in_norm="summed",
    computes_in_float32=True,
    fits_int32=True,
    constraints=[_WIDTH],
    samples=lambda: [
        *reduce_dims("sum"),
        call(lambda x: x.sum(), f32(2, 3, 4)),
        call(lambda x: x.sum(-1, dtype=torch.float32), f32(2, 6)),
        call(lambda x: x.sum(-1, dtype=torch.int32), i32(2, 6)),
        call(lambda x: x.sum((1, 2), keepdim=True).to(torch.int32), i8(3, 4, 5)),
        call(lambda x: x.sum(0).to(torch.int32), i16(3, 17)),
        call(lambda x: (x > 0.5).sum(1).to(torch.int32), f32(3, 17)),
        call(lambda x: x.sum().to(torch.int32), boolean(3, 17), targets=with_booleans),
    ],
)
def sum(lo: Lowering, self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: object = None) -> Tensor:
    if self.is_float or (self.q is not None and not is_condition(self)):
        return _sum(lo, self, dim, keepdim, False)
    total = _sum(lo, _to_numbers(lo, self), dim, keepdim, False)
    kind = find_dtype(dtype)
    return total if kind is not None and kind.is_float else _to_integers(lo, total)


@op(
    "count_nonzero",
    "count_nonzero.default",
    "count_nonzero.dim_IntList",
    fits_int32=True,
    samples=lambda: [
        call(lambda x: torch.count_nonzero(x.floor(), 1).to(torch.int32), f32(3, 17)),
        call(lambda x: torch.count_nonzero(x.floor(), (0, 2)).to(torch.int32), f32(3, 2, 5)),
        call(lambda x: torch.count_nonzero(x).to(torch.int32), i32(3, 64, low=-2, high=2)),
        call(lambda x: torch.count_nonzero(x, -1).to(torch.int32), i8(3, 5, low=-2, high=2)),
    ],
)
def count_nonzero(lo: Lowering, self: Tensor, dim: Dims = None) -> Tensor:
    return _to_integers(lo, _sum(lo, _to_numbers(lo, to_condition(lo, self)), dim, False, False))


def _reduce_logic(lo: Lowering, x: Tensor, dim: Dims, keepdim: bool, all_of_them: bool) -> Tensor:
    """Reduce a condition; without booleans its ones and zeros are reduced."""
    dims, condition = dim_list(dim, x.rank), to_condition(lo, x)
    if lo.target.has_booleans:
        build = tosa.reduce_all if all_of_them else tosa.reduce_any
        return keep_dims(lo, arith.reduce_codes(lo, store_bool(lo, condition), dims, build), dims, keepdim)
    # All hold if none fails.
    ones = to_ones(lo, invert(lo, condition) if all_of_them else condition)
    found = arith.reduce_codes(lo, ones, dims, lambda b, v, axis: tosa.reduce_max(b, v, axis))
    return keep_dims(lo, of_sign(lo, found, found.value, lambda c: c == 0 if all_of_them else c != 0), dims, keepdim)


def _samples_logic(name: str) -> list[Sample]:
    def run(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda x: getattr(torch, name)(x, *args, **kwargs)

    return [
        call(lambda x: torch.where(run(1, keepdim=True)(x > 1.0), x, -x), f32(3, 5)),
        call(lambda x: run(1)(x > 1.0), f32(3, 5), targets=with_booleans),
        call(lambda x: run(-1, keepdim=True)(x), boolean(3, 2, 5), targets=with_booleans),
        call(lambda x: run((0, 2))(x), boolean(3, 2, 5), targets=with_booleans),
        call(lambda x: run(dim=(-1, -2), keepdim=True)(x), boolean(1, 17, 2, 3), targets=with_booleans),
        call(lambda x: run()(x), boolean(3, 64), targets=with_booleans),
        call(lambda x: run(1)(x), i32(3, 2, low=-1, high=2), targets=with_booleans),
        call(lambda x: run(0)(x), i8(3, 5, low=-1, high=2), targets=with_booleans),
        call(lambda x: run(0)(x.floor()), f32(3, 5), targets=with_booleans),
    ]


@op("any", "any.default", "any.dim", "any.dims", samples=lambda: _samples_logic("any"))
def any_of(lo: Lowering, self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _reduce_logic(lo, self, dim, keepdim, False)


@op("all", "all.default", "all.dim", "all.dims", samples=lambda: _samples_logic("all"))
def all_of(lo: Lowering, self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _reduce_logic(lo, self, dim, keepdim, True)


def _decompose_product(
    aten: Aten[T], self: T, dim: int | None = None, keepdim: bool = False, dtype: object = None
) -> T | None:
    """Multiply halves until one number is left, so that the range of every product is observed."""
    if str(dtype) not in ("None", "torch.float32"):
        return None
    of_all = dim is None or not aten.shape(self)
    x = aten("reshape.default", self, [-1]) if of_all else self
    axis = (dim or 0) % len(aten.shape(x))
    while (size := aten.shape(x)[axis]) > 1:
        half = size // 2
        parts = [aten("slice.Tensor", x, axis, half * i, half * (i + 1)) for i in range(2)]
        product = aten("mul.Tensor", *parts)
        rest = aten("slice.Tensor", x, axis, 2 * half, size) if size % 2 else None
        x = product if rest is None else aten("cat.default", [product, rest], axis)
    if of_all:
        return aten("reshape.default", x, [])
    return x if keepdim else aten("squeeze.dims", x, [axis])


@op(
    "prod",
    "prod.default",
    "prod.dim_int",
    decompose=_decompose_product,
    quant="none",
    computes_in_float32=True,
    constraints=[_WIDTH],
    samples=lambda: [
        call(lambda x: x.prod(-1), f32(3, 8, low=0.5, high=1.5)),
        call(lambda x: x.prod(1, keepdim=True), f32(1, 3, 4, 4)),
        call(lambda x: x.prod(dtype=torch.float32), f32(2, 3)),
        call(lambda x: x.prod(0), f32(5, 17, low=-1.5, high=1.5)),
        call(lambda x: x.prod(1, dtype=torch.int32), i32(3, 4, low=-5, high=5)),
    ],
)
def prod(lo: Lowering, self: Tensor, dim: int | None = None, keepdim: bool = False, dtype: object = None) -> Tensor:
    dims = dim_list(dim, self.rank)
    if self.q is not None or not (self.is_float or self.dtype is DType.I32):
        raise Unsupported(f"it is of {describe(self)}", "cast to int32 before")
    if self.is_float:
        return keep_dims(lo, arith.reduce_codes(lo, self, dims, tosa.reduce_product), dims, keepdim)
    x = lo.store(self)
    for d in dims:
        while (size := x.shape[d]) > 1:
            x = lo.store(_multiply_halves(lo, x, d, size))
    return keep_dims(lo, x, dims, keepdim)


def _multiply_halves(lo: Lowering, x: Tensor, dim: int, size: int) -> Tensor:
    half = size // 2
    parts = [movement.crop(lo, x, dim, half * i, half) for i in range(2)]
    product = arith.multiply(lo, *parts)
    return movement.concatenate(lo, [product, movement.crop(lo, x, dim, size - 1, 1)], dim) if size % 2 else product
