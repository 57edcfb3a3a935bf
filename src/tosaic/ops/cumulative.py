"""Results of all numbers up to each one: cumsum, cumprod, cummax, cummin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower import lookup, movement
from tosaic.lower.arguments import find_dtype
from tosaic.lower.aten import Aten, T
from tosaic.lower.booleans import PLAIN, PLAIN_INT16, is_condition, to_float, to_ones
from tosaic.lower.constraints import describe
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op, with_inplace
from tosaic.lower.samples import Sample, boolean, call, f32, i8, i32, torch, with_booleans
from tosaic.lower.tensor import Stored, Tensor, with_value

#: the weights of a longer sum would be too large, and int16 sums too long for float32
_LONGEST = 512


def _check_width(lo: Lowering, a: Arguments) -> str:
    x = a["self"]
    wide = x.q is None and x.dtype is DType.I32 and find_dtype(a.get("dtype")) is not DType.I32
    return "it is of int32" if wide else ""


def _check_length(lo: Lowering, a: Arguments) -> str:
    x = a["self"]
    if x.is_float or x.dtype is DType.I32 or not x.rank:
        return ""
    size = x.shape[a["dim"] % x.rank]
    return "" if size <= _LONGEST else f"it is over {size}"


_CONSTRAINTS = (
    Constraint(
        "a cumulative sum of int32 numbers has 32 bits, and torch's has 64", _check_width, "use dtype=torch.int32"
    ),
    Constraint(
        f"a quantized cumulative sum is over at most {_LONGEST} numbers",
        _check_length,
        "split the dimension, and add the sums of the parts before",
    ),
)


def _scan(lo: Lowering, x: Tensor, dim: int, build: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Combine every number with all before it: those at distance 1, then 2, 4 and so on."""
    step, size = 1, x.shape[dim]
    while step < size:
        head, tail = movement.crop(lo, x, dim, 0, step), movement.crop(lo, x, dim, step, size - step)
        before = movement.crop(lo, x, dim, 0, size - step)
        x = movement.concatenate(lo, [head, build(before, tail)], dim)
        step *= 2
    return x


@op(
    "cumsum",
    *with_inplace("cumsum.default"),
    computes_in_float32=True,
    fits_int32=True,
    constraints=_CONSTRAINTS,
    samples=lambda: [
        call(lambda x: x.cumsum(-1), f32(3, 17)),
        call(lambda x: x.cumsum(1), f32(1, 64, 3, 4)),
        call(lambda x: torch.cumsum(x, 0, dtype=torch.float32), f32(3, 5, low=-20.0, high=1.0)),
        call(lambda x: x.cumsum(-2), f32(3, 2, 5, 4, 2)),
        call(lambda x: x.cumsum(0), f32(9)),
        call(lambda x: x.cumsum(1, dtype=torch.int32), i32(3, 7)),
        call(lambda x: x.cumsum(1).to(torch.int32), i8(3, 7)),
        call(lambda x: (x > 0.5).cumsum(0).to(torch.int32), f32(5, 3)),
        call(lambda x: x.cumsum(1).to(torch.int32), boolean(3, 7), targets=with_booleans),
    ],
)
def cumsum(lo: Lowering, self: Tensor, dim: int, dtype: object = None) -> Tensor:
    """Lower to a product with a triangle of ones, rounded once; wide numbers are added in steps."""
    kind, integers = find_dtype(dtype), not self.is_float and (self.q is None or is_condition(self))
    if integers and kind is not None and kind.is_float:
        raise Unsupported(f"it is of {describe(self)}, and its result is float", "cast to float before the sum")
    if not self.rank:
        return self
    d = dim % self.rank
    if integers and not lo.spec.support_integer() and self.dtype is not DType.I32:
        return _sum_in_float(lo, lo.store(self), d)
    x = to_ones(lo, self) if is_condition(self) else self
    if x.q is None and (x.is_float or x.dtype is DType.I32):
        return _scan(lo, x, d, lambda a, b: arith.add(lo, a, b))
    plain = {DType.I8: PLAIN, DType.I16: PLAIN_INT16}.get(x.dtype) if integers else None
    x = replace(x, q=plain) if plain is not None else lo.require_quantized(x)
    size = x.shape[d]
    ones = QParams((1.0,), (0,), DType.I8, -127, 127)
    out = lookup.combine(lo, x, d, np.tril(np.ones((size, size), np.int8)), ones, None if integers else lo.next_q)
    if not integers:
        return out
    if out.dtype is DType.I48:
        out = replace(out, value=lo.rescale(out.value, DType.I32, [1.0]))
    return replace(out, q=None)


