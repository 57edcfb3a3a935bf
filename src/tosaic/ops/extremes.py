"""The largest and smallest numbers and where they are: amax, amin, max, min, argmax, argmin, aminmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Value
from tosaic.lower import arithmetic as arith
from tosaic.lower import movement, positions
from tosaic.lower.arguments import Dims, dim_list, keep_dims
from tosaic.lower.aten import Aten, T
from tosaic.lower.constraints import describe
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, composite, op
from tosaic.lower.samples import Sample, call, f32, i8, i32, reduce_dims, torch, with_booleans
from tosaic.lower.tensor import Tensor, with_value


def _samples_reduce(name: str) -> list[Sample]:
    def run(dim: int) -> Callable[[Any], Any]:
        return lambda x: getattr(torch, name)(x, dim)

    return [
        *reduce_dims(name),
        call(lambda x: getattr(torch, name[1:])(x), f32(3, 4, 5)),
        call(run(1), i32(3, 5)),
        call(run(0), i8(3, 5)),
    ]


def _reduce(lo: Lowering, x: Tensor, dim: Dims, keepdim: bool, highest: bool) -> Tensor:
    def build(b: Builder, value: Value, axis: int) -> Value:
        if highest:
            return tosa.reduce_max(b, value, axis)
        if lo.target.has_reduce_min:
            return tosa.reduce_min(b, value, axis)
        return positions.mirror(lo, tosa.reduce_max(b, positions.mirror(lo, value), axis))

    dims = dim_list(dim, x.rank)
    source = x if x.q is None else lo.require_quantized(x)
    if x.dtype is DType.I32 and not lo.target.reduces_int32:
        return keep_dims(lo, _reduce_by_halves(lo, source, dims, highest), dims, keepdim)
    return keep_dims(lo, arith.reduce_codes(lo, source, dims, build), dims, keepdim)


def _reduce_by_halves(lo: Lowering, x: Tensor, dims: Sequence[int], highest: bool) -> Tensor:
    """Compare one half with the other until one number is left; two halves of an odd size overlap."""
    for dim in dims:
        while (size := x.shape[dim]) > 1:
            half = (size + 1) // 2
            parts = [movement.crop(lo, x, dim, start, half) for start in (0, size - half)]
            (u, v), view = lo.align(*parts)
            x = with_value(view, (tosa.maximum if highest else tosa.minimum)(lo.b, u, v))
    return x


@op(
    "amax",
    "amax.default",
    "max.default",
    quant="share",
    computes_in_float32=True,
    samples=lambda: _samples_reduce("amax"),
)
def amax(lo: Lowering, self: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return _reduce(lo, self, dim, keepdim, True)


@op(
    "amin",
    "amin.default",
    "min.default",
    quant="share",
    computes_in_float32=True,
    samples=lambda: _samples_reduce("amin"),
)
def amin(lo: Lowering, self: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return _reduce(lo, self, dim, keepdim, False)


def _check_size(lo: Lowering, a: Arguments) -> str:
    x, dim = a["self"], a.get("dim")
    return positions.check_size(lo, x.size if dim is None or not x.rank else x.shape[dim % x.rank])


def _check_type(lo: Lowering, a: Arguments) -> str:
    x = a["self"]
    return "" if x.dtype in (DType.I8, DType.I16) else f"it is of {describe(x)}"


_CONSTRAINTS = (
    Constraint(
        positions.LENGTH,
        _check_size,
        positions.LENGTH_FIX,
        lambda target: target.longest_argmax is not None,
    ),
    Constraint(
        positions.SIXTEEN_BITS,
        _check_type,
        positions.SIXTEEN_BITS_FIX,
        lambda target: not target.has_booleans,
    ),
)


def _samples_arg(name: str) -> list[Sample]:
    def run(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda x: getattr(torch, name)(x, *args, **kwargs).to(torch.int32)

    return [
        call(run(-1), f32(3, 17)),
        call(run(1), f32(1, 64, 3, 4)),
        call(run(1, keepdim=True), f32(3, 5, 4)),
        call(run(), f32(2, 3)),
        call(run(-1), f32()),
        call(lambda x: run(-1)(x + 1.0), f32(1, 200)),
        call(run(1), f32(1, 3, 5, 5, low=-30.0, high=0.1)),
        call(run(1), i8(3, 5)),
        call(run(0), i32(3, 5, low=-3, high=3), targets=with_booleans),
        call(run(-1, keepdim=True), i32(2, 3, 4, low=-3, high=3), targets=with_booleans),
    ]


@op(
    "argmax",
    computes_in_float32=True,
    fits_int32=True,
    constraints=_CONSTRAINTS,
    samples=lambda: _samples_arg("argmax"),
)
def argmax(lo: Lowering, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return positions.find(lo, self, dim, keepdim, True)


@op(
    "argmin",
    computes_in_float32=True,
    fits_int32=True,
    constraints=_CONSTRAINTS,
    samples=lambda: _samples_arg("argmin"),
)
def argmin(lo: Lowering, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return positions.find(lo, self, dim, keepdim, False)


def _samples_dim(name: str) -> list[Sample]:
    def run(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda x: getattr(torch, name)(x, *args, **kwargs)

    return [
        call(lambda x: run(-1)(x)[0], f32(2, 17)),
        call(lambda x: run(1, keepdim=True)(x).values * 2.0, f32(1, 64, 4, 4)),
        call(lambda x: (run(1)(x)[0], run(1)(x)[1].to(torch.int32)), f32(3, 5, 4)),
        call(lambda x: run(-2, True)(x)[1].to(torch.int32), f32(3, 4, 5)),
        call(lambda x: run(0)(x)[0], i32(3, 5)),
        call(lambda x: run(1)(x)[0], f32(1, 3, 200)),
    ]


def _register_dim(name: str, highest: bool) -> None:
    """Register max or min along one dimension, which is amax with argmax."""

    def decompose(aten: Aten[T], self: T, dim: int, keepdim: bool = False) -> tuple[T, T]:
        extreme, place = ("amax", "argmax") if highest else ("amin", "argmin")
        return aten(f"{extreme}.default", self, [dim], keepdim), aten(f"{place}.default", self, dim, keepdim)

    def lower(lo: Lowering, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor | Unsupported]:
        try:
            for constraint in _CONSTRAINTS:
                constraint.enforce(lo, {"self": self, "dim": dim})
            places: Tensor | Unsupported = positions.find(lo, self, dim, keepdim, highest)
        except Unsupported as error:
            places = error
        return _reduce(lo, self, dim, keepdim, highest), places

    op(
        f"{name}_dim",
        f"{name}.dim",
        quant="none",
        decompose=decompose,
        computes_in_float32=True,
        fits_int32=True,
        samples=lambda: _samples_dim(name),
    )(lower)


_register_dim("max", True)
_register_dim("min", False)


@composite(
    "aminmax",
    samples=lambda: [
        call(lambda x: torch.aminmax(x, dim=1, keepdim=True), f32(3, 17)),
        call(lambda x: torch.aminmax(x, dim=-2)[1] * 2.0, f32(1, 3, 4, 5)),
        call(lambda x: torch.aminmax(x), f32(3, 64)),
    ],
)
def aminmax(aten: Aten[T], self: T, dim: int | None = None, keepdim: bool = False) -> tuple[T, T]:
    dims = list(range(len(aten.shape(self)))) if dim is None else [dim]
    return aten("amin.default", self, dims, keepdim), aten("amax.default", self, dims, keepdim)
