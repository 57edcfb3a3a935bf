"""Shortcuts for a process that checks many graphs: torch does again and again what is known or not needed here."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch._export.utils
import torchao.quantization.pt2e.quantize_pt2e as pt2e
from torchao.quantization.pt2e.observer import HistogramObserver

#: graphs between two collections of garbage
GRAPHS_PER_COLLECTION = 20
#: how much of all numbers the search for a range gives up per move
_STEP = 1e-5
_graphs = itertools.count(1)


@functools.cache
def prepare() -> None:
    """Install the shortcuts, for good: only in a process that does nothing else."""
    torch.set_num_threads(1)
    _run_once(torch._export.utils, "_materialize_cpp_cia_ops")
    # It traces 96 patterns for any batch norm, and finds only what quantization-aware training has made.
    pt2e._fold_conv_bn_qat = lambda module: module
    setattr(HistogramObserver, "_non_linear_param_search", search_range)  # noqa: B010
    gc.collect()
    gc.freeze()
    gc.disable()


def collect() -> None:
    """Collect garbage once in some graphs: exported programs are full of cycles."""
    if next(_graphs) % GRAPHS_PER_COLLECTION == 0:
        gc.collect()


def _run_once(module: Any, name: str) -> None:
    """Make a function without arguments and result do its work at its first call only."""
    function: Callable[[], None] = getattr(module, name)
    setattr(module, name, functools.cache(function))


def search_range(observer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The observer's own search for the range with the least error, on plain numbers instead of tensors."""
    sums: list[float] = torch.cumsum(observer.histogram, dim=0).tolist()
    total = float(torch.sum(observer.histogram).item())
    low, high = 0.0, 1.0
    first, last = 0, observer.bins - 1
    left, right = first, last
    least = float("inf")
    while low < high:
        while left < last and sums[left] < (low + _STEP) * total:
            left += 1
        while right > first and sums[right] > (high - _STEP) * total:
            right -= 1
        raise_low = left - first > last - right
        bounds = (left, last) if raise_low else (first, right)
        low, high = (low + _STEP, high) if raise_low else (low, high - _STEP)
        if bounds != (first, last):
            error = observer._compute_quantization_error(*bounds)
            if error > least:
                break
            least, (first, last) = error, bounds
        left, right = first, last
    width = (observer.max_val - observer.min_val) / observer.bins
    return observer.min_val + width * first, observer.min_val + width * (last + 1)
