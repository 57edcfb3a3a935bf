"""Convolutions: conv1d, conv2d, grouped, depthwise, dilated, strided, with any padding."""

from __future__ import annotations

from typing import Any

from tosaic.lower import convolution
from tosaic.lower.arguments import Sizes
from tosaic.lower.constraints import CONVOLUTION
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import op
from tosaic.lower.samples import Sample, f32, module, nn, torch
from tosaic.lower.tensor import Tensor


def _make_faint() -> Any:
    """Make two channels of tiny weights for samples, whose biases exceed int32 in quantization steps."""
    conv = nn.Conv2d(3, 8, 3)
    with torch.no_grad():
        conv.weight[2:4] *= 1e-5
        conv.bias[2:4] = torch.tensor([-7.0, 7.0])
    return conv


def _samples_conv2d() -> list[Sample]:
    def conv(*args: Any, **kwargs: Any) -> Any:
        return lambda: nn.Conv2d(*args, **kwargs)

    return [
        module(conv(3, 8, 3), f32(1, 3, 9, 9)),
        module(conv(3, 17, 3, padding=1, stride=2), f32(3, 3, 8, 8)),
        module(conv(1, 4, (2, 5), padding=(1, 2)), f32(1, 1, 6, 9)),
        module(conv(17, 64, 1, bias=False), f32(1, 17, 4, 4)),
        module(conv(8, 8, 3, dilation=2, padding=2), f32(1, 8, 9, 9)),
        module(conv(8, 8, 3, dilation=(1, 2)), f32(1, 8, 9, 9)),
        module(conv(6, 6, 3, groups=2, dilation=3, padding=3), f32(1, 6, 9, 9)),
        module(conv(8, 12, 3, groups=4, padding=1), f32(1, 8, 6, 6)),
        module(conv(6, 8, 3, groups=2, padding=1, stride=2), f32(3, 6, 7, 7)),
        module(conv(16, 16, 3, groups=16, padding=1, stride=2), f32(1, 16, 8, 8)),
        module(conv(6, 12, 3, groups=6), f32(1, 6, 8, 8)),
        module(conv(3, 8, 3, padding="same"), f32(1, 3, 7, 7)),
        module(conv(3, 8, 4, padding="same"), f32(1, 3, 7, 7)),
        module(conv(3, 8, 3, padding="valid", stride=2), f32(1, 3, 8, 8)),
        module(conv(3, 8, 3, stride=3), f32(1, 3, 10, 10)),
        module(conv(3, 8, 2, stride=(4, 5)), f32(1, 3, 12, 15)),
        module(conv(3, 8, 4, stride=4), f32(1, 3, 19, 16)),
        module(conv(3, 192, (4, 5), stride=(4, 5)), f32(2, 3, 12, 15)),
        module(conv(3, 8, 3), f32(3, 9, 9)),
        module(conv(3, 16, 3, stride=2, padding=1), f32(2, 3, 12, 12)),
        module(conv(3, 17, 5, padding=2), f32(1, 3, 7, 8)),
        module(conv(1, 16, (3, 7), padding=(0, 3), stride=(1, 2), bias=False), f32(1, 1, 5, 16)),
        module(conv(3, 8, 3), f32(1, 3, 9, 9, low=-40.0, high=2.0)),
        module(_make_faint, f32(1, 3, 9, 9)),
        module(conv(3, 16, 3, stride=4, padding=1), f32(1, 3, 16, 16)),
        module(conv(4, 8, (7, 5), stride=(5, 4), padding=(3, 1)), f32(3, 4, 19, 23)),
        module(conv(4, 8, 5, stride=4, padding=2, groups=2), f32(1, 4, 13, 14)),
    ]


@op(
    "conv1d",
    "conv1d.default",
    "conv1d.padding",
    quant="weight",
    constraints=CONVOLUTION,
    samples=lambda: [
        module(lambda: nn.Conv1d(3, 8, 3), f32(1, 3, 12)),
        module(lambda: nn.Conv1d(3, 17, 5, stride=2, padding=2), f32(3, 3, 12)),
        module(lambda: nn.Conv1d(8, 8, 3, groups=8, dilation=2), f32(1, 8, 12)),
        module(lambda: nn.Conv1d(8, 8, 3, groups=2, padding="same"), f32(1, 8, 12)),
        module(lambda: nn.Conv1d(3, 8, 3, bias=False), f32(3, 12)),
    ],
)
@op("conv2d", "conv2d.default", "conv2d.padding", quant="weight", constraints=CONVOLUTION, samples=_samples_conv2d)
def conv2d(
    lo: Lowering,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    return convolution.convolve(lo, input, weight, bias, stride, padding, dilation, groups)
