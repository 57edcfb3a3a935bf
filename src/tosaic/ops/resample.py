"""Sampling of images by constant matrices: bicubic and antialiased resizing, and grids that are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Unsupported
from tosaic.lower.aten import Aten, T
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, add, composite
from tosaic.lower.samples import F, Sample, call, f32, torch
from tosaic.lower.tensor import Const

Matrix = npt.NDArray[np.float64]

#: the largest matrix from all pixels of an image to all samples: 4 MB of weights
MOST_WEIGHTS = 1 << 22


def _cubic(distance: float, a: float) -> float:
    """Return the weight of a pixel at this distance in a cubic convolution."""
    x = abs(distance)
    if x < 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a if x < 2.0 else 0.0


def _linear(distance: float) -> float:
    return max(0.0, 1.0 - abs(distance))


def _find_step(old: int, new: int, scale: float | None, corners: bool) -> float:
    """Return the number of input pixels for each output pixel."""
    if corners:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return 1.0 / scale if scale else old / new


def _bicubic_matrix(old: int, new: int, step: float, corners: bool) -> Matrix:
    """Return the weights [new, old] of a cubic interpolation with a replicated edge."""
    matrix = np.zeros((new, old))
    for i in range(new):
        place = i * step if corners else (i + 0.5) * step - 0.5
        for at in range(math.floor(place) - 1, math.floor(place) + 3):
            matrix[i, min(max(at, 0), old - 1)] += _cubic(place - at, -0.75)
    return matrix


def _antialias_matrix(old: int, new: int, step: float, reach: float, weigh: Callable[[float], float]) -> Matrix:
    """Return the weights [new, old] of a filter that is as wide as the step if the image becomes smaller."""
    if old == new:
        # Torch leaves a dimension of the same size as it is, whatever its scale.
        return np.eye(new)
    matrix, wide = np.zeros((new, old)), max(step, 1.0)
    for i in range(new):
        center = step * (i + 0.5)
        first = max(int(center - reach * wide + 0.5), 0)
        last = min(int(center + reach * wide + 0.5), old)
        matrix[i, first:last] = [weigh((at - center + 0.5) / wide) for at in range(first, last)]
    total = matrix.sum(1, keepdims=True)
    # A window outside of the image has no weights: torch leaves the result there undefined, here it is zero.
    return np.divide(matrix, total, out=np.zeros_like(matrix), where=total != 0.0)


def _resample(aten: Aten[T], arguments: Arguments, make: Callable[[int, int, float, bool], Matrix]) -> T:
    """Multiply the rows of an image by one matrix and its columns by another."""
    x: T = arguments["input"] if "input" in arguments else arguments["self"]
    scales: list[float | None] = list(
        arguments.get("scale_factors") or [arguments.get("scales_h"), arguments.get("scales_w")]
    )
    corners, size = bool(arguments.get("align_corners")), arguments.get("output_size")
    for axis in (1, 0):
        old = aten.shape(x)[3]
        new = int(size[axis]) if size is not None else int(old * (scales[axis] or 1.0))
        matrix = make(old, new, _find_step(old, new, scales[axis], corners), corners)
        if not np.array_equal(matrix, np.eye(old)):
            x = aten("linear.default", x, aten.constant(matrix.astype(np.float32)))
        x = aten("transpose.int", x, 2, 3)
    return x


def _samples(mode: str, antialias: bool = False) -> list[Sample]:
    def run(**how: Any) -> Callable[[Any], Any]:
        return lambda x: F.interpolate(x + 1.0, mode=mode, antialias=antialias, **how)

    return [
        call(run(scale_factor=2), f32(1, 3, 6, 5)),
        call(run(size=(9, 7)), f32(3, 17, 4, 5)),
        call(run(size=(3, 4), align_corners=True), f32(1, 1, 8, 9)),
        call(run(scale_factor=(0.4, 1.5)), f32(1, 64, 7, 4)),
        call(run(size=(1, 5), align_corners=True), f32(1, 3, 3, 1)),
        call(run(scale_factor=2), f32(1, 3, 4, 4, low=-30.0, high=0.1)),
    ]


@composite(
    "upsample_bicubic2d",
    "upsample_bicubic2d.vec",
    "upsample_bicubic2d.default",
    samples=lambda: [
        *_samples("bicubic"),
        call(lambda x: torch.ops.aten.upsample_bicubic2d(x + 1.0, [5, 6], False, 2.5, 2.1), f32(1, 3, 2, 3)),
    ],
)
def upsample_bicubic2d(aten: Aten[T], **arguments: Any) -> T:
    return _resample(aten, arguments, _bicubic_matrix)


@composite(
    "upsample_bicubic2d_aa",
    "_upsample_bicubic2d_aa.vec",
    "_upsample_bicubic2d_aa.default",
    samples=lambda: [
        *_samples("bicubic", True),
        call(lambda x: torch.ops.aten._upsample_bicubic2d_aa(x + 1.0, [5, 2], False, 2.5, 0.7), f32(1, 3, 2, 3)),
    ],
)
def upsample_bicubic2d_aa(aten: Aten[T], **arguments: Any) -> T:
    return _resample(
        aten, arguments, lambda old, new, step, _: _antialias_matrix(old, new, step, 2.0, lambda d: _cubic(d, -0.5))
    )


@composite(
    "upsample_bilinear2d_aa",
    "_upsample_bilinear2d_aa.vec",
    "_upsample_bilinear2d_aa.default",
    samples=lambda: [
        *_samples("bilinear", True),
        call(lambda x: torch.ops.aten._upsample_bilinear2d_aa(x + 1.0, [5, 2], False, 2.5, 0.7), f32(1, 3, 2, 3)),
        call(lambda x: torch.ops.aten._upsample_bilinear2d_aa(x + 1.0, [5, 2], False, 2.5, 0.7), f32(1, 3, 2, 2)),
        call(lambda x: torch.ops.aten._upsample_bilinear2d_aa(x + 1.0, [5, 5], False, 2.0, 2.0), f32(1, 3, 2, 2)),
    ],
)
def upsample_bilinear2d_aa(aten: Aten[T], **arguments: Any) -> T:
    return _resample(aten, arguments, lambda old, new, step, _: _antialias_matrix(old, new, step, 1.0, _linear))


# Grids. The numbers of the modes are those of the operator's schema.

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER = 0, 1


def _unnormalize(place: float, size: int, corners: bool) -> float:
    """Return the pixel position of a coordinate, which is -1 at one edge of the image and 1 at the other."""
    return (place + 1.0) / 2.0 * (size - 1) if corners else ((place + 1.0) * size - 1.0) / 2.0


def _reflect(place: float, size: int, corners: bool) -> float:
    """Reflect a position at the edges of the image until it is inside."""
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    span = high - low
    if span <= 0.0:
        return 0.0
    turns, rest = divmod(abs(place - low), span)
    return low + rest if turns % 2 == 0 else high - rest


def _wrap(place: float, size: int, padding: int, corners: bool) -> float:
    """Move a position into the image; with zeros around the image it stays where it is."""
    if padding == _ZEROS:
        return place
    if padding != _BORDER:
        place = _reflect(place, size, corners)
    return min(max(place, 0.0), size - 1.0)


def _list_taps(place: float, size: int, mode: int, padding: int, corners: bool) -> list[tuple[int, float]]:
    """Return the pixels of one axis for a coordinate of a grid, with their weights."""
    place = _unnormalize(place, size, corners)
    if mode == _BICUBIC:
        first = math.floor(place)
        taps = [(at, _cubic(place - at, -0.75)) for at in range(first - 1, first + 3)]
        taps = [(int(_wrap(at, size, padding, corners)), weight) for at, weight in taps]
    else:
        place = _wrap(place, size, padding, corners)
        first = math.floor(place)
        # A half is rounded to the even pixel.
        taps = [(round(place), 1.0)] if mode == _NEAREST else [(at, _linear(place - at)) for at in (first, first + 1)]
    return [(at, weight) for at, weight in taps if 0 <= at < size]


def _sampling_matrix(grid: Matrix, high: int, wide: int, mode: int, padding: int, corners: bool) -> Matrix:
    """Return the weights [samples, pixels] of one image."""
    places = grid.reshape(-1, 2)
    matrix = np.zeros((len(places), high, wide))
    for i, (x, y) in enumerate(places):
        for row, share in _list_taps(float(y), high, mode, padding, corners):
            for column, weight in _list_taps(float(x), wide, mode, padding, corners):
                matrix[i, row, column] += share * weight
    return matrix.reshape(len(places), high * wide)


def _check_grid(lo: Lowering, a: Arguments) -> str:
    return "" if isinstance(a["grid"], Const) else "it is computed"


def _check_weights(lo: Lowering, a: Arguments) -> str:
    pixels, samples = math.prod(a["input"].shape[2:]), math.prod(a["grid"].shape[1:-1])
    return "" if pixels * samples <= MOST_WEIGHTS else f"there are {pixels} pixels and {samples} samples"


def _check_images(lo: Lowering, a: Arguments) -> str:
    return "" if a["input"].rank == 4 else f"the tensor has {a['input'].rank} dimensions"


def _samples_grid() -> list[Sample]:
    def run(mode: str, padding: str, corners: bool, *shape: int) -> Callable[[Any], Any]:
        def sample(x: Any) -> Any:
            grid = torch.linspace(-1.7, 1.9, math.prod(shape) * 2).reshape(*shape, 2)
            return F.grid_sample(x + 1.0, grid.flip(-1) * 0.9 + 0.05, mode, padding, align_corners=corners)

        return sample

    return [
        call(run("bilinear", "zeros", False, 1, 4, 5), f32(1, 3, 6, 7)),
        call(run("bilinear", "border", True, 3, 2, 4), f32(3, 17, 5, 4)),
        call(run("bilinear", "reflection", False, 1, 3, 3), f32(1, 1, 4, 6)),
        call(run("nearest", "zeros", False, 1, 4, 5), f32(1, 3, 6, 7)),
        call(run("nearest", "reflection", True, 1, 5, 2), f32(1, 64, 3, 3)),
        call(run("bicubic", "zeros", True, 1, 3, 4), f32(1, 3, 5, 6)),
        call(run("bicubic", "border", False, 1, 4, 2), f32(1, 3, 4, 4, low=-30.0, high=0.1)),
        call(run("bicubic", "reflection", False, 1, 4, 2), f32(1, 3, 4, 5)),
        call(
            lambda x, grid: F.grid_sample(x, grid, align_corners=False),
            f32(1, 3, 4, 4),
            f32(1, 2, 2, 2, low=-1.0, high=1.0),
            targets=lambda t: False,
        ),
        call(run("nearest", "zeros", False, 1, 70, 60), f32(1, 1, 40, 30), targets=lambda t: False),
    ]


def _sample_grid(
    aten: Aten[T], input: T, grid: T, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> T:
    """Multiply the pixels of each image by a matrix."""
    places, shape = aten.data(grid), aten.shape(input)
    if places is None or len(shape) != 4:
        raise Unsupported("the grid of samples is computed", "make the grid a buffer of the model")
    (n, c, h, w), (_, high, wide, _) = shape, aten.shape(grid)
    if h * w * high * wide > MOST_WEIGHTS:
        raise Unsupported("there are too many samples", "sample a smaller image, or fewer points")
    pixels = aten("reshape.default", input, [n, c, h * w])
    numbers = places.astype(np.float64)
    matrices = [
        _sampling_matrix(one, h, w, interpolation_mode, padding_mode, align_corners).astype(np.float32)
        for one in numbers
    ]
    if all(np.array_equal(m, matrices[0]) for m in matrices):
        out = aten("linear.default", pixels, aten.constant(matrices[0]))
    else:
        images = [aten("slice.Tensor", pixels, 0, i, i + 1) for i in range(n)]
        parts = [aten("linear.default", x, aten.constant(m)) for x, m in zip(images, matrices, strict=True)]
        out = aten("cat.default", parts, 0)
    return aten("reshape.default", out, [n, c, high, wide])


# A call that is not decomposed is quantized all the same, so that its constraints are the reason and not its floats.
add(
    "grid_sampler_2d",
    "grid_sampler_2d.default",
    "grid_sampler.default",
    beside=_sample_grid,
    decompose=_sample_grid,
    quant="observe",
    constraints=[
        Constraint("the grid of samples is constant", _check_grid, "make the grid a buffer of the model"),
        Constraint("samples are taken from images", _check_images, "use an input of 4 dimensions"),
        Constraint(
            f"pixels times samples are at most {MOST_WEIGHTS}", _check_weights, "sample a smaller image or fewer points"
        ),
    ],
    samples=_samples_grid,
)
