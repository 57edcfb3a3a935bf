"""Resizing of images along each axis: to the nearest pixels, or to weighted sums of pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType
from tosaic.ir.qparams import QParams
from tosaic.lower import lookup, movement
from tosaic.lower.lowering import NHWC, Lowering, of_image
from tosaic.lower.tensor import Tensor
from tosaic.lower.transposed_convolution import TransposedConvGeometry, as_subpixel_convs

#: weights of an interpolation in a convolution are int8; finer ones are split over up to 8 copies of the input
FINEST = 8 * 127
#: beyond this size a convolution over a whole row costs more than one for every pixel of a block
LONGEST_ROW = 96


@dataclass(frozen=True, slots=True)
class Axis:
    """Resizing of one dimension: `step` input pixels for each output pixel, aligned at corners or at edges."""

    old: int
    new: int
    step: Fraction
    corners: bool = False

    @property
    def is_flat(self) -> bool:
        """Whether all output pixels are the first input pixel."""
        return self.step == 0 or self.old == 1

    @property
    def is_still(self) -> bool:
        """Whether nothing changes."""
        return self.step == 1 and self.old == self.new

    @property
    def factor(self) -> int:
        """The integer factor by which an image is enlarged with aligned edges, 0 in any other case."""
        whole = not self.corners and self.step.numerator == 1 and self.new == self.old * self.step.denominator
        return self.step.denominator if whole else 0

    def positions(self) -> list[Fraction]:
        """Return the positions of the output pixels in the input, for an interpolation."""
        half = Fraction(0 if self.corners else 1, 2)
        return [min(max((i + half) * self.step - half, Fraction(0)), Fraction(self.old - 1)) for i in range(self.new)]

    def divisor(self) -> int:
        """Return the common denominator of the weights of an interpolation."""
        return math.lcm(*(p.denominator for p in self.positions()))

    def numbers(self, nearest: bool) -> tuple[int, int, int, int]:
        """Return (scale_n, scale_d, offset, border) of RESIZE."""
        n, d, offset = self.step.denominator, self.step.numerator, 0
        if nearest:
            # TOSA rounds to the nearest pixel; half a step less turns that into torch's rounding down.
            n, d, offset = 2 * n, 2 * d, 1 - n
        elif not self.corners:
            n, d, offset = 2 * n, 2 * d, d - n
        common = math.gcd(n, d, offset)
        n, d, offset = n // common, d // common, offset // common
        return n, d, offset, d * (self.new - 1) - (self.old - 1) * n + offset

    def fits(self, nearest: bool) -> bool:
        """Tell whether RESIZE supports this axis."""
        n, d, offset, border = self.numbers(nearest)
        return 0 < d < 16 * n and n <= 1 << 11 and -n <= offset < 16 * n and -16 * n <= border < n


def find_axes(
    shape: Sequence[int], size: Sequence[int] | None, scales: Sequence[float | None], corners: bool
) -> list[Axis]:
    """Return the resizing of each spatial dimension."""
    axes: list[Axis] = []
    for i, old in enumerate(shape[2:]):
        scale = scales[i]
        new = int(size[i]) if size is not None else int(old * (scale or 1.0))
        if corners:
            step = Fraction(old - 1, new - 1) if new > 1 else Fraction(0)
        elif scale:
            step = 1 / Fraction(scale).limit_denominator(1 << 10)
        else:
            step = Fraction(old, new)
        axes.append(Axis(old, new, step, corners))
    return axes


def find_nearest(axis: Axis, scale: float | None, exact: bool) -> list[int]:
    """Return the source indices by torch's own rule, in float32; `exact` takes the pixel nearest to the middle."""
    step = np.float32(1.0 / scale) if scale else np.float32(axis.old) / np.float32(axis.new)
    half = np.float32(0.5 if exact else 0.0)
    return [min(int(np.floor((np.float32(i) + half) * step)), axis.old - 1) for i in range(axis.new)]


