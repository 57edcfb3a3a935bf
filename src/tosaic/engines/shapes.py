"""Shapes of the results of common kernels.

Torch can infer them too, but its rules for these are written in Python and load its compiler, which takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from tosaic.core.errors import Invalid
from tosaic.engines.kernel_names import RESIZES

if TYPE_CHECKING:
    import torch

Shape: TypeAlias = tuple[int, ...]
Arguments: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[Arguments], list[Shape]]

#: Elementwise kernels with broadcasting.
_ELEMENTWISE = """
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
bitwise_xor ceil celu clamp clamp_max clamp_min copysign cos cosh digamma div elu eq erf erfc erfinv exp exp2 expm1
floor floor_divide fmax fmin fmod frac ge gelu gt hardsigmoid hardswish hardtanh hypot isinf isnan isneginf isposinf le
leaky_relu lerp lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt
masked_fill maximum minimum mul nan_to_num ne neg pow reciprocal relu remainder round rsqrt rsub sgn sigmoid sign
signbit silu sin sinc sinh softplus sqrt sub tan tanh threshold trunc where xlogy
"""
_REDUCTIONS = "all amax amin any argmax argmin kthvalue logsumexp max mean median min prod sum var var_mean"
_SAME = "_log_softmax _softmax clone copy cumprod cumsum fill flip full_like ones_like roll tril triu zeros_like"
_SIZED = "full ones rand randn zeros"
_SAME_QUANTIZED = """
dequantize_per_channel dequantize_per_tensor dequantize_per_token quantize_per_channel quantize_per_tensor
quantize_per_token
"""


def broadcast(shapes: Sequence[Sequence[int]]) -> Shape:
    """Broadcast shapes to a common one."""
    rank = max(map(len, shapes), default=0)
    found = [1] * rank
    for shape in shapes:
        for position, size in enumerate(shape, rank - len(shape)):
            if size != 1 and found[position] not in (1, size):
                raise Invalid(f"shapes {[list(shape) for shape in shapes]} cannot be broadcast")
            found[position] = size if size != 1 else found[position]
    return tuple(found)


def _find_elementwise(named: Arguments) -> list[Shape]:
    import torch

    return [broadcast([value.shape for value in named.values() if isinstance(value, torch.Tensor)])]


def _keep_shape(named: Arguments) -> list[Shape]:
    return [tuple(next(iter(named.values())).shape)]


def _reduce(named: Arguments) -> list[Shape]:
    """Remove dimensions from the shape, once per result: with a single dimension, indices may follow."""
    source: torch.Tensor = named["self"]
    dim = named.get("dim")
    given: Sequence[int] = [dim] if isinstance(dim, int) else dim or range(source.dim())
    dims = {_wrap(each, source.dim()) for each in given}
    keeps = bool(named.get("keepdim", False))
    shape = tuple(1 if i in dims else n for i, n in enumerate(source.shape) if keeps or i not in dims)
    return [shape, shape]


def _wrap(dim: int, rank: int) -> int:
    if not -max(1, rank) <= dim < max(1, rank):
        raise Invalid(f"dimension {dim} does not exist in rank {rank}")
    return dim % max(1, rank)


def _find_addmm(named: Arguments) -> list[Shape]:
    first, second = named["mat1"], named["mat2"]
    if first.dim() != 2 or second.dim() != 2:
        raise Invalid("matrices have two dimensions")
    return [(first.shape[0], second.shape[1])]


def _find_layer_norm(named: Arguments) -> list[Shape]:
    shape = tuple(named["input"].shape)
    outer = len(shape) - len(named["normalized_shape"])
    if outer < 0:
        raise Invalid(f"shape {list(shape)} has fewer than {len(named['normalized_shape'])} dimensions to normalize")
    kept = (*shape[:outer], *[1] * (len(shape) - outer))
    return [shape, kept, kept]


def _find_group_norm(named: Arguments) -> list[Shape]:
    kept = (named["N"], named["group"])
    return [tuple(named["input"].shape), kept, kept]


def _find_batch_norm(named: Arguments) -> list[Shape]:
    shape = tuple(named["input"].shape)
    return [shape, shape[1:2], shape[1:2]]


def _find_fixed_batch_norm(named: Arguments) -> list[Shape]:
    return [tuple(named["input"].shape), (0,), (0,)]


def _find_pool(named: Arguments) -> list[Shape]:
    source: torch.Tensor = named["self"]
    kernel, padding, dilation = (_pair(named[label]) for label in ("kernel_size", "padding", "dilation"))
    stride = _pair(named["stride"]) if named["stride"] else kernel
    sizes: list[int] = []
    for size, k, s, p, d in zip(source.shape[-2:], kernel, stride, padding, dilation, strict=True):
        if min(k, s, d) < 1 or p < 0:
            raise Invalid(f"a window of {k} with stride {s}, padding {p} and dilation {d} cannot be used")
        span = size + 2 * p - d * (k - 1) - 1
        count = -(-span // s) if named["ceil_mode"] else span // s
        # A last window that begins in the trailing padding does not count.
        sizes.append(count + 1 - (named["ceil_mode"] and count * s >= size + p))
    shape = (*source.shape[:-2], *(max(0, size) for size in sizes))
    return [shape, shape]


def _pair(values: Sequence[int]) -> Sequence[int]:
    return list(values) * 2 if len(values) == 1 else values


def _resize(named: Arguments) -> list[Shape]:
    source: torch.Tensor = named.get("self", named.get("input"))
    sizes: Sequence[int] | None = named.get("output_size")
    if sizes is None:
        sizes = [int(n * f) for n, f in zip(source.shape[2:], named["scale_factors"], strict=True)]
    return [(*source.shape[:2], *(max(0, size) for size in sizes))]


def _convolve(named: Arguments) -> list[Shape]:
    source, weight = named["input"], named["weight"]
    rank = weight.dim() - 2
    lists = [list(named[label]) for label in ("stride", "padding", "dilation", "output_padding")]
    stride, padding, dilation, extra = ([*values] * rank if len(values) == 1 else values for values in lists)
    given = {len(values) for values in (stride, padding, dilation, extra)}
    if rank < 1 or source.dim() not in (rank + 1, rank + 2) or given != {rank}:
        raise Invalid(f"shape {list(source.shape)} does not fit a convolution with {list(weight.shape)}")
    if min(*stride, *dilation, named["groups"]) < 1 or min(*padding, *extra) < 0:
        raise Invalid(f"stride {stride}, padding {padding} and dilation {dilation} cannot be used")
    sizes: list[int] = []
    for i, size in enumerate(source.shape[-rank:]):
        reach = dilation[i] * (weight.shape[2 + i] - 1) + 1
        if named["transposed"]:
            sizes.append((size - 1) * stride[i] - 2 * padding[i] + reach + extra[i])
        else:
            sizes.append((size + 2 * padding[i] - reach) // stride[i] + 1)
    channels = weight.shape[1] * named["groups"] if named["transposed"] else weight.shape[0]
    return [(*source.shape[: -rank - 1], channels, *(max(0, size) for size in sizes))]


def _multiply(named: Arguments) -> list[Shape]:
    first, second = named["self"], named["mat2"]
    if first.dim() != second.dim() or first.dim() < 2:
        raise Invalid("matrices have two dimensions")
    return [(*first.shape[:-1], second.shape[-1])]


def _repeat(named: Arguments) -> list[Shape]:
    source, times = tuple(named["self"].shape), list(named["repeats"])
    if len(times) < len(source) or min(times, default=0) < 0:
        raise Invalid(f"shape {list(source)} cannot be repeated {times} times")
    return [tuple(n * k for n, k in zip((*[1] * (len(times) - len(source)), *source), times, strict=True))]


def _select(named: Arguments) -> list[Shape]:
    source, index = tuple(named["self"].shape), named["index"]
    dim = _wrap(named["dim"], len(source))
    return [(*source[:dim], index.numel(), *source[dim + 1 :])]


def _take_size(named: Arguments) -> list[Shape]:
    sizes = [size for size in named["size"] if size >= 0]
    if len(sizes) != len(named["size"]):
        raise Invalid(f"{named['size']} is not a shape")
    return [tuple(sizes)]


def _join(named: Arguments) -> list[Shape]:
    # An empty 1-D tensor fits any other: a legacy rule of torch.
    shapes = [tuple(each.shape) for each in named["tensors"] if tuple(each.shape) != (0,)]
    if not shapes:
        return [(0,)]
    dim = _wrap(named.get("dim", 0), len(shapes[0]))
    if len({(*shape[:dim], 0, *shape[dim + 1 :]) for shape in shapes}) != 1:
        raise Invalid(f"shapes {[list(shape) for shape in shapes]} cannot be concatenated along dimension {dim}")
    return [(*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :])]


def _count(named: Arguments) -> list[Shape]:
    begin, end, step = named.get("start", 0), named["end"], named.get("step", 1)
    if not step:
        raise Invalid("the step is 0")
    return [(max(0, math.ceil((end - begin) / step)),)]


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{f"aten::{name}": _find_elementwise for name in _ELEMENTWISE.split()},
        **{f"aten::{name}": _reduce for name in _REDUCTIONS.split()},
        **{f"aten::{name}": _keep_shape for name in _SAME.split()},
        **{f"quantized_decomposed::{name}": _keep_shape for name in _SAME_QUANTIZED.split()},
        **dict.fromkeys(RESIZES, _resize),
        **{f"aten::{name}": _take_size for name in _SIZED.split()},
        "aten::addmm": _find_addmm,
        "aten::bmm": _multiply,
        "aten::mm": _multiply,
        "aten::repeat": _repeat,
        "aten::index_select": _select,
        "aten::arange": _count,
        "aten::cat": _join,
        "aten::convolution": _convolve,
        "aten::native_layer_norm": _find_layer_norm,
        "aten::native_group_norm": _find_group_norm,
        "aten::_native_batch_norm_legit": _find_batch_norm,
        "aten::_native_batch_norm_legit_no_training": _find_fixed_batch_norm,
        "aten::max_pool2d_with_indices": _find_pool,
    }
)
