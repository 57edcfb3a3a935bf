"""Statistics and distances: variances, vector norms, logsumexp, cosine similarity, distances of points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tosaic.core.errors import Unsupported
from tosaic.lower.arguments import Dims
from tosaic.lower.aten import Aten, T
from tosaic.lower.registry import composite
from tosaic.lower.samples import F, Sample, call, f32, torch


def _list_dims(aten: Aten[T], x: T, dim: Dims) -> list[int]:
    """List the dimensions of a reduction; none given means all of them."""
    if isinstance(dim, int):
        return [dim]
    return list(dim) if dim else list(range(len(aten.shape(x))))


def _variance(aten: Aten[T], x: T, dim: Dims, divisor: float, keepdim: bool) -> tuple[T, T]:
    """Compute the variance, a mean of squares scaled for the divisor, and the mean, which keeps its dimensions."""
    dims = _list_dims(aten, x, dim)
    # A tensor without dimensions has dimension 0 all the same, with one number.
    count = math.prod((aten.shape(x) or (1,))[d] for d in dims)
    if count <= divisor:
        raise Unsupported("the variance of so few values is infinite", "reduce over more values")
    mean = aten("mean.dim", x, dims, True)
    centered = aten("sub.Tensor", x, mean)
    variance = aten("mean.dim", aten("mul.Tensor", centered, centered), dims, keepdim)
    return aten("mul.Tensor", variance, count / (count - divisor)) if divisor else variance, mean


def _find_divisor(unbiased: bool, correction: float | None) -> float:
    return float(unbiased) if correction is None else float(correction)


def _samples_variance(name: str) -> list[Sample]:
    def run(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda x: getattr(torch, name)(x, *args, **kwargs)

    return [
        call(run(-1), f32(2, 17)),
        call(run((2, 3), keepdim=True), f32(1, 5, 6, 7)),
        call(run(1, unbiased=False), f32(3, 8, 5)),
        call(run(dim=(0, 1), correction=2), f32(4, 6)),
        call(run(), f32(3, 4)),
        call(run(0, unbiased=False), f32()),
    ]


@composite("var", "var.default", "var.dim", "var.correction", samples=lambda: _samples_variance("var"))
def var(
    aten: Aten[T],
    self: T,
    dim: Dims = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: float | None = None,
) -> T:
    return _variance(aten, self, dim, _find_divisor(unbiased, correction), keepdim)[0]


@composite("std", "std.default", "std.dim", "std.correction", samples=lambda: _samples_variance("std"))
def std(aten: Aten[T], self: T, **how: Any) -> T:
    return aten("sqrt.default", var(aten, self, **how))


@composite(
    "var_mean",
    "var_mean.default",
    "var_mean.dim",
    "var_mean.correction",
    samples=lambda: _samples_variance("var_mean"),
)
def var_mean(
    aten: Aten[T],
    self: T,
    dim: Dims = None,
    unbiased: bool = True,
    keepdim: bool = False,
    correction: float | None = None,
) -> tuple[T, T]:
    variance, mean = _variance(aten, self, dim, _find_divisor(unbiased, correction), keepdim)
    return variance, mean if keepdim else aten("reshape.default", mean, list(aten.shape(variance)))


@composite(
    "std_mean",
    "std_mean.default",
    "std_mean.dim",
    "std_mean.correction",
    samples=lambda: _samples_variance("std_mean"),
)
def std_mean(aten: Aten[T], self: T, **how: Any) -> tuple[T, T]:
    variance, mean = var_mean(aten, self, **how)
    return aten("sqrt.default", variance), mean


def _norm(aten: Aten[T], x: T, order: float, dims: list[int], keepdim: bool) -> T:
    """Compute a vector norm of any order."""
    if order == 2.0:
        return aten("sqrt.default", aten("sum.dim_IntList", aten("mul.Tensor", x, x), dims, keepdim))
    if order == 0.0:
        found = aten("to.dtype", aten("ne.Scalar", x, 0.0), torch.float32)
        return aten("sum.dim_IntList", found, dims, keepdim)
    size = aten("abs.default", x)
    if math.isinf(order):
        return aten("amax.default" if order > 0 else "amin.default", size, dims, keepdim)
    if order == 1.0:
        return aten("sum.dim_IntList", size, dims, keepdim)
    total = aten("sum.dim_IntList", aten("pow.Tensor_Scalar", size, order), dims, keepdim)
    return aten("pow.Tensor_Scalar", total, 1.0 / order)


@composite(
    "vector_norm",
    "linalg_vector_norm.default",
    samples=lambda: [
        call(lambda x: torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32), f32(3, 8)),
        call(lambda x: torch.linalg.vector_norm(x, 1, dim=(1, 2), keepdim=True), f32(2, 4, 5)),
        call(lambda x: torch.linalg.vector_norm(x.floor(), 0, dim=1), f32(3, 17)),
        call(lambda x: torch.linalg.vector_norm(x, 3, dim=-2), f32(1, 3, 4, 5)),
        call(lambda x: torch.linalg.vector_norm(x, 0.5, dim=1), f32(3, 4)),
        call(lambda x: torch.linalg.vector_norm(x, -1, dim=1), f32(3, 4, low=0.5, high=2.0)),
        call(lambda x: torch.linalg.vector_norm(x, math.inf, dim=(0, 2)), f32(3, 17, 2)),
        call(lambda x: torch.linalg.vector_norm(x, -math.inf), f32(3, 64)),
    ],
)
def vector_norm(
    aten: Aten[T],
    self: T,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: object = None,
) -> T | None:
    if str(dtype) not in ("None", "torch.float32"):
        return None
    return _norm(aten, self, float(ord), _list_dims(aten, self, dim), keepdim)


@composite(
    "norm",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "norm.ScalarOpt_dim_dtype",
    "norm.ScalarOpt_dtype",
    samples=lambda: [
        call(lambda x: torch.ops.aten.norm.Scalar(x, 3), f32(3, 8)),
        call(lambda x: torch.ops.aten.norm.ScalarOpt_dim(x, 1, [1], True), f32(3, 8)),
        call(lambda x: torch.ops.aten.norm.ScalarOpt_dim_dtype(x, 2, [-1], False, dtype=torch.float32), f32(1, 4, 17)),
    ],
)
def norm(
    aten: Aten[T],
    self: T,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: object = None,
) -> T | None:
    return vector_norm(aten, self, 2 if p is None else p, dim, keepdim, dtype)


@composite(
    "linalg_norm",
    "linalg_norm.default",
    samples=lambda: [
        call(lambda x: torch.linalg.norm(x, dtype=torch.float32), f32(3, 8)),
        call(lambda x: torch.linalg.norm(x, 1, 1, True), f32(3, 17)),
        call(lambda x: torch.linalg.norm(x, dim=(0, 2)), f32(3, 4, 5)),
    ],
)
def linalg_norm(
    aten: Aten[T],
    self: T,
    ord: float | None = None,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: object = None,
) -> T | None:
    """Compute the norm of vectors, and of matrices if it is that of their elements."""
    several = len(aten.shape(self)) if dim is None else 1 if isinstance(dim, int) else len(dim)
    if ord is not None and several != 1:
        return None
    return vector_norm(aten, self, 2 if ord is None else ord, dim, keepdim, dtype)


@composite(
    "matrix_norm",
    "linalg_matrix_norm.str_ord",
    samples=lambda: [
        call(lambda x: torch.linalg.matrix_norm(x, keepdim=True), f32(1, 3, 8)),
        call(lambda x: torch.linalg.matrix_norm(x, "fro", (0, 2), dtype=torch.float32), f32(3, 4, 5)),
        call(lambda x: torch.linalg.matrix_norm(x, "nuc"), f32(3, 4), flavors=()),
    ],
)
def matrix_norm(
    aten: Aten[T],
    self: T,
    ord: str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    dtype: object = None,
) -> T | None:
    return vector_norm(aten, self, 2, dim, keepdim, dtype) if ord == "fro" else None


@composite(
    "logsumexp",
    samples=lambda: [
        call(lambda x: torch.logsumexp(x, -1), f32(3, 17)),
        call(lambda x: torch.logsumexp(x, (1, 2), keepdim=True), f32(1, 3, 4)),
        call(lambda x: torch.logsumexp(x, 0), f32(5, 64, low=-20.0, high=20.0)),
        call(lambda x: torch.logsumexp(x, -1), f32()),
    ],
)
def logsumexp(aten: Aten[T], self: T, dim: int | Sequence[int], keepdim: bool = False) -> T:
    """Subtract the largest number first: no power is above one, and one of them is one."""
    dims = _list_dims(aten, self, dim)
    top = aten("amax.default", self, dims, True)
    powers = aten("exp.default", aten("sub.Tensor", self, top))
    out = aten("add.Tensor", aten("log.default", aten("sum.dim_IntList", powers, dims, True)), top)
    if keepdim or not aten.shape(self):
        return out
    gone = {d % len(aten.shape(self)) for d in dims}
    return aten("reshape.default", out, [n for i, n in enumerate(aten.shape(self)) if i not in gone])


@composite(
    "cosine_similarity",
    samples=lambda: [
        call(lambda x, y: F.cosine_similarity(x, y), f32(3, 8), f32(3, 8)),
        call(lambda x, y: F.cosine_similarity(x, y, -1, 1e-3), f32(1, 3, 17), f32(2, 1, 17)),
    ],
)
def cosine_similarity(aten: Aten[T], x1: T, x2: T, dim: int = 1, eps: float = 1e-8) -> T | None:
    """Divide the product of two vectors by that of their lengths, none of which is below `eps`."""
    shapes = aten.shape(x1), aten.shape(x2)
    if not all(shapes) or len(shapes[0]) != len(shapes[1]) or shapes[0][dim] != shapes[1][dim]:
        return None
    lengths = [aten("clamp_min.default", _norm(aten, x, 2.0, [dim], False), eps) for x in (x1, x2)]
    total = aten("sum.dim_IntList", aten("mul.Tensor", x1, x2), [dim], False)
    return aten("div.Tensor", aten("div.Tensor", total, lengths[0]), lengths[1])


@composite(
    "pairwise_distance",
    samples=lambda: [
        call(lambda x, y: F.pairwise_distance(x, y), f32(3, 8), f32(3, 8)),
        call(lambda x, y: F.pairwise_distance(x, y, 1.0, 0.1, True), f32(1, 3, 17), f32(3, 17)),
    ],
)
def pairwise_distance(aten: Aten[T], x1: T, x2: T, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> T:
    difference = aten("add.Tensor", aten("sub.Tensor", x1, x2), eps)
    return _norm(aten, difference, float(p), [-1], keepdim)


@composite(
    "cdist",
    "cdist.default",
    "_cdist_forward.default",
    samples=lambda: [
        call(lambda x, y: torch.cdist(x, y), f32(3, 8), f32(4, 8)),
        call(lambda x, y: torch.cdist(x, y, 1.0), f32(2, 3, 5), f32(2, 2, 5)),
        call(lambda x, y: torch.cdist(x, y, math.inf, "donot_use_mm_for_euclid_dist"), f32(1, 3, 5), f32(1, 2, 5)),
    ],
)
def cdist(aten: Aten[T], x1: T, x2: T, p: float = 2.0, compute_mode: int | None = None) -> T:
    """Compute the differences of all pairs: a product of matrices would cancel where points are close."""
    difference = aten("sub.Tensor", aten("unsqueeze.default", x1, -2), aten("unsqueeze.default", x2, -3))
    return _norm(aten, difference, float(p), [-1], False)


@composite(
    "dist",
    samples=lambda: [
        call(lambda x, y: torch.dist(x, y), f32(3, 8), f32(3, 8)),
        call(lambda x, y: torch.dist(x, y, 1), f32(3, 4, 5), f32(5)),
    ],
)
def dist(aten: Aten[T], self: T, other: T, p: float = 2) -> T:
    difference = aten("sub.Tensor", self, other)
    return _norm(aten, difference, float(p), _list_dims(aten, difference, None), False)
