"""Resizing of images: upsample nearest and bilinear, to any size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType
from tosaic.ir.qparams import QParams
from tosaic.lower import lookup, movement
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import NHWC, Lowering, of_image
from tosaic.lower.registry import Arguments, Constraint, op
from tosaic.lower.samples import F, Sample, call, f32, torch
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


def _axes(
    shape: Sequence[int], size: Sequence[int] | None, scales: Sequence[float | None], corners: bool
) -> list[Axis]:
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


def _nearest_indices(axis: Axis, scale: float | None) -> list[int]:
    """Return the source indices by torch's own rule, in float32."""
    step = np.float32(1.0 / scale) if scale else np.float32(axis.old) / np.float32(axis.new)
    return [min(int(np.floor(np.float32(i) * step)), axis.old - 1) for i in range(axis.new)]


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


def _nearest(lo: Lowering, x: Tensor, axes: Sequence[Axis], scales: Sequence[float | None]) -> Tensor:
    wanted = [_nearest_indices(a, scale) for a, scale in zip(axes, scales, strict=True)]
    fits = all(a.fits(True) and _resize_indices(a) == w for a, w in zip(axes, wanted, strict=True))
    # Targets without RESIZE by any ratio have one by powers of two; from 8 on it has no advantage.
    small = not lo.target.has_resize and any(a.factor not in (2, 4) for a in axes)
    if fits and not small:
        return _resize(lo, x, axes, "NEAREST")
    return lookup.take(lo, lookup.take(lo, x, 3, wanted[1]), 2, wanted[0])


def _bilinear(lo: Lowering, x: Tensor, axes: list[Axis]) -> Tensor:
    for i, axis in enumerate(axes):
        if axis.is_flat:
            x = lookup.take(lo, x, 2 + i, [0] * axis.new)
            axes[i] = Axis(axis.new, axis.new, Fraction(1))
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
    q, channels = lo.codes(x).q, x.shape[1]
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
    if axis.step == 1 and axis.old == axis.new:
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


def _samples(mode: str) -> list[Sample]:
    def run(**how: Any) -> Callable[[Any], Any]:
        corners = how.pop("corners", None)
        return lambda x: F.interpolate(x + 1.0, mode=mode, align_corners=corners, **how)

    shared = [
        call(run(scale_factor=2), f32(1, 3, 4, 5)),
        call(run(scale_factor=(3, 2)), f32(3, 17, 3, 4)),
        call(run(scale_factor=4), f32(1, 1, 3, 2)),
        call(run(size=(7, 5)), f32(1, 64, 4, 4)),
        call(run(scale_factor=1.5), f32(1, 3, 5, 6)),
        call(run(size=(3, 2)), f32(1, 3, 6, 8)),
        call(run(size=(6, 8)), f32(1, 3, 6, 1)),
        call(run(scale_factor=2), f32(1, 3, 4, 4, low=-30.0, high=0.1)),
    ]
    if mode == "nearest":
        return [*shared, call(run(size=(40, 29)), f32(1, 3, 27, 23))]
    return [
        *shared,
        call(run(scale_factor=2, corners=True), f32(1, 3, 4, 5)),
        call(run(size=(9, 1), corners=True), f32(3, 17, 4, 4)),
        # Here torch's float32 positions are less exact than the bound for float results.
        call(run(size=(4, 300), corners=True), f32(1, 2, 3, 150), flavours=("INT",)),
        call(run(scale_factor=8), f32(1, 3, 3, 4)),
        call(run(scale_factor=2), f32(1, 3, 2, 97)),
        call(run(scale_factor=(8, 3)), f32(1, 3, 97, 2)),
    ]


def _arguments(lo: Lowering, a: Arguments) -> tuple[Tensor, list[Axis], list[float | None]]:
    """Return the image, its axes and scales; a row of pixels is an image of height one."""
    x: Tensor = a["input"] if "input" in a else a["self"]
    scales = list(a.get("scale_factors") or [a.get("scales_h"), a.get("scales_w", a.get("scales"))])
    size = a.get("output_size")
    if x.rank == 3:
        x = lo.reshape(x, (x.shape[0], x.shape[1], 1, x.shape[2]))
        scales, size = [None, scales[-1]], None if size is None else [1, *size]
    return x, _axes(x.shape, size, scales, bool(a.get("align_corners"))), scales


