"""Functions of 16-bit numbers, as tables of 513 entries with linear interpolation.

One table covers all numbers in steps of 128. If that is too coarse somewhere, corrections are added: tables for a part
of the numbers in smaller steps. A correction is zero at both of its ends, so beyond them, where its input saturates, it
adds nothing:

    f(x) = first(x) + correction(saturate((x - center) * 2**zoom)) + ...

Numbers of 32 bits are not exact in a table of 16. There each table is for a part of the numbers, which ends where the
next, finer one begins. Above its part a table saturates at zero, and below it is constant:

    f(x) = f(max(x, b1)) + (f(min(max(x, b2), b1)) - f(b1)) + (f(min(max(x, b3), b2)) - f(b2)) + ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported

Steps = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

#: how many numbers have 16 bits, and the largest
COUNT = 1 << 16
LARGEST = (1 << 15) - 1
#: the bits of a number between two entries of a table
FRACTION = 7
#: the most tables for one function
_MOST_TABLES = 16
#: what functions must fulfill
SENTENCE = f"a function of 16-bit values is a sum of at most {_MOST_TABLES} tables with interpolation"
#: the part of all results that may be off by two steps instead of one
_RARE = 1e-3
#: how far results for a sum may be off, in steps
_MOST_OFF = 2.0
#: the first entries above zero that a table of a sum may have
_FIRST = (0, 1, 2, 4, 8, 16, 32, 64, 128, 192, 224, 240, 248, 252)
#: how far beyond its bounds a function of a sum is followed
_BEYOND = 1.5


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose entry i is for the number `center + (i - 256) * 128 / 2**zoom`."""

    center: int
    zoom: int
    entries: npt.NDArray[np.int16]


def fit(wanted: Steps) -> list[Table]:
    """Find tables whose sum is within one step of the wanted results of all numbers, rarely within two."""
    first = _limit_slopes(_sample(wanted, 0, 1 << FRACTION))
    tables = [Table(0, 0, first)]
    found, between = read(first, 0), _interpolate(first, 0)
    while (bad := _find_bad(wanted, found, 1)).mean() > _RARE or _find_bad(wanted, found, 2).any():
        if len(tables) == _MOST_TABLES:
            raise Unsupported(
                f"{SENTENCE}; here {bad.mean():.1%} of its results would be off by more than one step",
                "quantize this part of the model to int8",
            )
        start, table = _find_correction(wanted, found, between, bad)
        tables.append(table)
        part = slice(start, start + (COUNT >> table.zoom))
        found[part] += read(table.entries, table.zoom)
        between[part] += _interpolate(table.entries, table.zoom)
    return tables


@dataclass(frozen=True, slots=True)
class Part:
    """A table whose entry i is for the number `(i - 256) / 256 * end`."""

    end: float
    entries: npt.NDArray[np.int16]


def fit_parts(function: Callable[[Steps], Steps], most: float, bounds: tuple[float, float]) -> list[Part]:
    """Find tables whose sum is a function of numbers from 0 to `most`, less than two steps off within its bounds."""

    def limited(numbers: Steps) -> Steps:
        # Beyond the bounds the sum of the tables saturates; the entries around them are those of a straight line.
        with np.errstate(divide="ignore"):
            return np.clip(function(numbers), _BEYOND * bounds[0], _BEYOND * bounds[1])

    end, top = _find_end(limited, most, bounds), 0.0
    parts: list[Part] = []
    while len(parts) < _MOST_TABLES and (found := _find_part(limited, end, top, bounds)) is not None:
        first, entries = found
        parts.append(Part(end, entries))
        if not first:
            return parts
        end, top = end * first / 256, top + float(entries[0])
    raise Unsupported(
        f"a function of a sum of 32 bits is a sum of at most {_MOST_TABLES} tables with interpolation",
        "quantize the sum",
    )


def _find_end(function: Callable[[Steps], Steps], most: float, bounds: tuple[float, float]) -> float:
    """Find the number from which on a function has its last result, which may be where it saturates."""

    def read_one(number: float) -> float:
        return float(np.clip(function(np.array([number])), *bounds)[0])

    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if read_one(middle) == read_one(most) else (middle, high)
    return high


def _find_part(
    function: Callable[[Steps], Steps], end: float, top: float, bounds: tuple[float, float]
) -> tuple[int, npt.NDArray[np.int16]] | None:
    """Find the table that is right for the most numbers below an end, and the first entry (from 0) that it needs."""
    unit = end / (1 << 15)
    numbers = np.arange(1 << 15, dtype=np.float64)
    # A number is rounded on its way to the table.
    near = [np.clip(function(np.maximum(numbers + rounded, 0.0) * unit), *bounds) for rounded in (-0.5, 0.5)]
    wanted = np.rint(function(np.arange(257) * unit * (1 << FRACTION)))
    for first in _FIRST:
        entries: Steps = wanted[np.clip(np.arange(513) - 256, first, None)] - top
        if top:
            entries[-2] = _limit_last(entries[-2])
        limited = _limit_slopes(entries)
        used = slice(first << FRACTION, None)
        found = np.clip(read(limited, 0)[1 << 15 :] + top, *bounds)
        if all((np.abs(results - found)[used] < _MOST_OFF).all() for results in near):
            return first, limited
    return None