def _sum_in_float(lo: Lowering, x: Stored, dim: int) -> Tensor:
    """Sum booleans or integers of 8 and 16 bits in the profile FP; float32 holds these sums up to 2**24."""
    real = to_float(lo, x) if x.dtype is DType.BOOL else with_value(x, tosa.cast(lo.b, x.value, DType.F32))
    out = lo.materialize(lo.store(_scan(lo, real, dim, lambda a, b: arith.add(lo, a, b))))
    return with_value(out, tosa.cast(lo.b, out.value, DType.I32))


def _decompose_product(aten: Aten[T], self: T, dim: int, dtype: object = None) -> T | None:
    """Multiply every number by all before it in steps, so that the range of every step is observed."""
    shape = aten.shape(self)
    if str(dtype) not in ("None", "torch.float32") or not shape:
        return None
    axis, step, x = dim % len(shape), 1, self
    size = shape[axis]
    while step < size:
        head, tail = aten("slice.Tensor", x, axis, 0, step), aten("slice.Tensor", x, axis, step, size)
        product = aten("mul.Tensor", aten("slice.Tensor", x, axis, 0, size - step), tail)
        x = aten("cat.default", [head, product], axis)
        step *= 2
    return x


@op(
    "cumprod",
    *with_inplace("cumprod.default"),
    quant="none",
    decompose=_decompose_product,
    computes_in_float32=True,
    constraints=_CONSTRAINTS[:1],
    samples=lambda: [
        call(lambda x: x.cumprod(-1), f32(3, 5, low=0.5, high=1.5)),
        call(lambda x: x.cumprod(1), f32(1, 4, 3, 4)),
        call(lambda x: torch.cumprod(x, 0, dtype=torch.float32), f32(3, 5)),
        call(lambda x: x.cumprod(1, dtype=torch.int32), i32(3, 4, low=-5, high=5)),
    ],
)
def cumprod(lo: Lowering, self: Tensor, dim: int, dtype: object = None) -> Tensor:
    if self.q is not None or not (self.is_float or self.dtype is DType.I32):
        raise Unsupported(f"it is of {describe(self)}", "cast to int32 before")
    return _scan(lo, self, dim % self.rank, lambda a, b: arith.multiply(lo, a, b)) if self.rank else self


def _register_extreme(name: str, build: arith.Binary) -> None:
    """Register cummax or cummin, of which the positions are not available."""

    def lower(lo: Lowering, self: Tensor, dim: int) -> tuple[Tensor, Unsupported]:
        source = self if self.q is None else lo.require_quantized(self)
        gone = Unsupported(f"the positions of `{name}` are not available on the NPU", f"use the values of {name} only")
        if not source.rank:
            return source, gone
        return _scan(lo, source, dim % source.rank, lambda a, b: _combine(lo, a, b, build)), gone

    def samples() -> list[Sample]:
        def run(x: Any, dim: int) -> Any:
            return getattr(torch, name)(x, dim)[0]

        return [
            call(lambda x: run(x, -1), f32(3, 17)),
            call(lambda x: run(x, 1) * 2.0, f32(1, 64, 3, 4)),
            call(lambda x: run(x, 0), i32(5, 3)),
            call(lambda x: run(x, 1), i8(3, 5)),
        ]

    op(name, quant="share", samples=samples)(lower)


def _combine(lo: Lowering, a: Tensor, b: Tensor, build: arith.Binary) -> Tensor:
    (u, v), view = lo.align(replace(a, q=None), replace(b, q=None))
    if u.dtype is not DType.I8 and u.dtype is not DType.I16:
        return replace(view, value=build(lo.b, u, v), q=a.q)
    wide = [lo.rescale(w, DType.I32, [1.0]) for w in (u, v)]
    return replace(view, value=lo.rescale(build(lo.b, wide[0], wide[1]), u.dtype, [1.0]), q=a.q)


_register_extreme("cummax", lambda b, x, y: tosa.maximum(b, x, y))
_register_extreme("cummin", lambda b, x, y: tosa.minimum(b, x, y))
