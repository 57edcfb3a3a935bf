"""Input rows of a window operation: loaded, upscaled and padded for the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tosaic.npu.errors import TooMuch
from tosaic.npu.memory import Memory, Numbers
from tosaic.npu.operation import FeatureMap, Op, Shape, Window, input_extent

#: No piece needs more input elements than this at once.
_MAX_ELEMENTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Input:
    """The input of a window operation."""

    source: FeatureMap
    window: Window
    height: int
    width: int
    depth: int
    columns: int

    @staticmethod
    def of(op: Op, source: FeatureMap, window: Window, ofm: Shape, depth: int) -> Input:
        height, width = input_extent(op, window, ofm)
        return Input(source, window, height, width, depth, window.span(ofm)[1])

    def load(self, memory: Memory, first_row: int, rows: int, fill: int, dtype: str) -> Numbers:
        """Load padded input for output rows from `first_row` on, minus the zero point; `fill` is the padding value."""
        window = self.window
        top = first_row * window.stride_y - window.top
        count = (rows - 1) * window.stride_y + window.height
        if count * self.columns * self.depth > _MAX_ELEMENTS:
            raise TooMuch("a window covers too large an input", offset=self.source.offset)
        low = max(top, 0)
        # A window may lie entirely in the padding.
        high = max(low, min(top + count, self.height))
        padded = np.empty((count, self.columns, self.depth), np.dtype(dtype))
        inner = padded[low - top : high - top, window.left : window.left + self.width]
        if inner.size != padded.size:
            padded[...] = fill
        self._fill(memory, inner, low, high)
        return padded

    def _fill(self, memory: Memory, inner: Numbers, low: int, high: int) -> None:
        zero = self.source.zero_point
        if self.window.upscale == "NONE":
            values = memory.load(self.source, Shape(high - low, self.width, self.depth), low)
            np.subtract(values, zero, out=inner, dtype=inner.dtype, casting="unsafe")
            return
        # Rows and columns are doubled: by repetition, or with zeros between them.
        repeats = self.window.upscale == "NEAREST"
        first = low // 2 if repeats else -(-low // 2)
        rows, columns = -(-high // 2) - first, -(-self.width // 2)
        inner[...] = 0
        values = memory.load(self.source, Shape(rows, columns, self.depth), first).astype(inner.dtype) - zero
        if repeats:
            doubled = values.repeat(2, axis=0).repeat(2, axis=1)
            inner[...] = doubled[low % 2 : low % 2 + high - low, : self.width]
        else:
            inner[2 * first - low :: 2, ::2] = values

    def taps(self, padded: Numbers, rows: int, columns: int) -> Iterator[tuple[int, int, Numbers]]:
        """Yield for every kernel element the inputs that it multiplies, as [rows, columns, channels]."""
        window = self.window
        height, width = (rows - 1) * window.stride_y + 1, (columns - 1) * window.stride_x + 1
        for ky in range(window.taps_y):
            for kx in range(window.taps_x):
                y, x = ky * window.dilation_y, kx * window.dilation_x
                yield ky, kx, padded[y : y + height : window.stride_y, x : x + width : window.stride_x]
