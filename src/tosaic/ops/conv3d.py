"""Convolutions over three dimensions, plain and transposed."""

from __future__ import annotations

from typing import Any

from tosaic.lower import convolution3d
from tosaic.lower.arguments import Sizes
from tosaic.lower.constraints import CONVOLUTION
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import op
from tosaic.lower.samples import Sample, f32, module, nn
from tosaic.lower.tensor import Tensor


def _samples_conv3d() -> list[Sample]:
    def conv(*args: Any, **kwargs: Any) -> Any:
        return lambda: nn.Conv3d(*args, **kwargs)

    return [
        module(conv(3, 8, 3), f32(1, 3, 5, 6, 7)),
        module(conv(3, 17, 3, padding=1, stride=2), f32(3, 3, 4, 6, 5)),
        module(conv(1, 4, (2, 3, 1), padding=(1, 1, 0), stride=(2, 1, 1)), f32(1, 1, 5, 4, 4)),
        module(conv(17, 64, 1, bias=False), f32(1, 17, 3, 4, 2)),
        module(conv(4, 5, 3, dilation=2, padding=2), f32(1, 4, 5, 6, 5)),
        module(conv(4, 6, (3, 1, 1), padding=(1, 0, 0)), f32(3, 4, 5, 3, 3)),
        module(conv(4, 6, (3, 1, 1), stride=(4, 1, 1), dilation=(2, 1, 1)), f32(1, 4, 13, 2, 3)),
        module(conv(4, 6, (1, 3, 3), padding=(0, 1, 1)), f32(1, 4, 3, 5, 5)),
        module(conv(8, 12, 3, groups=4, padding=1), f32(1, 8, 3, 4, 4)),
        module(conv(8, 8, 3, groups=8, padding=1), f32(1, 8, 4, 5, 5)),
        module(conv(6, 12, (2, 3, 2), groups=6, stride=(2, 1, 2), bias=False), f32(3, 6, 5, 4, 5)),
        module(conv(3, 8, (3, 4, 2), padding="same"), f32(1, 3, 4, 5, 6)),
        module(conv(3, 8, 2, padding="valid", stride=2), f32(1, 3, 5, 4, 5)),
        module(conv(2, 64, 3, padding=(3, 1, 1)), f32(1, 2, 1, 3, 4)),
        module(conv(3, 4, 2, stride=(1, 5, 4)), f32(1, 3, 2, 12, 10)),
        module(conv(3, 4, 2, stride=3), f32(3, 5, 6, 7)),
        module(conv(4, 4, 3, groups=4, stride=4), f32(1, 4, 3, 11, 9), targets=lambda t: t.longest_stride is None),
        module(conv(3, 8, 3, padding=1), f32(1, 3, 3, 4, 4, low=-40.0, high=2.0)),
        module(lambda: nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.ReLU()), f32(1, 3, 3, 4, 4)),
        module(lambda: nn.Sequential(nn.Conv3d(3, 8, 2), nn.ReLU(), nn.Conv3d(8, 4, 2, padding=1)), f32(1, 3, 4, 4, 4)),
    ]


@op("conv3d", "conv3d.default", "conv3d.padding", quant="weight", constraints=CONVOLUTION, samples=_samples_conv3d)
def conv3d(
    lo: Lowering,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    return convolution3d.convolve(lo, input, weight, bias, stride, padding, dilation, groups)


def _samples_conv_transpose3d() -> list[Sample]:
    def conv(*args: Any, **kwargs: Any) -> Any:
        return lambda: nn.ConvTranspose3d(*args, **kwargs)

    return [
        module(conv(3, 8, 2, stride=2), f32(1, 3, 3, 4, 5)),
        module(conv(17, 3, 3, stride=2, padding=1, output_padding=1), f32(3, 17, 2, 3, 3)),
        module(
            conv(1, 4, (2, 4, 3), stride=(3, 2, 1), padding=(0, 1, 0), output_padding=(1, 0, 0)), f32(1, 1, 3, 4, 3)
        ),
        module(conv(4, 64, 3, bias=False), f32(1, 4, 2, 3, 3)),
        module(conv(4, 6, 2, stride=2, dilation=(2, 1, 3)), f32(1, 4, 3, 3, 2)),
        module(conv(4, 4, 3, stride=2, groups=4, padding=1), f32(1, 4, 3, 3, 3)),
        module(conv(4, 6, (3, 2, 2), stride=2, groups=2), f32(1, 4, 2, 3, 3)),
        module(conv(3, 4, 3, stride=2), f32(3, 2, 3, 3)),
        module(conv(3, 8, 3, stride=2), f32(1, 3, 2, 3, 3, low=-40.0, high=2.0)),
        module(lambda: nn.Sequential(nn.ConvTranspose3d(3, 8, 2, stride=2), nn.ReLU()), f32(1, 3, 2, 3, 4)),
    ]


@op("conv_transpose3d", "conv_transpose3d.input", quant="weight", samples=_samples_conv_transpose3d)
def conv_transpose3d(
    lo: Lowering,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    return convolution3d.convolve_transposed(lo, input, weight, bias, stride, padding, output_padding, dilation, groups)