def _resize_indices(axis: Axis) -> list[int]:
    """Return the source indices of RESIZE in nearest mode."""
    n, d, offset, _ = axis.numbers(True)
    return [min(max((2 * (i * d + offset) + n) // (2 * n), 0), axis.old - 1) for i in range(axis.new)]


def _resize(lo: Lowering, x: Tensor, axes: Sequence[Axis], mode: str) -> Tensor:
    """Emit RESIZE; the sums of a quantized bilinear one are divided."""
    (ny, dy, oy, by), (nx, dx, ox, bx) = (a.numbers(mode == "NEAREST") for a in axes)
    image = lo.to_layout(x, NHWC)
    value = tosa.resize(lo.b, image, scale=(ny, dy, nx, dx), offset=(oy, ox), border=(by, bx), mode=mode)
    if value.dtype is not image.dtype:
        value = lo.rescale(value, image.dtype, [1.0 / (ny * nx)])
    return of_image(value, x.q)


def repeat_nearest(
    lo: Lowering, x: Tensor, axes: Sequence[Axis], scales: Sequence[float | None], exact: bool = False
) -> Tensor:
    """Resize an image to pixels of its own."""
    wanted = [find_nearest(a, scale, exact) for a, scale in zip(axes, scales, strict=True)]
    fits = all(a.fits(True) and _resize_indices(a) == w for a, w in zip(axes, wanted, strict=True))
    # Targets without RESIZE by any ratio have one by powers of two; from 8 on it has no advantage.
    small = not lo.target.has_resize and any(a.factor not in (2, 4) for a in axes)
    if fits and not small:
        return _resize(lo, x, axes, "NEAREST")
    return lookup.take(lo, lookup.take(lo, x, 3, wanted[1]), 2, wanted[0])


def interpolate(lo: Lowering, x: Tensor, axes: list[Axis]) -> Tensor:
    """Resize an image to weighted sums of its pixels, along both axes."""
    for i, axis in enumerate(axes):
        if axis.is_flat:
            x = lookup.take(lo, x, 2 + i, [0] * axis.new)
            axes[i] = Axis(axis.new, axis.new, Fraction(1))
    if all(a.is_still for a in axes):
        return x
    whole, fine = all(a.factor for a in axes), all(a.divisor() <= FINEST for a in axes)
    # Ethos-U85 is fast with RESIZE by integer factors, and slower than a convolution with other factors.
    if x.q is None or not lo.target.is_npu or (lo.target.has_resize and (whole or not fine)):
        return _resize(lo, x, axes, "BILINEAR")
    if whole and (not fine or max(a.old for a in axes) > LONGEST_ROW):
        return _enlarge(lo, x, axes)
    return _blend(lo, _blend(lo, x, 3, axes[1]), 2, axes[0])


def _triangle(factor: int) -> tuple[list[int], int]:
    """Return the weights of a pixel in the finer pixels around it, and their divisor."""
    if factor % 2:
        return [min(k, 2 * factor - k) for k in range(1, 2 * factor)], factor
    return [min(2 * k + 1, 4 * factor - 1 - 2 * k) for k in range(2 * factor)], 2 * factor


def _enlarge(lo: Lowering, x: Tensor, axes: Sequence[Axis]) -> Tensor:
    """Enlarge by integer factors: a transposed depthwise convolution with a triangle, over a replicated edge."""
    q, channels = lo.require_quantized(x).q, x.shape[1]
    assert q is not None
    factors = [a.factor for a in axes]
    (rows, dy), (columns, dx) = (_triangle(f) for f in factors)
    weights = np.outer(rows, columns)
    if weights.max() > 127:
        still = [Axis(a.old, a.old, Fraction(1)) for a in axes]
        wide = _enlarge(lo, x, (still[0], axes[1]))
        return _enlarge(lo, wide, (axes[0], Axis(axes[1].new, axes[1].new, Fraction(1))))
    border = [0 if f == 1 else 1 for f in factors]
    framed = movement.pad_from_itself(lo, x, (border[1], border[1], border[0], border[0]), "replicate")
    kernel = np.broadcast_to(weights.astype(np.int8)[None, :, :, None], (channels, *weights.shape, 1))
    padding = [0 if f == 1 else f + f // 2 for f in factors]
    up = TransposedConvGeometry(
        framed.shape[2:], (len(rows), len(columns)), (factors[0], factors[1]), (padding[0], padding[1])
    )
    unit = QParams((1.0 / (dy * dx),), (0,), DType.I8, -127, 127)
    return as_subpixel_convs(lo, framed, kernel, unit, None, up, channels, q)


def _blend(lo: Lowering, x: Tensor, dim: int, axis: Axis) -> Tensor:
    """Resize by any ratio: a pixel is a sum of two input pixels, with that dimension as the channels of a 1x1 conv."""
    if axis.is_still:
        return x
    divisor = axis.divisor()
    rows = np.zeros((axis.new, axis.old), np.int64)
    for i, place in enumerate(axis.positions()):
        first = math.floor(place)
        part = int((place - first) * divisor)
        rows[i, first] += divisor - part
        if part:
            rows[i, first + 1] += part
    copies = -(-int(rows.max()) // 127)
    spread = [(rows + k) // copies for k in range(copies)]
    wide = x if copies == 1 else movement.concatenate(lo, [x] * copies, dim)
    return lookup.linear_combination(lo, wide, dim, np.concatenate(spread, 1).astype(np.int8), divisor)
