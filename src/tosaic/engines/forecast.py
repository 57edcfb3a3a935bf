"""Predicts the result of a kernel call before it is computed: a file may request a result of any size.

The shapes come from rules, or from torch's own kernels on the meta device, which has no memory. Arguments that torch
does not check are checked here first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tosaic.core.errors import Invalid
from tosaic.engines.kernel_names import RESIZES
from tosaic.engines.kernels import Kernel, Live
from tosaic.engines.shapes import RULES, Arguments, Shape, broadcast

if TYPE_CHECKING:
    import torch


class Forecast(NamedTuple):
    """The shapes of the results (a list for a list of tensors), and the bytes that a kernel needs in addition."""

    results: list[Shape | list[Shape]]
    scratch: int = 0


def foresee(kernel: Kernel, values: Sequence[Live], outs: Mapping[int, Live]) -> Forecast:
    """Predict a call; `outs` are empty tensors of the types that the results have."""
    named: Arguments = dict(zip(kernel.labels, values, strict=False))
    for check in _CHECKS.get(kernel.name, ()):
        check(named, outs)
    by_value = _BY_VALUE.get(kernel.name)
    if by_value is not None:
        return by_value(named)
    rule = RULES.get(kernel.name)
    if rule is not None:
        shapes = rule(named)[: max(1, len(outs))]
        return Forecast([*shapes], _count_scratch(kernel.name, named, shapes[0]))
    if kernel.name in _NUMBERS:
        return Forecast([()])
    if kernel.name in _INDEXED:
        values = [_count_masks(value) if label == "indices" else value for label, value in named.items()]
    metas = [_to_meta(value) for value in values]
    results = kernel.apply(metas, {i: _to_meta(out) for i, out in outs.items()})
    return Forecast([_get_shape(result) for result in results])


def depends_on_numbers(kernel: Kernel, values: Sequence[Live]) -> bool:
    """Tell whether the values of the inputs, not only their types, decide if the call is allowed and its result."""
    import torch

    if kernel.name not in _INDEXED:
        return kernel.name in _BY_VALUE or kernel.name in _DIVISIONS
    lists = [value for value in values if isinstance(value, list)]
    return any(isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8) for items in lists for x in items)


def _to_meta(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [_to_meta(item) for item in _list_items(value)] if isinstance(value, list) else value


def _list_items(value: Any) -> list[Any]:
    return list(value)


def _get_shape(result: Any) -> Any:
    """Return the shape of a tensor, or of each tensor in a list; a number has none."""
    if type(result) in (list, tuple):
        return [_get_shape(item) for item in result]
    return tuple(result.shape) if hasattr(result, "shape") else ()


def _count_masks(indices: Any) -> Any:
    """Replace masks among indices by lists of as many positions as they select."""
    import torch

    counted: list[Any] = []
    for index in _list_items(indices):
        if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
            counted += [torch.empty(int(index.count_nonzero()), dtype=torch.int64, device="meta")] * index.dim()
        else:
            counted.append(index)
    return counted


def _refuse(why: str) -> Invalid:
    return Invalid("the arguments of the kernel are not valid", why=why)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _check_norm(named: Arguments, _outs: Mapping[int, Live]) -> None:
    """Check the statistics of a batch norm: one number per channel."""
    source = named["input"]
    if not _is_tensor(source) or source.dim() < 2:
        raise _refuse("the input has fewer than two dimensions")
    for label in ("weight", "bias", "running_mean", "running_var"):
        value = named.get(label)
        if value is not None and (not _is_tensor(value) or tuple(value.shape) != (source.shape[1],)):
            raise _refuse(f"`{label}` does not have one number for each of {source.shape[1]} channels")


def _check_modes(named: Arguments, _outs: Mapping[int, Live]) -> None:
    for label in ("interpolation_mode", "padding_mode"):
        if named[label] not in (0, 1, 2):
            raise _refuse(f"`{label}` is {named[label]}, expected 0, 1 or 2")


def _check_fft(named: Arguments, _outs: Mapping[int, Live]) -> None:
    source, dims = named["self"], named["dim"]
    if not _is_tensor(source) or not dims or len(set(dims)) != len(dims):
        raise _refuse(f"the dimensions are {dims}")
    if not all(type(dim) is int and 0 <= dim < source.dim() for dim in dims) or 0 in source.shape:
        raise _refuse(f"the dimensions {dims} are not all in shape {list(source.shape)}")
    size = named.get("last_dim_size")
    if size is not None and (size < 1 or size // 2 + 1 != source.shape[dims[-1]]):
        raise _refuse(f"a result of size {size} cannot come from {source.shape[dims[-1]]} numbers")


def _check_factor(named: Arguments, _outs: Mapping[int, Live]) -> None:
    for label in ("upscale_factor", "downscale_factor"):
        # Its square must fit 64 bits.
        if not 0 < named.get(label, 1) < 1 << 24:
            raise _refuse(f"`{label}` is {named[label]}")


def _check_scales(named: Arguments, _outs: Mapping[int, Live]) -> None:
    """Check that a resize is not larger than its factors allow: source positions are computed from them."""
    source, sizes = named.get("self", named.get("input")), named.get("output_size")
    factors = named.get("scale_factors")
    if factors is None:
        factors = [value for label, value in named.items() if label.startswith("scales")]
    if not _is_tensor(source) or not all(factor is None or 1e-3 <= factor <= 1e3 for factor in factors):
        raise _refuse(f"the factors are {factors}, expected 0.001 to 1000")
    given = source.shape[2:]
    for before, after, factor in zip(given, sizes or (), factors, strict=False):
        if factor is not None and after > before * factor * 1.001 + 1:
            raise _refuse(f"size {before} times {factor} is less than {after}")


def _check_pieces(named: Arguments, outs: Mapping[int, Live]) -> None:
    """Check that a tensor is split into as many pieces as there are values for them."""
    (wanted,) = outs.values()
    source, dim = named["self"], named.get("dim", 0)
    if not _is_tensor(source) or not isinstance(wanted, list) or not -source.dim() <= dim < source.dim():
        raise _refuse(f"dimension {dim} cannot be cut")
    size, step = source.shape[dim], named.get("split_size", 1)
    if step < 1 or max(1, -(-size // step)) != len(wanted):
        raise _refuse(f"{size} in steps of {step} are not {len(wanted)} pieces")


def _check_division(named: Arguments, _outs: Mapping[int, Live]) -> None:
    """Check that the lowest integer is not divided by -1: the overflow ends the process."""
    import torch

    if not _is_tensor(named["self"]):
        return
    dividend: torch.Tensor = named["self"]
    divisor: Any = named["other"]
    if dividend.dtype not in (torch.int32, torch.int64) or (_is_tensor(divisor) and divisor.is_floating_point()):
        return
    by_minus_one = bool((divisor == -1).any()) if _is_tensor(divisor) else divisor == -1
    if by_minus_one and bool((dividend == torch.iinfo(dividend.dtype).min).any()):
        raise _refuse(f"{torch.iinfo(dividend.dtype).min} is divided by -1")


def _foresee_nonzero(named: Arguments) -> Forecast:
    source: torch.Tensor = named["self"]
    return Forecast([(int(source.count_nonzero()), source.dim())])


def _foresee_masked_select(named: Arguments) -> Forecast:
    source, mask = named["self"], named["mask"]
    whole = math.prod(broadcast((source.shape, mask.shape)))
    count = int(mask.count_nonzero()) * (whole // mask.numel()) if whole else 0
    # Copies of both, and a running sum of the mask.
    return Forecast([(count,)], whole * (source.element_size() + 9))


def _foresee_repeats(named: Arguments) -> Forecast:
    repeats: torch.Tensor = named["repeats"]
    if repeats.dim() != 1 or repeats.is_floating_point() or repeats.is_complex():
        raise _refuse(f"the numbers of repeats are {repeats.dtype}{list(repeats.shape)}")
    # As Python integers: a 64-bit sum could overflow to a small number.
    counts = [int(low) for low in (repeats.min(), repeats.max())] if repeats.numel() else [0, 0]
    if counts[0] < 0 or counts[1] * repeats.numel() >= 1 << 62:
        raise _refuse(f"the numbers of repeats are from {counts[0]} to {counts[1]}")
    return Forecast([(int(repeats.sum()),)], 8 * repeats.numel())


def _foresee_empty(named: Arguments) -> Forecast:
    return Forecast([tuple(named["size"])])


def _count_scratch(name: str, named: Arguments, result: Shape) -> int:
    """Count the bytes that a kernel needs in addition to its result."""
    import torch

    if name.startswith("quantized_decomposed::"):
        # Kernels in Python keep each intermediate result as floats.
        return 4 * 4 * math.prod(result)
    source: torch.Tensor = named.get("input", named.get("self"))
    if name in RESIZES and name.endswith("_aa"):
        # Between its two passes one dimension has its old size, and the other its new one.
        outer, (height, width) = math.prod(result[:2]), source.shape[2:]
        return outer * max(height * result[3], result[2] * width) * source.element_size()
    if name != "aten::convolution":
        return 0
    weight: torch.Tensor = named["weight"]
    if source.dtype == torch.float32:
        return (source.numel() + weight.numel()) * source.element_size()
    # For other types torch makes a matrix of all windows.
    moved: Shape = tuple(map(int, source.shape)) if named["transposed"] else result
    return math.prod(moved) // max(1, moved[1 - weight.dim()]) * weight[:1].numel() * source.element_size()


#: Kernels that return one number of an input or of its shape.
_NUMBERS = frozenset(("aten::_local_scalar_dense", "aten::sym_size", "aten::sym_numel"))
#: Kernels whose indices may be masks.
_INDEXED = frozenset(("aten::index", "aten::index_put", "aten::index_put_"))
_DIVISIONS = frozenset(f"aten::{name}" for name in ("div", "floor_divide", "remainder", "fmod"))
_Check: TypeAlias = Callable[[Arguments, Mapping[int, Live]], None]
_CHECKS: Mapping[str, tuple[_Check, ...]] = MappingProxyType(
    {
        "aten::_native_batch_norm_legit": (_check_norm,),
        "aten::_native_batch_norm_legit_no_training": (_check_norm,),
        "aten::grid_sampler_2d": (_check_modes,),
        "aten::grid_sampler_3d": (_check_modes,),
        "aten::_fft_c2r": (_check_fft,),
        "aten::_fft_r2c": (_check_fft,),
        "aten::pixel_shuffle": (_check_factor,),
        "aten::pixel_unshuffle": (_check_factor,),
        "aten::split_copy": (_check_pieces,),
        "aten::unbind_copy": (_check_pieces,),
        # The others take the nearest element, within the input, whatever the factors are.
        **{name: (_check_scales,) for name in RESIZES if "nearest" not in name},
        **dict.fromkeys(_DIVISIONS, (_check_division,)),
    }
)
#: Kernels whose result shape depends on values, not only on types.
_BY_VALUE: Mapping[str, Callable[[Arguments], Forecast]] = MappingProxyType(
    {
        "aten::nonzero": _foresee_nonzero,
        "aten::masked_select": _foresee_masked_select,
        "aten::repeat_interleave": _foresee_repeats,
        "aten::empty": _foresee_empty,
        "dim_order_ops::_empty_dim_order": _foresee_empty,
    }
)
