"""Normalization: batch_norm (what the quantizer could not fold), layer, group, instance and rms norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.lower import convolution
from tosaic.lower.aten import Aten, T
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import composite, op
from tosaic.lower.samples import F, call, f32, module, nn
from tosaic.lower.tensor import Const, Tensor


def _normalize_batch(
    lo: Lowering,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> Tensor:
    factor = 1.0 / np.sqrt(_require_constant(var).real() + eps)
    if weight is not None:
        factor = factor * _require_constant(weight).real()
    offset = -_require_constant(mean).real() * factor + (0.0 if bias is None else _require_constant(bias).real())
    return convolution.scale_channels(lo, x, factor, offset)


def _require_constant(t: Tensor) -> Const:
    if not isinstance(t, Const):
        raise Unsupported("its statistics are not constants", "call model.eval() before export")
    return t


def _decompose_batch_norm(
    aten: Aten[T],
    input: T,
    weight: T | None,
    bias: T | None,
    running_mean: T | None,
    running_var: T | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> T | None:
    """Write a norm that keeps no statistics by those of its input."""
    if running_mean is not None or running_var is not None:
        return None
    over = [d for d in range(len(aten.shape(input))) if d != 1]
    return _normalize(aten, input, lambda t: aten("mean.dim", t, over, True), weight, bias, eps)[0]


@op(
    "batch_norm",
    quant="exact",
    decompose=_decompose_batch_norm,
    folds_into_producer=True,
    computes_in_float32=True,
    samples=lambda: [
        module(lambda: _with_statistics(nn.BatchNorm2d(3)), f32(1, 3, 4, 4)),
        module(lambda: _with_statistics(nn.BatchNorm2d(17, eps=0.1)), f32(3, 17, 4, 4)),
        module(lambda: nn.Sequential(nn.ReLU(), _with_statistics(nn.BatchNorm2d(8, affine=False))), f32(1, 8, 4, 4)),
        module(lambda: _with_statistics(nn.BatchNorm1d(64)), f32(3, 64)),
        module(lambda: _with_statistics(nn.BatchNorm1d(5)), f32(2, 5, 7)),
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), _with_statistics(nn.BatchNorm2d(8))), f32(1, 3, 6, 6)),
        module(lambda: nn.BatchNorm2d(3, track_running_stats=False), f32(1, 3, 5, 4)),
        module(lambda: _with_weights(nn.BatchNorm2d(17, eps=0.1, track_running_stats=False)), f32(3, 17, 4, 4)),
        module(lambda: _with_weights(nn.BatchNorm1d(4, track_running_stats=False)), f32(9, 4)),
    ],
)
def batch_norm(
    lo: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Tensor | None:
    if running_mean is None or running_var is None:
        return None
    if training:
        raise Unsupported("batch norm is in train mode", "call model.eval() before export")
    return _normalize_batch(lo, input, weight, bias, running_mean, running_var, eps)


def _with_statistics(norm: Any) -> Any:
    """Give a norm nontrivial statistics and weights, for samples."""
    channels = norm.num_features
    for i in range(channels):
        norm.running_mean[i] = math.sin(i + 1.0)
        norm.running_var[i] = 0.5 + (i % 7) / 3.0
        if norm.affine:
            norm.weight.data[i] = 1.5 * math.cos(i)
            norm.bias.data[i] = math.sin(3.0 * i)
    return norm


@op("batch_norm_legit", "_native_batch_norm_legit_no_training.default", quant="none", computes_in_float32=True)
def batch_norm_legit(
    lo: Lowering,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Unsupported, Unsupported]:
    """Lower the form that exir decomposes to; only the first result is used in inference."""
    out = _normalize_batch(lo, input, weight, bias, running_mean, running_var, eps)
    gone = Unsupported("batch statistics are not available on the NPU")
    return out, gone, gone


def _layer_norm(
    aten: Aten[T], x: T, normalized_shape: Sequence[int], weight: T | None, bias: T | None, eps: float
) -> tuple[T, T, T]:
    dims = list(range(-len(normalized_shape), 0))
    mean = aten("mean.dim", x, dims, True)
    centered = aten("sub.Tensor", x, mean)
    variance = aten("mean.dim", aten("mul.Tensor", centered, centered), dims, True)
    inverse = aten("rsqrt.default", aten("add.Tensor", variance, eps))
    out = aten("mul.Tensor", centered, inverse)
    if weight is not None:
        out = aten("mul.Tensor", out, weight)
    if bias is not None:
        out = aten("add.Tensor", out, bias)
    return out, mean, inverse


@composite(
    "layer_norm",
    samples=lambda: [
        module(lambda: nn.LayerNorm(16), f32(2, 16)),
        module(lambda: nn.LayerNorm(17, eps=1e-3), f32(3, 4, 17)),
        module(lambda: nn.LayerNorm((4, 5)), f32(1, 3, 4, 5)),
        module(lambda: nn.LayerNorm(64, bias=False), f32(1, 2, 64)),
        call(lambda x: F.layer_norm(x, (8,)), f32(3, 8)),
    ],
)
def layer_norm(
    aten: Aten[T],
    input: T,
    normalized_shape: Sequence[int],
    weight: T | None = None,
    bias: T | None = None,
    eps: float = 1e-5,
    **_: object,
) -> T:
    return _layer_norm(aten, input, normalized_shape, weight, bias, eps)[0]


@composite("native_layer_norm")
def native_layer_norm(
    aten: Aten[T], input: T, normalized_shape: Sequence[int], weight: T | None, bias: T | None, eps: float
) -> tuple[T, T, T]:
    return _layer_norm(aten, input, normalized_shape, weight, bias, eps)


def _group_norm(aten: Aten[T], x: T, groups: int, weight: T | None, bias: T | None, eps: float) -> tuple[T, T, T]:
    """Compute means over the image first, then over the channels of a group: the image itself is never permuted."""
    batch, channels, *tail = aten.shape(x)
    over, column = list(range(2, 2 + len(tail))), [1] * len(tail)

    def average(t: T) -> T:
        t = aten("mean.dim", t, over, True) if over else t
        if groups == channels:
            return t
        size = channels // groups
        mean = aten("mean.dim", aten("view.default", t, [batch, groups, size]), [-1], True)
        return aten("reshape.default", aten("expand.default", mean, [batch, groups, size]), [batch, channels, *column])

    return _normalize(aten, x, average, weight, bias, eps)


def _normalize(
    aten: Aten[T], x: T, average: Callable[[T], T], weight: T | None, bias: T | None, eps: float
) -> tuple[T, T, T]:
    """Return an image without its mean, divided by its deviation, with the mean and the factor."""
    line = [-1, *(1 for _ in aten.shape(x)[2:])]
    mean = average(x)
    centered = aten("sub.Tensor", x, mean)
    inverse = aten("rsqrt.default", aten("add.Tensor", average(aten("mul.Tensor", centered, centered)), eps))
    factor = inverse
    if weight is not None:
        factor = aten("mul.Tensor", factor, aten("view.default", weight, line))
    out = aten("mul.Tensor", centered, factor)
    if bias is not None:
        out = aten("add.Tensor", out, aten("view.default", bias, line))
    return out, mean, inverse


@composite(
    "group_norm",
    samples=lambda: [
        module(lambda: _with_weights(nn.GroupNorm(2, 4)), f32(1, 4, 5, 5)),
        module(lambda: _with_weights(nn.GroupNorm(1, 17, eps=0.1)), f32(3, 17, 4, 4)),
        module(lambda: _with_weights(nn.GroupNorm(8, 64)), f32(1, 64, 6)),
        module(lambda: nn.GroupNorm(3, 3, affine=False), f32(1, 3, 4, 4)),
        module(lambda: _with_weights(nn.GroupNorm(2, 8)), f32(3, 8)),
        module(
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3), _with_weights(nn.GroupNorm(4, 8)), nn.ReLU()), f32(1, 3, 8, 8)
        ),
    ],
)
def group_norm(
    aten: Aten[T],
    input: T,
    num_groups: int,
    weight: T | None = None,
    bias: T | None = None,
    eps: float = 1e-5,
    **_: object,
) -> T:
    return _group_norm(aten, input, num_groups, weight, bias, eps)[0]


def _with_weights(norm: Any) -> Any:
    """Give a norm nontrivial weights, for samples."""
    for i in range(norm.weight.numel()):
        norm.weight.data.view(-1)[i] = 1.0 + 0.5 * math.cos(i)
        if getattr(norm, "bias", None) is not None:
            norm.bias.data.view(-1)[i] = math.sin(3.0 * i)
    return norm


@composite("native_group_norm")
def native_group_norm(
    aten: Aten[T], input: T, weight: T | None, bias: T | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[T, T, T]:
    out, mean, inverse = _group_norm(aten, input, group, weight, bias, eps)
    channels = aten.shape(mean)[1]
    # Torch returns one number for each group; here all channels of a group have the same.
    return out, _per_group(aten, mean, N, group, channels), _per_group(aten, inverse, N, group, channels)


def _per_group(aten: Aten[T], t: T, batch: int, groups: int, channels: int) -> T:
    columns = aten("view.default", t, [batch, groups, channels // groups])
    return aten("select.int", columns, 2, 0)


@composite(
    "instance_norm",
    samples=lambda: [
        module(lambda: nn.InstanceNorm2d(3), f32(1, 3, 5, 5)),
        module(lambda: _with_weights(nn.InstanceNorm2d(17, affine=True, eps=0.1)), f32(3, 17, 4, 4)),
        module(lambda: nn.InstanceNorm1d(64), f32(1, 64, 9)),
        module(lambda: _with_statistics(nn.InstanceNorm2d(8, affine=True, track_running_stats=True)), f32(1, 8, 4, 4)),
    ],
)
def instance_norm(
    aten: Aten[T],
    input: T,
    weight: T | None,
    bias: T | None,
    running_mean: T | None,
    running_var: T | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> T:
    if use_input_stats:
        return _group_norm(aten, input, aten.shape(input)[1], weight, bias, eps)[0]
    fixed = (weight, bias, running_mean, running_var, False, momentum, eps, cudnn_enabled)
    return aten("batch_norm.default", input, *fixed)


@composite(
    "rms_norm",
    samples=lambda: [
        module(lambda: _with_weights(nn.RMSNorm(16)), f32(1, 16)),
        module(lambda: _with_weights(nn.RMSNorm(17, eps=0.1)), f32(3, 4, 17)),
        module(lambda: _with_weights(nn.RMSNorm((4, 5))), f32(1, 3, 4, 5)),
        module(lambda: nn.RMSNorm(64, elementwise_affine=False), f32(1, 2, 64)),
    ],
)
def rms_norm(
    aten: Aten[T], input: T, normalized_shape: Sequence[int], weight: T | None = None, eps: float | None = None
) -> T:
    dims = list(range(-len(normalized_shape), 0))
    power = aten("mean.dim", aten("mul.Tensor", input, input), dims, True)
    smallest = float(np.finfo(np.float32).eps) if eps is None else eps
    out = aten("mul.Tensor", input, aten("rsqrt.default", aten("add.Tensor", power, smallest)))
    return out if weight is None else aten("mul.Tensor", out, weight)
