"""Resizing of volumes: nearest and trilinear, to any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tosaic.lower import lookup, resizing
from tosaic.lower.aten import Aten, T
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, composite
from tosaic.lower.samples import F, Sample, call, f32, torch
from tosaic.lower.tensor import Tensor


def _samples(mode: str, corners: bool | None = None) -> list[Sample]:
    def run(**how: Any) -> Callable[[Any], Any]:
        return lambda x: F.interpolate(x + 1.0, mode=mode, align_corners=corners, **how)

    return [
        call(run(scale_factor=2), f32(1, 3, 3, 4, 5)),
        call(run(scale_factor=(3, 1, 2)), f32(3, 17, 2, 3, 2)),
        call(run(size=(5, 7, 3)), f32(1, 1, 3, 4, 5)),
        call(run(scale_factor=1.5), f32(1, 64, 4, 2, 3)),
        call(run(scale_factor=2), f32(1, 3, 1, 3, 3, low=-30.0, high=0.1)),
    ]


def _find_scales(a: Arguments) -> list[float | None]:
    return list(a.get("scale_factors") or [a.get("scales_d"), a.get("scales_h"), a.get("scales_w")])


def _repeat(lo: Lowering, a: Arguments, exact: bool) -> Tensor:
    """Repeat pixels of frames that are channels of an image, then the frames."""
    given: Tensor = a["input"] if "input" in a else a["self"]
    x, scales = given if given.q is None else lo.require_quantized(given), _find_scales(a)
    axes = resizing.find_axes(x.shape, a.get("output_size"), scales, False)
    n, c, d, h, w = x.shape
    image = lo.reshape(lo.permute(x, (0, 2, 1, 3, 4)), (n, d * c, h, w))
    wide = resizing.repeat_nearest(lo, image, axes[1:], scales[1:], exact)
    frames = lo.permute(lo.reshape(wide, (n, d, c, *wide.shape[2:])), (0, 2, 1, 3, 4))
    return lookup.take(lo, frames, 2, resizing.find_nearest(axes[0], scales[0], exact))


@data_movement(
    "upsample_nearest3d",
    "upsample_nearest3d.vec",
    "upsample_nearest3d.default",
    samples=lambda: [
        *_samples("nearest"),
        call(lambda x: torch.ops.aten.upsample_nearest3d(x + 1.0, [5, 6, 4], 2.5, 2.1, 1.3), f32(1, 3, 2, 3, 3)),
    ],
)
def upsample_nearest3d(lo: Lowering, **arguments: Any) -> Tensor:
    return _repeat(lo, arguments, False)


@data_movement(
    "upsample_nearest_exact3d",
    "_upsample_nearest_exact3d.vec",
    "_upsample_nearest_exact3d.default",
    samples=lambda: [
        *_samples("nearest-exact"),
        call(lambda x: torch.ops.aten._upsample_nearest_exact3d(x + 1.0, [5, 6, 4], 2.5, 2.1, 1.3), f32(1, 3, 2, 3, 3)),
    ],
)
def upsample_nearest_exact3d(lo: Lowering, **arguments: Any) -> Tensor:
    return _repeat(lo, arguments, True)


@composite(
    "upsample_trilinear3d",
    "upsample_trilinear3d.vec",
    "upsample_trilinear3d.default",
    samples=lambda: [
        *_samples("trilinear"),
        *_samples("trilinear", True),
        call(
            lambda x: torch.ops.aten.upsample_trilinear3d(x + 1.0, [5, 6, 4], False, 2.5, 2.1, 1.3),
            f32(1, 3, 2, 3, 3),
        ),
        call(
            lambda x: torch.ops.aten.upsample_trilinear3d(x + 1.0, [5, 6, 4], False, 2.5, 2.1, 1.3),
            f32(1, 3, 5, 6, 3),
        ),
    ],
)
def upsample_trilinear3d(aten: Aten[T], align_corners: bool, **arguments: Any) -> T:
    """Interpolate within the frames, which become channels, then along the frames."""
    x: T = arguments["input"] if "input" in arguments else arguments["self"]
    (n, c, d, h, w), scales = aten.shape(x), _find_scales(arguments)
    size: Sequence[int] | None = arguments.get("output_size")
    depth, high, wide = size or [int(old * (scale or 1.0)) for old, scale in zip((d, h, w), scales, strict=True)]
    image = aten("reshape.default", aten("permute.default", x, [0, 2, 1, 3, 4]), [n, d * c, h, w])
    image = _interpolate(aten, "upsample_bilinear2d", image, [high, wide], align_corners, scales[1:])
    pixels = aten("permute.default", aten("reshape.default", image, [n, d, c, high, wide]), [0, 2, 3, 4, 1])
    rows = aten("reshape.default", pixels, [n, c * high * wide, d])
    rows = _interpolate(aten, "upsample_linear1d", rows, [depth], align_corners, scales[:1])
    return aten("permute.default", aten("reshape.default", rows, [n, c, high, wide, depth]), [0, 1, 4, 2, 3])


def _interpolate(
    aten: Aten[T], name: str, x: T, size: list[int], align_corners: bool, scales: Sequence[float | None]
) -> T:
    """Call the overload that export makes, if it can express the call: exir decomposes the other one."""
    given = [scale for scale in scales if scale is not None]
    if not given:
        return aten(f"{name}.vec", x, size, align_corners, None)
    old = aten.shape(x)[2:]
    if len(given) == len(scales) and size == [int(n * scale) for n, scale in zip(old, given, strict=True)]:
        return aten(f"{name}.vec", x, None, align_corners, given)
    return aten(f"{name}.default", x, size, align_corners, *scales)
