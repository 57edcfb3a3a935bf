"""Resizing of rows and images: nearest, linear and bilinear, to any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from tosaic.lower import resizing
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, op
from tosaic.lower.samples import F, Sample, call, f32, torch
from tosaic.lower.tensor import Tensor


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
    if "nearest" in mode:
        return [*shared, call(run(size=(40, 29)), f32(1, 3, 27, 23))]
    return [
        *shared,
        call(run(scale_factor=2, corners=True), f32(1, 3, 4, 5)),
        call(run(size=(9, 1), corners=True), f32(3, 17, 4, 4)),
        # Here torch's float32 positions are less exact than the bound for float results.
        call(run(size=(4, 300), corners=True), f32(1, 2, 3, 150), flavors=("INT",)),
        call(run(scale_factor=8), f32(1, 3, 3, 4)),
        call(run(size=(1, 5)), f32(1, 108, 1, 1)),
        call(run(scale_factor=2), f32(1, 3, 2, 97)),
        call(run(scale_factor=(8, 3)), f32(1, 3, 97, 2)),
    ]


def _arguments(lo: Lowering, a: Arguments) -> tuple[Tensor, list[resizing.Axis], list[float | None]]:
    """Return the image, its axes and scales; a row of pixels is an image of height one."""
    x: Tensor = a["input"] if "input" in a else a["self"]
    scales = list(a.get("scale_factors") or [a.get("scales_h"), a.get("scales_w", a.get("scales"))])
    size = a.get("output_size")
    if x.rank == 3:
        x = lo.reshape(x, (x.shape[0], x.shape[1], 1, x.shape[2]))
        scales, size = [None, scales[-1]], None if size is None else [1, *size]
    return x, resizing.find_axes(x.shape, size, scales, bool(a.get("align_corners"))), scales


def _repeat(lo: Lowering, a: Arguments, exact: bool) -> Tensor:
    x, axes, scales = _arguments(lo, a)
    given = a["input"] if "input" in a else a["self"]
    if given.rank == 4 and not exact:
        # For images, not for rows, torch ignores the scale if the size stays or is doubled.
        scales = [None if axis.new in (axis.old, 2 * axis.old) else s for axis, s in zip(axes, scales, strict=True)]
    out = resizing.repeat_nearest(lo, x if x.q is None else lo.require_quantized(x), axes, scales, exact)
    return lo.reshape(out, (*given.shape[:2], *out.shape[6 - given.rank :]))


def _find_interpolation(lo: Lowering, a: Arguments) -> tuple[Tensor, list[resizing.Axis]]:
    """Return the image and its axes. Torch leaves a dimension of the same size as it is, whatever its scale."""
    x, axes, _ = _arguments(lo, a)
    return x, [replace(axis, step=Fraction(1)) if axis.new == axis.old else axis for axis in axes]


def _interpolate(lo: Lowering, a: Arguments) -> Tensor:
    x, axes = _find_interpolation(lo, a)
    out = resizing.interpolate(lo, x if x.q is None else lo.require_quantized(x), axes)
    given = a["input"] if "input" in a else a["self"]
    return lo.reshape(out, (*given.shape[:2], *out.shape[6 - given.rank :]))


def _fits_conv(axis: resizing.Axis) -> bool:
    return axis.is_flat or bool(axis.factor) or axis.divisor() <= resizing.FINEST


def _check_weights(lo: Lowering, a: Arguments) -> str:
    return _describe_ratios(axis for axis in _find_interpolation(lo, a)[1] if not _fits_conv(axis))


def _check_ratios(lo: Lowering, a: Arguments) -> str:
    x, axes = _find_interpolation(lo, a)
    if lo.target.is_npu and x.q is not None and all(map(_fits_conv, axes)):
        return ""
    return _describe_ratios(axis for axis in axes if not axis.is_flat and not axis.fits(False))


def _describe_ratios(wrong: Iterable[resizing.Axis]) -> str:
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
    return _repeat(lo, arguments, False)


@op(
    "upsample_bilinear2d",
    "upsample_bilinear2d.vec",
    "upsample_bilinear2d.default",
    quant="share",
    constraints=_RATIOS,
    samples=lambda: [
        *_samples("bilinear"),
        call(lambda x: torch.ops.aten.upsample_bilinear2d(x + 1.0, [5, 6], False, 2.5, 2.0), f32(1, 3, 2, 3)),
        call(lambda x: torch.ops.aten.upsample_bilinear2d(x + 1.0, [5, 6], False, 2.5, 2.0), f32(1, 3, 5, 3)),
        call(lambda x: F.interpolate(x, (2, 1019), mode="bilinear"), f32(1, 1, 2, 23), targets=lambda t: t.has_resize),
        call(lambda x: F.interpolate(x, (2, 2053), mode="bilinear"), f32(1, 1, 2, 7), targets=lambda t: False),
    ],
)
def upsample_bilinear2d(lo: Lowering, **arguments: Any) -> Tensor:
    return _interpolate(lo, arguments)


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
    return _repeat(lo, arguments, False)


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
        call(lambda x: torch.ops.aten.upsample_linear1d(x + 1.0, [5], False, 2.5) * 2.0, f32(1, 3, 5)),
        call(lambda x: F.interpolate(x, 2053, mode="linear"), f32(1, 1, 7), targets=lambda t: False),
    ],
)
def upsample_linear1d(lo: Lowering, **arguments: Any) -> Tensor:
    return _interpolate(lo, arguments)


@data_movement(
    "upsample_nearest_exact2d",
    "_upsample_nearest_exact2d.vec",
    "_upsample_nearest_exact2d.default",
    samples=lambda: [
        *_samples("nearest-exact"),
        call(lambda x: torch.ops.aten._upsample_nearest_exact2d(x + 1.0, [5, 6], 2.5, 2.1), f32(1, 3, 2, 3)),
    ],
)
def upsample_nearest_exact2d(lo: Lowering, **arguments: Any) -> Tensor:
    return _repeat(lo, arguments, True)


@data_movement(
    "upsample_nearest_exact1d",
    "_upsample_nearest_exact1d.vec",
    "_upsample_nearest_exact1d.default",
    samples=lambda: [
        call(lambda x: F.interpolate(x + 1.0, scale_factor=2, mode="nearest-exact"), f32(3, 17, 5)),
        call(lambda x: F.interpolate(x + 1.0, size=7, mode="nearest-exact"), f32(1, 3, 5)),
        call(lambda x: torch.ops.aten._upsample_nearest_exact1d(x + 1.0, [5], 2.5), f32(1, 64, 2)),
    ],
)
def upsample_nearest_exact1d(lo: Lowering, **arguments: Any) -> Tensor:
    return _repeat(lo, arguments, True)
