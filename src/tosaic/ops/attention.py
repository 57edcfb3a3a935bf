"""Softmax, log_softmax, and the attention that is made of matmul, softmax and matmul."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir.graph import Array
from tosaic.lower.aten import Aten, T
from tosaic.lower.registry import composite
from tosaic.lower.samples import F, call, f32, module, nn, torch

#: scores at or below this before a softmax are masked out of it
_HIDDEN = -1e4


def _softmax(aten: Aten[T], x: T, dim: int, keep: T | None = None, alive: T | None = None, dead: T | None = None) -> T:
    """Compute exp(x - max) over its sum. `keep` (booleans, or ones and zeros) masks elements, like a mask before it.

    A fully masked row is zero: `alive` is 0 for it and `keep` takes all of it, or `dead` is 1 for it.
    """
    x, hide = _split_mask(aten, x, dim)
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


def _split_mask(aten: Aten[T], x: T, dim: int) -> tuple[T, Callable[[T], T] | None]:
    """Return scores without the mask that makes some of them very low, and what masks these after the exponential.

    Quantized values have no infinity: it would become the lowest score that was seen, which is not zero. Rows fully
    masked by finite numbers are left as in torch.
    """
    name, args = aten.made_by(x)
    if name == "aten.add.Tensor":
        data = None if isinstance(args[1], (int, float)) else aten.data(args[1])
        if data is not None and bool(np.less_equal(data, _HIDDEN).any()):
            return _split_added_mask(aten, args[0], _align(data, aten.shape(x)), dim)
    found = _find_fill(aten, name, args)
    if found is None or found[3] > _HIDDEN:
        return x, None
    scores, condition, hides, fill = found
    mask = aten.data(condition) if math.isfinite(fill) else None
    if mask is not None:
        hidden = _align(mask if hides else np.logical_not(mask), aten.shape(x))
        whole = hidden.all(dim, keepdims=True)
        if whole.any():
            seen = _as_float(aten, np.logical_not(hidden) | whole)
            return aten("mul.Tensor", scores, _as_float(aten, ~whole)), lambda powers: aten("mul.Tensor", powers, seen)
    if hides:
        return scores, lambda powers: aten("masked_fill.Scalar", powers, condition, 0.0)
    return scores, lambda powers: aten("where.ScalarOther", condition, powers, 0.0)


def _find_fill(aten: Aten[T], name: str, args: Sequence[Any]) -> tuple[T, T, bool, float] | None:
    """Find the scores, the condition, whether it is true for masked scores, and the highest number put there."""
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


def _align(data: Array, shape: Sequence[int]) -> Array:
    """Give a constant as many dimensions as the tensor it is broadcast with."""
    return data.reshape((1,) * (len(shape) - data.ndim) + data.shape)


def _as_float(aten: Aten[T], flags: Array) -> T:
    return aten.constant(flags.astype(np.float32))


def _split_added_mask(aten: Aten[T], scores: T, data: Array, dim: int) -> tuple[T, Callable[[T], T] | None]:
    """Split off a mask that is added. In a fully masked row, only differences count."""
    most = data.max(dim, keepdims=True)
    whole = (most <= _HIDDEN) & np.isfinite(most)
    data = np.where(whole, data - np.where(whole, most, 0.0), data)
    seen = np.greater(data, _HIDDEN)
    rest = np.where(seen, data, 0.0).astype(np.float32)
    # Float32 cannot represent a score added to such a number.
    lost = whole & (np.spacing(np.abs(np.where(whole, most, 0.0)).astype(np.float32)) >= 1.0)
    if lost.any():
        scores = aten("mul.Tensor", scores, _as_float(aten, ~lost))
    if rest.any():
        scores = aten("add.Tensor", scores, aten.constant(rest))
    return scores, None if seen.all() else lambda powers: aten("mul.Tensor", powers, _as_float(aten, seen))


@composite(
    "softmax",
    "softmax.int",
    "_softmax.default",
    "_safe_softmax.default",
    samples=lambda: [
        call(lambda x: torch.softmax(x, -1), f32(2, 10)),
        call(lambda x: torch.softmax(x, 1), f32(3, 17)),
        call(lambda x: torch.softmax(x, 1), f32(1, 3, 4, 4)),
        call(lambda x: torch.softmax(x, 0), f32(5)),
        call(lambda x: F.softmax(x, dim=-2), f32(2, 4, 6)),
        call(lambda x: F.softmax(x, dim=-1, dtype=torch.float32), f32(2, 6)),
        call(lambda x: torch.softmax(x, -1), f32(2, 8, low=-20.0, high=20.0)),
        call(lambda x: torch.softmax(x.masked_fill(_make_mask(5), -math.inf), -1), f32(2, 5, 5)),
        call(lambda x: torch.softmax(torch.where(_make_mask(5), -1e9, x), -1), f32(1, 3, 5, 5)),
        call(lambda x: torch.softmax(torch.where(~_make_mask(5), x, -1e9), -1), f32(5, 5)),
        call(lambda x: torch.softmax(x + torch.zeros(4, 4).masked_fill(_make_mask(4), -math.inf), -1), f32(3, 4, 4)),
        call(lambda x: torch.softmax(x.masked_fill(x > 1.0, -math.inf), -1), f32(3, 17)),
    ],
)
def softmax(aten: Aten[T], self: T, dim: int, **_: object) -> T:
    return _softmax(aten, self, dim)


def _make_mask(size: int) -> Any:
    """Make a constant causal mask for samples."""
    return torch.ones(size, size, dtype=torch.bool).triu(1)


@composite(
    "log_softmax",
    "log_softmax.int",
    "_log_softmax.default",
    samples=lambda: [
        call(lambda x: torch.log_softmax(x, -1), f32(2, 10)),
        call(lambda x: torch.log_softmax(x, 1), f32(3, 17)),
        call(lambda x: torch.log_softmax(x, 1), f32(1, 64, 2, 2)),
        call(lambda x: torch.log_softmax(x, 0), f32(5)),
        call(lambda x: F.log_softmax(x, dim=-2, dtype=torch.float32), f32(2, 4, 6)),
        call(lambda x: torch.log_softmax(x, -1), f32(2, 8, low=-20.0, high=20.0)),
    ],
)
def log_softmax(aten: Aten[T], self: T, dim: int, **_: object) -> T:
    shifted = aten("sub.Tensor", self, aten("amax.default", self, [dim], True))
    total = aten("sum.dim_IntList", aten("exp.default", shifted), [dim], True)
    return aten("sub.Tensor", shifted, aten("log.default", total))


@composite(
    "scaled_dot_product_attention",
    samples=lambda: [
        call(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *[f32(1, 2, 6, 8)] * 3),
        call(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5), *[f32(3, 5, 4)] * 3),
        call(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[f32(1, 1, 5, 17)] * 3),
        call(
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
            *[f32(1, 2, 4, 8)] * 3,
            f32(4, 4),
        ),
        call(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.eye(4, dtype=torch.bool)),
            *[f32(1, 2, 4, 8)] * 3,
        ),
        call(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=_make_float_mask(5)),
            *[f32(3, 1, 5, 64)] * 3,
        ),
        call(
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0.0),
            *[f32(1, 2, 4, 8)] * 3,
            f32(4, 4),
        ),
        call(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=_make_float_mask_with_dead_row(4)),
            *[f32(1, 2, 4, 8)] * 3,
        ),
        call(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=_make_float_mask_with_dead_row(4) > -1.0),
            *[f32(1, 2, 4, 8)] * 3,
        ),
        module(lambda: _make_self_attention(16, 4), f32(2, 5, 16)),
        module(lambda: _make_self_attention(16, 4, need_weights=False), f32(1, 5, 16)),
        module(lambda: _make_self_attention(16, 2, attn_mask=_make_float_mask(5)), f32(3, 5, 16)),
        module(lambda: _make_self_attention(16, 2, need_weights=False, attn_mask=_make_float_mask(5)), f32(3, 5, 16)),
    ],
)
def scaled_dot_product_attention(
    aten: Aten[T],
    query: T,
    key: T,
    value: T,
    attn_mask: T | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> T:
    if dropout_p:
        raise Unsupported("attention has dropout", "call model.eval() before export")
    if enable_gqa:
        raise Unsupported("grouped-query attention is not available", "repeat the keys and values")
    factor = 1.0 / math.sqrt(aten.shape(query)[-1]) if scale is None else scale
    scores = aten("matmul.default", aten("mul.Tensor", query, factor), aten("transpose.int", key, -2, -1))
    keep = alive = dead = None
    if is_causal:
        rows, columns = aten.shape(query)[-2], aten.shape(key)[-2]
        keep = aten.constant(np.tril(np.ones((rows, columns), np.float32)))
    elif attn_mask is not None:
        data = aten.data(attn_mask)
        if data is not None and data.ndim:
            data, alive = _unmask_dead_rows(aten, data)
        if data is not None and data.dtype == np.bool_:
            keep = aten.constant(data.astype(np.float32))
        elif data is None and aten.is_bool(attn_mask):
            keep, dead = attn_mask, _find_dead_rows(aten, attn_mask)
        else:
            mask = attn_mask if alive is None or data is None else aten.constant(data.astype(np.float32))
            scores = aten("add.Tensor", scores, mask)
    return aten("matmul.default", _softmax(aten, scores, -1, keep, alive, dead), value)


def _unmask_dead_rows(aten: Aten[T], mask: Array) -> tuple[Array, T | None]:
    """Return a mask without fully masked rows, and ones and zeros for those it had; None if there were none."""
    seen = mask if mask.dtype == np.bool_ else ~np.isneginf(mask.astype(np.float32))
    alive = seen.any(-1, keepdims=True)
    if alive.all():
        return mask, None
    return np.where(alive, mask, np.asarray(mask.dtype == np.bool_, mask.dtype)), aten.constant(
        alive.astype(np.float32)
    )


def _find_dead_rows(aten: Aten[T], keep: T) -> T:
    """Return one for each row of a mask that hides all of it, zero for any other."""
    alive = aten("amax.default", aten("where.Scalar", keep, 1.0, 0.0), [-1], True)
    return aten("rsub.Scalar", alive, 1.0)


def _make_float_mask(size: int) -> Any:
    """Make the usual causal float mask for samples."""
    return torch.full((size, size), -math.inf).triu(1)


def _make_float_mask_with_dead_row(size: int) -> Any:
    """Make a causal float mask for samples that also masks one row fully."""
    return _make_float_mask(size).masked_fill(torch.arange(size).view(-1, 1) == 1, -math.inf)


def _make_self_attention(width: int, heads: int, **how: Any) -> Any:
    """Make nn.MultiheadAttention of a tensor with itself, for samples."""

    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.attention(x, x, x, **how)[0]

    return SelfAttention()
