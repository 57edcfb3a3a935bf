"""Shortcuts for what torchao does slowly in every quantization. They change no result: tests/fuzz/test_speed.py."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torchao.quantization.pt2e.quantize_pt2e as pt2e
from torchao.quantization.pt2e.observer import HistogramObserver

SEARCH = "_non_linear_param_search"
ORIGINAL_SEARCH: Any = getattr(HistogramObserver, SEARCH)
#: how much of all numbers the search for a range gives up per move
_STEP = 1e-5


def install_search() -> None:
    """Let observers of this process search for their range on plain numbers."""
    setattr(HistogramObserver, SEARCH, search_range)


@contextmanager
def without_qat_patterns() -> Generator[None]:
    """Leave out the patterns of quantization-aware training, for a module that was not trained.

    convert_pt2e traces 96 of them for any batch norm, and finds only what that training has made.
    """
    with mock.patch.object(pt2e, "_fold_conv_bn_qat", lambda module: module):
        yield


def search_range(observer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Search for the range with the least error as the observer does, on plain numbers instead of tensors."""
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