def exact(wanted: Steps) -> Table:
    """Make the table for numbers that are multiples of 256: one of the wanted results for each of them."""
    entries = np.empty(513)
    entries[:-1:2] = np.rint(wanted)
    # Halfway: the difference of two entries must have 16 bits.
    entries[1:-2:2] = (entries[:-3:2] + entries[2:-1:2]) // 2
    entries[-2:] = entries[-3]
    return Table(0, 0, entries.astype(np.int16))


def read(entries: npt.NDArray[np.int16], zoom: int) -> Numbers:
    """Look up all numbers that a table covers, as TABLE and a rounding shift do."""
    return np.floor(_interpolate(entries, zoom) + 0.5).astype(np.int64)


def _interpolate(entries: npt.NDArray[np.int16], zoom: int) -> Steps:
    """Look up all numbers that a table covers, without rounding."""
    return np.interp(np.arange(0, COUNT, 1 << zoom) / (1 << FRACTION), np.arange(513), entries)


def _sample(results: Steps, start: int, step: int) -> Steps:
    """Take 513 results at equal distances; the last may be one past the end."""
    last = results[-1] + (results[-1] - results[-step]) / max(step - 1, 1)
    return np.append(results, last)[start : start + 512 * step + 1 : step]


def _limit_slopes(entries: Steps) -> npt.NDArray[np.int16]:
    """Round entries, and bound their differences, which must have 16 bits: at a pole, the results above it are kept."""
    limited = np.clip(np.rint(entries), -LARGEST - 1, LARGEST)
    for i in np.flatnonzero(np.abs(np.diff(limited)) > LARGEST)[::-1]:
        limited[i] = np.clip(limited[i], limited[i + 1] - LARGEST, limited[i + 1] + LARGEST)
    return limited.astype(np.int16)


def _limit_last(entry: float) -> float:
    """Bound the last entry before zero: what is left of it where the input saturates must be rounded to zero."""
    return min(max(entry, 1 - (1 << FRACTION - 1)), (1 << FRACTION - 1) - 1)


def _find_bad(wanted: Steps, found: Numbers, most: int) -> npt.NDArray[np.bool_]:
    """Find the results that are off by more than some steps."""
    bad = np.abs(np.rint(wanted) - found) > most
    for pole in np.flatnonzero(np.abs(np.diff(wanted)) > LARGEST):
        # The entry below it may be limited. These results saturate, so calibration did not see their numbers.
        below = slice(max(pole + 1 - (2 << FRACTION), 0), pole + 1)
        bad[below] &= np.abs(wanted[below]) < LARGEST
    # Quantized numbers are symmetric.
    bad[0] = False
    return bad


def _find_correction(wanted: Steps, found: Numbers, between: Steps, bad: npt.NDArray[np.bool_]) -> tuple[int, Table]:
    """Find the correction after which the fewest results are bad, and the number (from 0) at which it starts."""
    counts = np.append(0, np.cumsum(bad))
    best: tuple[int, int, Table] | None = None
    for zoom in range(1, FRACTION + 1):
        size = COUNT >> zoom
        # A table with an entry for each number also undoes the rounding of those before it.
        missing = wanted - (found if zoom == FRACTION else between)
        for start in _list_starts(wanted - between, bad, size):
            before = int(counts[start + size] - counts[start])
            if best is not None and before <= best[0]:
                continue
            entries = _sample(missing, start, (1 << FRACTION) >> zoom)
            entries[[0, -1]] = 0
            entries[-2] = _limit_last(entries[-2])
            table = Table(start + size // 2 - COUNT // 2, zoom, _limit_slopes(entries))
            part = slice(start, start + size)
            after = found[part] + read(table.entries, zoom)
            mended = before - int((bad[part] & (np.abs(np.rint(wanted[part]) - after) > 1)).sum())
            if best is None or mended > best[0]:
                best = mended, start, table
    assert best is not None
    return best[1], best[2]


def _list_starts(missing: Steps, bad: npt.NDArray[np.bool_], size: int) -> Iterator[int]:
    """List where a correction of that size may start: at entries of the first table, whose results are exact."""
    step = 1 << FRACTION
    where = np.flatnonzero(bad)
    worst = int(where[np.abs(missing[where]).argmax()])
    # Around zero the input needs no shift.
    starts = (COUNT // 2 - size // 2, int(where[0]), int(where[-1]) + step - size, worst - size // 2)
    yield from dict.fromkeys(min(max(start // step * step, 0), COUNT - size) for start in starts)
