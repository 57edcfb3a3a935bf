"""Attention: scaled_dot_product_attention as matmul, softmax, matmul. nn.MultiheadAttention is made of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir.graph import Array
from tosaic.lower.registry import composite
from tosaic.lower.samples import F, call, f32, module, nn, torch
from tosaic.ops.activation import softmax_of


def _expand_attention(
    aten: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
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
            data, alive = _free_rows(aten, data)
        if data is not None and data.dtype == np.bool_:
            keep = aten.constant(data.astype(np.float32))
        elif data is None and aten.is_bool(attn_mask):
            keep, dead = attn_mask, _dead_rows(aten, attn_mask)
        else:
            mask = attn_mask if alive is None or data is None else aten.constant(data.astype(np.float32))
            scores = aten("add.Tensor", scores, mask)
    return aten("matmul.default", softmax_of(aten, scores, -1, keep, alive, dead), value)


def _free_rows(aten: Any, mask: Array) -> tuple[Array, Any]:
    """A mask that hides no row as a whole, and ones and zeros for what it hid of them; None where it hid none."""
    seen = mask if mask.dtype == np.bool_ else ~np.isneginf(mask.astype(np.float32))
    alive = seen.any(-1, keepdims=True)
    if alive.all():
        return mask, None
    return np.where(alive, mask, np.asarray(mask.dtype == np.bool_, mask.dtype)), aten.constant(
        alive.astype(np.float32)
    )


def _dead_rows(aten: Any, keep: Any) -> Any:
    """One for each row of a mask that hides all of it, zero for any other."""
    alive = aten("amax.default", aten("where.Scalar", keep, 1.0, 0.0), [-1], True)
    return aten("rsub.Scalar", alive, 1.0)


composite(
    "scaled_dot_product_attention",
    "aten.scaled_dot_product_attention.default",
    expand=_expand_attention,
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
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=_ahead(5)),
            *[f32(3, 1, 5, 64)] * 3,
        ),
        call(
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0.0),
            *[f32(1, 2, 4, 8)] * 3,
            f32(4, 4),
        ),
        call(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=_without_row(4)),
            *[f32(1, 2, 4, 8)] * 3,
        ),
        call(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=_without_row(4) > -1.0),
            *[f32(1, 2, 4, 8)] * 3,
        ),
        module(lambda: _self_attention(16, 4), f32(2, 5, 16)),
        module(lambda: _self_attention(16, 4, need_weights=False), f32(1, 5, 16)),
        module(lambda: _self_attention(16, 2, attn_mask=_ahead(5)), f32(3, 5, 16)),
        module(lambda: _self_attention(16, 2, need_weights=False, attn_mask=_ahead(5)), f32(3, 5, 16)),
    ],
)


def _ahead(size: int) -> Any:
    """Used by samples: the usual float mask of what lies ahead."""
    return torch.full((size, size), -math.inf).triu(1)


def _without_row(size: int) -> Any:
    """Used by samples: a float mask that hides what lies ahead, and one row as a whole."""
    return _ahead(size).masked_fill(torch.arange(size).view(-1, 1) == 1, -math.inf)


def _self_attention(width: int, heads: int, **how: Any) -> Any:
    """Used by samples: nn.MultiheadAttention of a tensor with itself."""

    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.attention(x, x, x, **how)[0]

    return SelfAttention()
