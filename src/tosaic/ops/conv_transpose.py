"""Transposed convolutions of any stride, and `aten.convolution`, which is either kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tosaic.lower import convolution, convolution3d, transposed_convolution
from tosaic.lower.arguments import Sizes
from tosaic.lower.constraints import CONVOLUTION
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import op
from tosaic.lower.samples import Sample, f32, module, nn
from tosaic.lower.tensor import Tensor


def _samples_conv_transpose2d() -> list[Sample]:
    def conv(*args: Any, **kwargs: Any) -> Any:
        return lambda: nn.ConvTranspose2d(*args, **kwargs)

    return [
        module(conv(3, 8, 2, stride=2), f32(1, 3, 5, 6)),
        module(conv(17, 3, 3, stride=2, padding=1, output_padding=1), f32(3, 17, 4, 4)),
        module(conv(1, 4, (4, 3), stride=2, padding=(1, 0)), f32(1, 1, 5, 4)),
        module(conv(8, 64, 3, bias=False), f32(1, 8, 4, 4)),
        module(conv(4, 5, 3, stride=3), f32(1, 4, 4, 5)),
        module(conv(4, 5, 5, stride=3, padding=2, output_padding=2), f32(3, 4, 4, 5)),
        module(conv(4, 5, 2, stride=3, output_padding=1), f32(1, 4, 3, 3)),
        module(conv(4, 6, 3, stride=(1, 2), padding=1), f32(1, 4, 5, 5)),
        module(conv(4, 6, (3, 5), stride=(4, 3), padding=(0, 3)), f32(1, 4, 4, 5)),
        module(conv(4, 6, 3, stride=2, dilation=2, padding=1), f32(1, 4, 5, 5)),
        module(conv(4, 6, 2, stride=3, dilation=(2, 4), output_padding=(2, 3)), f32(1, 4, 4, 4)),
        module(conv(8, 8, 4, stride=2, padding=1, groups=8), f32(1, 8, 5, 5)),
        module(conv(8, 12, 3, stride=2, groups=4, output_padding=1), f32(1, 8, 4, 4)),
        module(conv(6, 6, 3, groups=2, dilation=2), f32(1, 6, 4, 4)),
        module(conv(6, 6, 3, groups=2, stride=2, dilation=2), f32(1, 6, 4, 4)),
        module(conv(6, 6, 3, groups=2, dilation=(3, 2), padding=(0, 1), output_padding=(2, 1)), f32(1, 6, 4, 4)),
        module(conv(3, 4, 2, stride=2, padding=2), f32(1, 3, 6, 6)),
        module(conv(3, 4, 3, stride=2), f32(3, 5, 5)),
        module(conv(3, 8, 3, stride=2), f32(1, 3, 5, 5, low=-40.0, high=2.0)),
        module(lambda: nn.Sequential(nn.ConvTranspose2d(3, 8, 2, stride=2), nn.ReLU()), f32(1, 3, 5, 6)),
    ]


@op(
    "conv_transpose1d",
    quant="weight",
    samples=lambda: [
        module(lambda: nn.ConvTranspose1d(3, 8, 4, stride=2, padding=1), f32(1, 3, 12)),
        module(lambda: nn.ConvTranspose1d(3, 17, 5, stride=3, output_padding=1), f32(3, 3, 6)),
        module(lambda: nn.ConvTranspose1d(8, 8, 3, groups=8, stride=2, dilation=2), f32(1, 8, 6)),
        module(lambda: nn.ConvTranspose1d(3, 8, 3, bias=False), f32(3, 12)),
        module(lambda: nn.ConvTranspose1d(64, 1, 16, stride=8, padding=4), f32(1, 64, 9)),
    ],
)
@op(
    "conv_transpose2d",
    "conv_transpose2d.input",
    quant="weight",
    samples=_samples_conv_transpose2d,
)
def conv_transpose2d(
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
    return transposed_convolution.convolve_transposed(
        lo, input, weight, bias, stride, padding, output_padding, dilation, groups
    )


@op("convolution", quant="weight", constraints=CONVOLUTION)
def lower_convolution(
    lo: Lowering,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """Lower the form that exir decomposes every convolution to."""
    plain, back = (convolution3d, convolution3d) if weight.rank == 5 else (convolution, transposed_convolution)
    if transposed:
        return back.convolve_transposed(lo, input, weight, bias, stride, padding, output_padding, dilation, groups)
    return plain.convolve(lo, input, weight, bias, stride, padding, dilation, groups)
