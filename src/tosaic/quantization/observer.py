"""Observers with the ranges of torchao's, to the last bit, in a fraction of their time.

Torchao's search for a range looks at one bin after the other, each in a tensor. Here the bins are plain
numbers, found by bisection, and what decides on the range is computed for several candidates at once. Weights are the
same for every sample, and are observed once.
"""

from __future__ import annotations

import functools
import itertools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torchao.quantization import pt2e

from tosaic.fx.arrays import to_numpy, to_torch

#: the share of all numbers that a range gives up per move
_STEP = 1e-5
#: how many ranges are compared at once; the search ends after two or three of them as a rule
_AT_ONCE = 4
#: how much larger a range with room is
_ROOM = 1.25
#: how many numbers are counted at once: more do not fit into the cache
_PART = 2**16
#: The bins of other ranges are too wide or too narrow for a float32; torch has a way of its own for them.
_NARROWEST, _WIDEST = 2.0**-100, 2.0**100
#: how many bins a 16-bit integer can number twice
_MOST_BINS = 2**14 - 2
#: scale and zero point
_Parameters: TypeAlias = tuple[torch.Tensor, torch.Tensor]
_Floats: TypeAlias = "NDArray[np.float32]"
_HALF, _ONE, _THREE = np.float32(0.5), np.float32(1.0), np.float32(3.0)


class _Remembers:
    """Keeps the scale and zero point that it found: a weight's bias asks for them too."""

    _found: _Parameters | None = None

    def calculate_qparams(self) -> _Parameters:
        """Return scale and zero point."""
        found = self._found
        if found is None:
            base: Any = super()
            found = self._found = base.calculate_qparams()
        return found


class _ObservesOnce(_Remembers):
    """Observes a weight once, although each sample shows it again."""

    _seen: _Version | None = None

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Observe a tensor, unless it is the one that was observed last."""
        if self._seen is None or not self._seen.is_of(x_orig):
            self._seen, self._found = _Version.make(x_orig), None
            base: Any = super()
            base.forward(self._reduce(x_orig.detach()))
        return x_orig

    def _reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Reduce a tensor to the numbers that decide."""
        return x


class HistogramObserver(_Remembers, pt2e.HistogramObserver):
    """Keeps a histogram of what it sees, and chooses the range with the least error."""

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Add the numbers of a tensor to the histogram."""
        self._found = None
        x = x_orig.detach()
        if x.numel() == 0 or x.dtype is not torch.float32:
            return super().forward(x_orig)
        low, high = torch.aminmax(x)
        old_low, old_high = self.min_val, self.max_val
        new_low, new_high = torch.minimum(low, old_low), torch.maximum(high, old_high)
        counts = self._count(x, new_low, new_high)
        if counts is None:
            return super().forward(x_orig)
        if old_low <= old_high:
            counts = self._combine_histograms(self.histogram, old_low, old_high, counts, new_low, new_high)
        self.histogram.copy_(counts)
        self.min_val.copy_(new_low)
        self.max_val.copy_(new_high)
        return x_orig

    def _count(self, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor | None:
        """Count the numbers in each bin as `torch.histc` does; None if they are infinite or all the same."""
        width = high - low
        if not _NARROWEST < width < _WIDEST or self.bins > _MOST_BINS or self.bins & (self.bins - 1):
            return None
        # Torch multiplies by the number of bins, a power of two, and divides by the width: the quotient is the same.
        bin_width: Any = width / self.bins
        turns = _list_turns(self.bins + 1)
        counts = torch.zeros(2 * (self.bins + 1), dtype=torch.int64, device=x.device)
        for part in torch.tensor_split(x.reshape(-1), -(-x.numel() // _PART)):
            bins = (part - low).div_(bin_width).to(torch.int16)
            bins += turns[: part.numel()]
            counts += torch.bincount(bins, minlength=counts.numel())
        both = counts.view(2, -1).sum(0)
        # The largest number belongs to the last bin.
        both[self.bins - 1] += both[self.bins]
        return both[: self.bins].to(torch.float32)

    def _upscale_histogram(
        self,
        histogram: torch.Tensor,
        orig_min: torch.Tensor,
        orig_max: torch.Tensor,
        update_min: torch.Tensor,
        update_max: torch.Tensor,
    ) -> torch.Tensor:
        """Spread a histogram over the bins of a wider range: each bin in small parts, by their centers."""
        parts = self.bins * self.upsample_rate
        part = (orig_max - orig_min) / parts
        centers = torch.linspace(orig_min, orig_max, parts + 1, device=orig_min.device)[:-1] + 0.5 * part
        edges = torch.linspace(update_min, update_max, self.bins + 1, device=update_min.device)
        if not _is_sorted(centers) or not _is_sorted(edges):
            return super()._upscale_histogram(histogram, orig_min, orig_max, update_min, update_max)
        # Both ascend, so the parts of one bin are neighbors: all but the first and the last edge separate two bins.
        starts = torch.searchsorted(centers, edges[1:-1])
        sizes = torch.diff(starts, prepend=starts.new_zeros(1), append=starts.new_full((1,), parts))
        bins = torch.repeat_interleave(sizes, output_size=parts)
        weights = (histogram / self.upsample_rate).repeat_interleave(self.upsample_rate, output_size=parts)
        return torch.bincount(bins, weights=weights, minlength=self.bins)

    def _non_linear_param_search(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Search for the range with the least error: narrow it as long as the error does not grow."""
        first, last, least = 0, self.bins - 1, float("inf")
        ranges = _list_ranges(self.histogram)
        while some := list(itertools.islice(ranges, _AT_ONCE)):
            for bounds, error in zip(some, self._measure_errors(some), strict=True):
                if error > least:
                    ranges = iter(())
                    break
                least, (first, last) = error, bounds
        width = (self.max_val - self.min_val) / self.bins
        return self.min_val + width * first, self.min_val + width * (last + 1)

    @np.errstate(all="ignore")  # like torch
    def _measure_errors(self, ranges: Sequence[tuple[int, int]]) -> list[float]:
        """Measure the error of quantizing to each of some ranges, in the same steps and roundings as torchao."""
        source = (self.max_val.item() - self.min_val.item()) / self.bins
        if source == 0.0:
            return [0.0] * len(ranges)
        levels = self.dst_nbins
        widths = np.array([[source * (last - first + 1) / levels] for first, last in ranges])
        wide, half = (w.astype(np.float32) for w in (widths, widths / 2))
        step = np.float32(source)
        starts = np.array([[first] for first, _ in ranges])
        begins = (np.arange(self.bins) - starts).astype(np.float32) * step
        ends = begins + step
        level_of_begin, level_of_end = (_find_levels(x, wide, levels) for x in (begins, ends))
        density = to_numpy(self.histogram).astype(np.float32) / step
        errors = _integrate(begins - (level_of_begin + _HALF) * wide, half, density)
        errors += (level_of_end - level_of_begin - _ONE) * _integrate(-half, half, density)
        errors += _integrate(-half, ends - (level_of_end * wide + half), density)
        # Only torch adds up in its own order.
        return to_numpy(to_torch(errors).sum(1)).tolist()