def _upsample(lo: Lowering, a: Arguments, bilinear: bool) -> Tensor:
    x, axes, scales = _arguments(lo, a)
    x = x if x.q is None else lo.codes(x)
    given = a["input"] if "input" in a else a["self"]
    if given.rank == 4:
        # For images, not for rows, torch ignores the scale if the size stays or is doubled.
        scales = [None if axis.new in (axis.old, 2 * axis.old) else s for axis, s in zip(axes, scales, strict=True)]
    out = _bilinear(lo, x, axes) if bilinear else _nearest(lo, x, axes, scales)
    return out if given.rank == 4 else lo.reshape(out, (out.shape[0], out.shape[1], out.shape[3]))


def _fits_conv(axis: Axis) -> bool:
    return axis.is_flat or bool(axis.factor) or axis.divisor() <= FINEST


def _check_weights(lo: Lowering, a: Arguments) -> str:
    return _describe_ratios(axis for axis in _arguments(lo, a)[1] if not _fits_conv(axis))


def _check_ratios(lo: Lowering, a: Arguments) -> str:
    x, axes, _ = _arguments(lo, a)
    if lo.target.is_npu and x.q is not None and all(map(_fits_conv, axes)):
        return ""
    return _describe_ratios(axis for axis in axes if not axis.is_flat and not axis.fits(False))


def _describe_ratios(wrong: Iterable[Axis]) -> str:
    """Describe the axes that cannot be resized; "" if there are none."""
    found = " and ".join(f"{axis.old} to {axis.new}" for axis in wrong)
    return f"it is from {found}" if found else ""


_RATIOS = (
    Constraint(
        "an interpolation has integer factors, or weights that are multiples of 1/1016",
        _check_weights,
        "choose sizes with a simpler ratio",
        lambda target: not target.has_resize,
    ),
    Constraint(
        "an interpolation has a ratio of at most 2048 to 1 and at least 1 to 15, in numbers of at most 2048",
        _check_ratios,
        "choose sizes with a simpler ratio",
        lambda target: target.has_resize,
    ),
)


@data_movement(
    "upsample_nearest2d",
    "upsample_nearest2d.vec",
    "upsample_nearest2d.default",
    samples=lambda: [
        *_samples("nearest"),
        call(lambda x: torch.ops.aten.upsample_nearest2d(x + 1.0, [5, 6], 2.5, 2.0), f32(1, 3, 2, 3)),
    ],
)
def upsample_nearest2d(lo: Lowering, **arguments: Any) -> Tensor:
    return _upsample(lo, arguments, False)


@op(
    "upsample_bilinear2d",
    "upsample_bilinear2d.vec",
    "upsample_bilinear2d.default",
    quant="share",
    constraints=_RATIOS,
    samples=lambda: [
        *_samples("bilinear"),
        call(lambda x: torch.ops.aten.upsample_bilinear2d(x + 1.0, [5, 6], False, 2.5, 2.0), f32(1, 3, 2, 3)),
        call(lambda x: F.interpolate(x, (2, 1019), mode="bilinear"), f32(1, 1, 2, 23), targets=lambda t: t.has_resize),
        call(lambda x: F.interpolate(x, (2, 2053), mode="bilinear"), f32(1, 1, 2, 7), targets=lambda t: False),
    ],
)
def upsample_bilinear2d(lo: Lowering, **arguments: Any) -> Tensor:
    return _upsample(lo, arguments, True)


@data_movement(
    "upsample_nearest1d",
    "upsample_nearest1d.vec",
    "upsample_nearest1d.default",
    samples=lambda: [
        call(lambda x: F.interpolate(x + 1.0, scale_factor=2), f32(3, 17, 5)),
        call(lambda x: F.interpolate(x + 1.0, size=7), f32(1, 3, 5)),
        call(lambda x: torch.ops.aten.upsample_nearest1d(x + 1.0, [5], 2.5), f32(1, 64, 2)),
    ],
)
def upsample_nearest1d(lo: Lowering, **arguments: Any) -> Tensor:
    return _upsample(lo, arguments, False)


@op(
    "upsample_linear1d",
    "upsample_linear1d.vec",
    "upsample_linear1d.default",
    quant="share",
    constraints=_RATIOS,
    samples=lambda: [
        call(lambda x: F.interpolate(x + 1.0, scale_factor=2, mode="linear"), f32(3, 17, 5)),
        call(lambda x: F.interpolate(x + 1.0, size=7, mode="linear", align_corners=True), f32(1, 3, 5)),
        call(lambda x: torch.ops.aten.upsample_linear1d(x + 1.0, [5], False, 2.5), f32(1, 64, 2)),
        call(lambda x: F.interpolate(x, 2053, mode="linear"), f32(1, 1, 7), targets=lambda t: False),
    ],
)
def upsample_linear1d(lo: Lowering, **arguments: Any) -> Tensor:
    return _upsample(lo, arguments, True)
