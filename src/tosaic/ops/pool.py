"""Pooling of rows and images: maximum and average, any stride and dilation, with ceil_mode and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tosaic.core.errors import Unsupported
from tosaic.lower import pool_positions, pooling
from tosaic.lower.arguments import Sizes
from tosaic.lower.lowering import Lowering
from tosaic.lower.pooling import PoolWindow
from tosaic.lower.registry import Arguments, Constraint, op
from tosaic.lower.samples import F, Sample, call, f32, module, nn, torch
from tosaic.lower.tensor import Tensor


def _check_rank(lo: Lowering, a: Arguments) -> str:
    rank = a["self"].rank
    return "" if rank in (3, 4) else f"the tensor has {rank}"


_IMAGES = Constraint(
    "pooling takes an image of 3 or 4 dimensions", _check_rank, "reshape its input to an image of 3 or 4 dimensions"
)


def _samples_pool(name: str) -> list[Sample]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return getattr(F, name)(*args, **kwargs)

    return [
        call(lambda x: function(x, 2), f32(1, 3, 8, 8)),
        call(lambda x: function(x, 3, stride=1), f32(3, 17, 6, 6)),
        call(lambda x: function(x, (2, 3), stride=(2, 1)), f32(1, 1, 6, 9)),
        call(lambda x: function(x, 3, stride=2, padding=1), f32(1, 64, 8, 8)),
        call(lambda x: function(x, 3, stride=2, ceil_mode=True), f32(1, 3, 8, 8)),
        call(lambda x: function(x, 3, stride=2, padding=1, ceil_mode=True), f32(1, 3, 8, 8)),
        call(lambda x: function(x, 4, stride=4), f32(1, 3, 12, 12)),
        call(lambda x: function(x, 2, stride=5), f32(1, 3, 12, 12)),
        call(lambda x: function(x, (6, 5)), f32(1, 3, 6, 5)),
        call(lambda x: function(x, 2), f32(3, 5, 2, 3)),
        call(lambda x: function(x, 2), f32(3, 8, 8)),
        call(lambda x: function(x, 2), f32(1, 3, 8, 8, low=-30.0, high=0.1)),
    ]


def _samples_row_pool(name: str) -> list[Sample]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return getattr(F, name)(*args, **kwargs)

    return [
        call(lambda x: function(x, 2), f32(1, 3, 8)),
        call(lambda x: function(x, 3, stride=1, padding=1), f32(3, 17, 7)),
        call(lambda x: function(x, 3, stride=2, ceil_mode=True), f32(1, 64, 8)),
        call(lambda x: function(x, 4, stride=5), f32(1, 1, 15)),
        call(lambda x: function(x, 6), f32(3, 6)),
        call(lambda x: function(x, 2), f32(1, 3, 8, low=-30.0, high=0.1)),
    ]


@op(
    "max_pool2d",
    quant="share",
    computes_in_float32=True,
    constraints=[_IMAGES],
    samples=lambda: [
        *_samples_pool("max_pool2d"),
        module(lambda: nn.MaxPool2d(2), f32(1, 3, 8, 8)),
        call(lambda x: F.max_pool2d(x, 3, dilation=2), f32(1, 3, 9, 10)),
        call(lambda x: F.max_pool2d(x, 3, 2, 1, dilation=(2, 3)), f32(3, 17, 8, 9)),
        call(lambda x: F.max_pool2d(x, (2, 3), (1, 4), (1, 0), dilation=(1, 2), ceil_mode=True), f32(1, 5, 6, 11)),
        call(lambda x: F.max_pool2d(x, 2, 1, 1, dilation=4), f32(3, 5, 6, low=-30.0, high=-1.0)),
    ],
)
def max_pool2d(
    lo: Lowering,
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    x = self if self.q is None else lo.require_quantized(self)
    return pooling.apply_to_images(
        lo, x, lambda image: pooling.pool_max(lo, image, kernel_size, stride, padding, dilation, ceil_mode)
    )


@op(
    "max_pool2d_with_indices",
    quant="share",
    computes_in_float32=True,
    fits_int32=True,
    constraints=[_IMAGES],
    samples=lambda: [
        call(lambda x: _with_indices(x, 2), f32(1, 3, 8, 8)),
        call(lambda x: _with_indices(x, 3, 2, 1), f32(3, 17, 7, 8)),
        call(lambda x: _with_indices(x, (2, 3), (3, 1), 0, (1, 2), ceil_mode=True), f32(1, 5, 6, 11)),
        call(lambda x: _with_indices(x, 2, ceil_mode=True), f32(3, 5, 5, low=-30.0, high=-1.0)),
        call(lambda x: _with_indices(x, (4, 1), padding=(2, 0)), f32(1, 64, 4, 4)),
        call(lambda x: _with_indices(x, 3, 2, 1, 2), f32(1, 3, 8, 9)),
        call(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[0], f32(1, 3, 8, 8)),
    ],
)
def max_pool2d_with_indices(
    lo: Lowering,
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor | Unsupported]:
    """Lower the form that exir decomposes to, too."""
    values = max_pool2d(lo, self, kernel_size, stride, padding, dilation, ceil_mode)
    window = PoolWindow(self.shape, kernel_size, stride, padding, ceil_mode, dilation)
    return values, pool_positions.locate_max(lo, self, pool_positions.list_axes(self.shape[-2:], window))


def _with_indices(*args: Any, **kwargs: Any) -> Any:
    """Return the indices as the targets hold them, for samples."""
    values, indices = F.max_pool2d(*args, **kwargs, return_indices=True)
    return values, indices.to(torch.int32)


@op(
    "max_pool1d",
    quant="share",
    computes_in_float32=True,
    samples=lambda: [
        *_samples_row_pool("max_pool1d"),
        call(lambda x: F.max_pool1d(x, 3, 2, 1, dilation=2), f32(1, 3, 11)),
    ],
)
def max_pool1d(
    lo: Lowering,
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    x = self if self.q is None else lo.require_quantized(self)
    step = _as_columns(stride, 1) if stride else None
    kernel, pad, apart = (_as_columns(v, i) for v, i in ((kernel_size, 1), (padding, 0), (dilation, 1)))
    return pooling.apply_to_rows(lo, x, lambda image: pooling.pool_max(lo, image, kernel, step, pad, apart, ceil_mode))


def _as_columns(value: Sizes, idle: int) -> list[int]:
    """Return an argument of rows as one of images of height one, where it is `idle` for the height."""
    return [idle, value if isinstance(value, int) else value[0]]


def _divisor_is_fixed(x_shape: Sequence[int], a: Arguments) -> bool:
    window = PoolWindow(x_shape, a["kernel_size"], a.get("stride"), a.get("padding", 0), bool(a.get("ceil_mode")))
    padded = any(window.pad) and not a.get("count_include_pad", True)
    return bool(a.get("divisor_override")) or not (padded or any(window.extra))


def _quant_avg(a: Arguments) -> str:
    """Choose the qparams: unequal windows are averaged at those of the input; all others are sums with one rounding."""
    return "observe" if _divisor_is_fixed(a["self"].shape, a) else "share"


@op(
    "avg_pool2d",
    quant=_quant_avg,
    computes_in_float32=True,
    constraints=[_IMAGES],
    samples=lambda: [
        *_samples_pool("avg_pool2d"),
        call(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), f32(1, 3, 8, 8)),
        call(lambda x: F.avg_pool2d(x, 2, divisor_override=3), f32(1, 3, 8, 8)),
        call(lambda x: F.avg_pool2d(x.sigmoid(), 2), f32(1, 3, 8, 8)),
    ],
)
def avg_pool2d(
    lo: Lowering,
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    x = self if self.q is None else lo.require_quantized(self)
    arguments = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "ceil_mode": ceil_mode,
                 "count_include_pad": count_include_pad, "divisor_override": divisor_override}  # fmt: skip

    def average(image: Tensor) -> Tensor:
        window = PoolWindow(image.shape, kernel_size, stride, padding, ceil_mode)
        if _divisor_is_fixed(image.shape, arguments):
            return pooling.sum_windows(lo, image, window, divisor_override or window.kernel[0] * window.kernel[1])
        return pooling.average_windows(lo, image, window, count_include_pad)

    return pooling.apply_to_images(lo, x, average)


def _list_row_arguments(a: Arguments) -> dict[str, Any]:
    """Return the arguments of an average of rows as those of images."""
    stride = a.get("stride")
    sizes = {
        "kernel_size": _as_columns(a["kernel_size"], 1),
        "stride": _as_columns(stride, 1) if stride else None,
        "padding": _as_columns(a.get("padding", 0), 0),
    }
    return {**sizes, **{name: a[name] for name in ("ceil_mode", "count_include_pad") if name in a}}


def _quant_row_avg(a: Arguments) -> str:
    return "observe" if _divisor_is_fixed((1, a["self"].shape[-1]), _list_row_arguments(a)) else "share"


@op(
    "avg_pool1d",
    quant=_quant_row_avg,
    computes_in_float32=True,
    samples=lambda: [
        *_samples_row_pool("avg_pool1d"),
        call(lambda x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False), f32(1, 3, 8)),
    ],
)
def avg_pool1d(lo: Lowering, self: Tensor, **arguments: Any) -> Tensor:
    x = self if self.q is None else lo.require_quantized(self)
    return pooling.apply_to_rows(lo, x, lambda image: avg_pool2d(lo, image, **_list_row_arguments(arguments)))