class RoomyObserver(_Remembers, pt2e.MinMaxObserver):
    """Leaves room beyond the numbers that it sees: 16 bits have steps to spare, and other inputs reach further."""

    def forward(self, x_orig: torch.Tensor) -> torch.Tensor:
        """Include the numbers of a tensor."""
        self._found = None
        base: Any = super()
        return base.forward(x_orig)

    def calculate_qparams(self) -> _Parameters:
        """Return scale and zero point of a range that is a quarter larger."""
        scale, zero_point = super().calculate_qparams()
        return scale * _ROOM, zero_point


class MinMaxObserver(_ObservesOnce, pt2e.MinMaxObserver):
    """Finds the smallest and the largest number of a weight."""


class PerChannelMinMaxObserver(_ObservesOnce, pt2e.PerChannelMinMaxObserver):
    """Finds the smallest and the largest number of each channel of a weight."""

    def _reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Reduce each channel to two numbers, its smallest and its largest: torch finds one at a time far sooner."""
        if x.numel() == 0 or x.dim() < 2:  # torchao's to refuse
            return x
        rows = x.movedim(self.ch_axis, 0).flatten(1)
        ends = torch.stack((rows.amin(1), rows.amax(1)))
        # The other dimensions keep their number.
        return ends.reshape(2, -1, *[1] * (x.dim() - 2)).movedim(1, self.ch_axis)


@dataclass(frozen=True)
class _Version:
    """A tensor as it is at some time; torch counts its changes."""

    tensor: torch.Tensor
    changes: int

    @staticmethod
    def make(tensor: torch.Tensor) -> _Version:
        return _Version(tensor, tensor._version)

    def is_of(self, tensor: torch.Tensor) -> bool:
        return self.tensor is tensor and self.changes == tensor._version


def _find_levels(x: _Floats, wide: _Floats, levels: int) -> _Floats:
    """Find the quantized value of each number."""
    # In float64 the quotient of two float32 is never rounded to an integer.
    return np.clip(np.floor(x / wide.astype(np.float64)), 0, levels - 1).astype(np.float32)


def _integrate(begin: _Floats, end: _Floats, density: _Floats) -> _Floats:
    """Integrate the square of a distance."""
    return density * ((end * end * end - begin * begin * begin) / _THREE)


@functools.cache
def _list_turns(count: int) -> torch.Tensor:
    """Return what gives neighbors different counters: equal numbers in a row would wait for each other."""
    return torch.arange(_PART, dtype=torch.int16).remainder_(2).mul_(count)


def _is_sorted(numbers: torch.Tensor) -> bool:
    """Tell whether the numbers of `torch.linspace`, or sums with them, ascend.

    It adds steps to the first number in the first half and takes them from the last one in the second half: each half
    ascends, so only what is in the middle may not.
    """
    middle = numbers.numel() // 2
    around = numbers[middle - 2 : middle + 3]
    return bool((around[1:] >= around[:-1]).all())


def _list_ranges(histogram: torch.Tensor) -> Iterator[tuple[int, int]]:
    """List the first and last bin of each range in the order of the search: whichever end moves further is next."""
    sums: list[float] = to_numpy(histogram.cumsum(0)).tolist()
    total, shares = float(histogram.sum()), _list_shares()
    first, last, low, cut = 0, len(sums) - 1, 0.0, 0
    moves = range(len(shares) - 1)
    while first < last:
        left = bisect_left(sums, _round((low + _STEP) * total), first, last)
        if left == first:
            # Skip the moves of the upper end that do not leave its bin.
            cut = bisect_left(
                moves,
                True,
                cut,
                key=lambda move: shares[move] <= low or _round(shares[move + 1] * total) < sums[last],
            )
        if low >= shares[cut]:
            return
        right = max(first, bisect_right(sums, _round(shares[cut + 1] * total), first, last + 1) - 1)
        if left - first > last - right:
            first, low = left, low + _STEP
        else:
            last, cut = right, cut + 1
        yield first, last


@functools.cache
def _list_shares() -> list[float]:
    """List the share of all numbers below the upper end after each of its moves, rounded as a running sum is."""
    return list(itertools.accumulate(itertools.repeat(_STEP, round(1 / _STEP) + 2), operator.sub, initial=1.0))


def _round(number: float) -> float:
    """Round to the float32 that torch compares with."""
    return float(np.float32(number))
