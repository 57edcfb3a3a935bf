"""Estimates the time of a kernel call from the shapes of its arguments and results alone, before it is computed.

A file of a kilobyte may request hours of work: by a loop, or by one convolution whose window is as large as its input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from tosaic.core.errors import Invalid
from tosaic.engines.kernels import Live
from tosaic.engines.shapes import Arguments, Shape

if TYPE_CHECKING:
    import torch

#: The limit of a run, in approximate nanoseconds on one core: minutes, where networks for an NPU take seconds.
MAX_WORK = 100_000_000_000
#: Additional limit for each byte of the file: large networks have large files.
PER_BYTE = 20_000
#: Nanoseconds per call, regardless of its size.
_FIXED = 20_000
#: Nanoseconds per element, of arguments and results alike.
_ELEMENT = 10
_SLOW: Mapping[str, int] = MappingProxyType(
    {
        f"aten::{name}": 200
        for name in ("_fft_c2r", "_fft_r2c", "argsort", "kthvalue", "median", "sort", "topk", "grid_sampler_2d")
    }
    | {f"aten::{name}": 500 for name in ("grid_sampler_3d", "_upsample_bilinear2d_aa", "upsample_bicubic2d")}
    | {"aten::_upsample_bicubic2d_aa": 1000}
)
#: Nanoseconds per power of a difference.
_POWER = 20


class Meter:
    """The remaining work of one run."""

    def __init__(self, file_size: int) -> None:
        self._limit = MAX_WORK + PER_BYTE * file_size
        self._left = self._limit

    def take(self, work: int, what: str) -> None:
        """Count work that is about to be done for `what`, or that a delegate has done; raise if it is too much."""
        self._left -= work
        if self._left < 0:
            raise Invalid(
                f"the program needs too much work; it was stopped at {what}",
                why=f"a file of this size may take about {self._limit / 1e9:,.0f} seconds of one core",
                fix="if you trust the file, raise `tosaic.engines.work.MAX_WORK` (in nanoseconds)",
            )


def estimate_work(name: str, named: Arguments, values: Sequence[Live], results: Sequence[Shape | list[Shape]]) -> int:
    """Estimate the nanoseconds that a call of this kernel takes; `named` are its values that have a name."""
    shapes = [shape for result in results for shape in (result if isinstance(result, list) else [result])]
    elements = sum(map(count_elements, values)) + sum(map(math.prod, shapes))
    inner = _INNER.get(name)
    return _FIXED + _SLOW.get(name, _ELEMENT) * elements + (inner(named, shapes[0]) if inner is not None else 0)


def count_elements(value: Live) -> int:
    """Count the elements of a tensor, or of all tensors in a list."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.numel()
    return sum(map(count_elements, value)) if isinstance(value, list) else 0


def _convolve(named: Arguments, result: Shape) -> int:
    weight: torch.Tensor = named["weight"]
    moved = named["input"].numel() if named["transposed"] else math.prod(result)
    return moved * (weight.numel() // max(1, weight.shape[0]))


def _multiply(label: str, cost: int = 1) -> Callable[[Arguments, Shape], int]:
    """Make an estimate for results that are sums along the last dimension of this argument."""
    return lambda named, result: cost * math.prod(result) * named[label].shape[-1]


def _pool(named: Arguments, result: Shape) -> int:
    """Estimate a pool: each result looks at a window; one size may apply to all its dimensions."""
    kernel: list[int] = list(named["kernel_size"])
    return math.prod(result) * math.prod(kernel) ** (3 if len(kernel) == 1 else 1)


def _pool_to_size(named: Arguments, result: Shape) -> int:
    sizes: list[int] = list(named["output_size"])
    given = named["self"].shape[-len(sizes) :]
    return math.prod(result) * math.prod(
        before // max(1, after) + 2 for before, after in zip(given, sizes, strict=True)
    )


#: Kernels that do more than one step per element: the additional nanoseconds.
_INNER: Mapping[str, Callable[[Arguments, Shape], int]] = MappingProxyType(
    {
        "aten::convolution": _convolve,
        "aten::mm": _multiply("self"),
        "aten::bmm": _multiply("self"),
        "aten::mv": _multiply("self"),
        "aten::linear": _multiply("input"),
        "aten::addmm": _multiply("mat1"),
        "aten::baddbmm": _multiply("batch1"),
        "aten::_cdist_forward": _multiply("x1", _POWER),
        "aten::_pdist_forward": _multiply("self", _POWER),
        "aten::_adaptive_avg_pool2d": _pool_to_size,
        "aten::_adaptive_avg_pool3d": _pool_to_size,
        **{f"aten::avg_pool{rank}d": _pool for rank in (1, 2, 3)},
        **{f"aten::max_pool{rank}d_with_indices": _pool for rank in (2, 3)},
    }
)
