"""Turns transposes of images with few channels, which the NPU writes in tiny pieces, into one-hot convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Op, Value
from tosaic.passes.replace import replace_ops

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


@dataclass(frozen=True, slots=True)
class Gain:
    """When the convolution beats the transpose, and how many pixels it processes at once (by Vela 5.2's estimate)."""

    channels: int
    pixels: int
    lanes: int


#: measured on images of 32x32 to 224x224 with 2 to 16 channels
_GAINS: Mapping[tuple[str, tuple[int, ...]], Gain] = {
    ("u55", TO_LAST): Gain(8, 4096, 8),
    ("u65", TO_LAST): Gain(8, 4096, 8),
    ("u85", TO_LAST): Gain(8, 256, 4),
    ("u55", TO_FIRST): Gain(4, 1024, 8),
    ("u65", TO_FIRST): Gain(4, 1024, 8),
    ("u85", TO_FIRST): Gain(4, 1024, 16),
}


def convert_transposes(graph: Graph, family: str) -> Graph:
    """Turn NCHW <-> NHWC of an int8 image with few channels into a convolution that only copies.

    before: %1: i8[1,H,W,C] = TRANSPOSE(%0: i8[1,C,H,W])
    after:  %a = RESHAPE(%0) as [1,C,H*W/4,4]; %b = CONV2D(%a, one-hot); %c = RESCALE(%b) by 1; %1 = RESHAPE(%c)
    """

    def rule(b: Builder, op: Op) -> Value | None:
        perms = next((p for p in (TO_LAST, TO_FIRST) if op.kind == "TRANSPOSE" and op.attrs["perms"] == p), None)
        if perms is None:
            return None
        gain, image = _GAINS.get((family, perms)), op.inputs[0]
        if gain is None or image.dtype is not DType.I8 or image.shape[0] != 1:
            return None
        channels = image.shape[1] if perms == TO_LAST else image.shape[3]
        pixels = image.type.size // channels
        if channels > gain.channels or pixels < gain.pixels or pixels % gain.lanes:
            return None
        copy = _to_last if perms == TO_LAST else _to_first
        return tosa.reshape(b, copy(b, image, channels, pixels, gain.lanes), op.outputs[0].shape)

    return replace_ops(graph, rule)


def _to_last(b: Builder, image: Value, channels: int, pixels: int, lanes: int) -> Value:
    """Turn one row per channel into `lanes` adjacent pixels, channels innermost."""
    rows = tosa.reshape(b, image, (1, channels, pixels // lanes, lanes))
    weight = np.zeros((lanes, channels, channels, 1, lanes), np.int8)
    for lane in range(lanes):
        for channel in range(channels):
            weight[lane, channel, channel, 0, lane] = 1
    return _copy(b, rows, weight.reshape(lanes * channels, channels, 1, lanes))


def _to_first(b: Builder, image: Value, channels: int, pixels: int, lanes: int) -> Value:
    """Extract one channel from `lanes` pixels at a time; the planes are concatenated."""
    rows = tosa.reshape(b, image, (1, 1, pixels // lanes, lanes * channels))
    planes: list[Value] = []
    for channel in range(channels):
        weight = np.zeros((lanes, 1, 1, lanes, channels), np.int8)
        weight[np.arange(lanes), 0, 0, np.arange(lanes), channel] = 1
        planes.append(_copy(b, rows, weight.reshape(lanes, 1, 1, lanes * channels)))
    return tosa.concat(b, planes, 1)


def _copy(b: Builder, x: Value, weight: np.ndarray[tuple[int, ...], np.dtype[np.int8]]) -> Value:
    """Convolve with sums of one term each: the result has the quantized values of the input."""
    bias = b.const(np.zeros(weight.shape[0], np.int32), DType.I32)
    total = tosa.conv2d(
        b,
        x,
        b.const(weight, DType.I8),
        bias,
        pad=(0, 0, 0, 0),
        stride=(1, 1),
        dilation=(1, 1),
        acc_type=DType.I32,
    )
    return tosa.rescale(b, total, DType.I8, multiplier=[1 << 30], shift=[30])
