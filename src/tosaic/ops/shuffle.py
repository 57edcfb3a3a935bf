"""Rearranging data: flip, roll, pixel_shuffle, pixel_unshuffle, channel_shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tosaic.ir import ops as tosa
from tosaic.ir.graph import Array, DType, Value
from tosaic.ir.qparams import QParams
from tosaic.lower import arithmetic as arith
from tosaic.lower import movement
from tosaic.lower.forms import data_movement
from tosaic.lower.lowering import NHWC, Lowering, of_image
from tosaic.lower.samples import F, call, f32, i32, module, nn, torch
from tosaic.lower.tensor import Tensor, of_value

#: up to this many channels a convolution with ones and zeros moves them in fewer cycles than TRANSPOSE, by 1.5 to 5
MOST_CHANNELS = 128


@data_movement(
    "flip",
    samples=lambda: [
        call(lambda x: (x + 1.0).flip(0), f32(5)),
        call(lambda x: (x + 1.0).flip(-1), f32(3, 17, 4, 5)),
        call(lambda x: (x + 1.0).flip(1, -2), f32(1, 3, 4, 5)),
        call(lambda x: F.conv2d(x, torch.ones(2, 3, 1, 1)).flip((2, 3)), f32(1, 3, 4, 5)),
        call(lambda x: (x + 1.0).flip((0, 2)), f32(3, 2, 64)),
        call(lambda x: (x + 1.0).flip(1), f32(1, 300)),
        call(lambda x: (x + 1.0).flip((1, 2, 4)), f32(2, 3, 4, 5, 6)),
        call(lambda x: (x + 1).flip(1), i32(2, 3)),
        call(lambda x: (x + 1.0).flip(-1), f32()),
    ],
)
def flip(lo: Lowering, self: Tensor, dims: Sequence[int]) -> Tensor:
    x = movement.require_movable(lo, self)
    for dim in dims if x.rank else ():
        x = movement.reverse(lo, x, dim % x.rank)
    return x


@data_movement(
    "roll",
    samples=lambda: [
        call(lambda x: (x + 1.0).roll(1, -1), f32(3, 5)),
        call(lambda x: (x + 1.0).roll((-1, 2), (1, 2)), f32(1, 4, 4, 17)),
        call(lambda x: (x + 1.0).roll(3), f32(2, 5)),
        call(lambda x: (x + 1.0).roll(4, 1), f32(2, 4)),
    ],
)
def roll(lo: Lowering, self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    x = movement.require_movable(lo, self)
    if not dims:
        flat = roll(lo, lo.reshape(x, (x.size,)), shifts, (0,))
        return lo.reshape(flat, self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        start = -int(shift) % size
        if start:
            d = dim % x.rank
            x = movement.concatenate(
                lo, [movement.crop(lo, x, d, start, size - start), movement.crop(lo, x, d, 0, start)], d
            )
    return x


def _moves_by_conv(lo: Lowering, x: Tensor, channels: int) -> bool:
    return lo.target.is_npu and x.q is not None and x.dtype is DType.I8 and channels <= MOST_CHANNELS


def _permute_channels(lo: Lowering, image: Value, q: QParams, weight: Array) -> Value:
    """Convolve with one 1 per output channel, which keeps all numbers unchanged."""
    return lo.to_layout(arith.convolve_fixed_point(lo, of_image(image, q), weight), NHWC)


def _image(lo: Lowering, value: Value, shape: Sequence[int], like: Tensor) -> Tensor:
    """View an NHWC value with this NHWC shape."""
    return of_image(lo.emit(lo.reshape(of_value(value), shape)), like.q)


def _as_images(lo: Lowering, x: Tensor) -> Tensor:
    """Merge all leading dimensions into one batch."""
    return x if x.rank == 4 else lo.reshape(x, (prod(x.shape[:-3]), *x.shape[-3:]))


@data_movement(
    "pixel_shuffle",
    samples=lambda: [
        module(lambda: nn.Sequential(nn.Conv2d(3, 9, 1), nn.PixelShuffle(3)), f32(1, 3, 4, 5)),
        call(lambda x: F.pixel_shuffle(x + 1.0, 2), f32(3, 12, 3, 2)),
        call(lambda x: F.pixel_shuffle(x + 1.0, 2), f32(1, 68, 3, 2)),
        call(lambda x: F.pixel_shuffle(x + 1.0, 2), f32(1, 256, 2, 3)),
        call(lambda x: F.pixel_shuffle(x + 1.0, 4), f32(16, 3, 2)),
        call(lambda x: F.pixel_shuffle(x + 1.0, 2), f32(2, 1, 4, 3, 3)),
    ],
)
def pixel_shuffle(lo: Lowering, self: Tensor, upscale_factor: int) -> Tensor:
    x, r = _as_images(lo, movement.require_movable(lo, self)), upscale_factor
    (n, c, h, w), out = x.shape, x.shape[1] // r**2
    shape = (*self.shape[:-3], out, h * r, w * r)
    if not lo.target.is_npu or x.q is None:
        blocks = lo.permute(lo.reshape(x, (n, out, r, r, h, w)), (0, 1, 4, 2, 5, 3))
        return lo.reshape(blocks, shape)
    image = lo.to_layout(x, NHWC)
    if _moves_by_conv(lo, x, c):
        # One convolution for each row of the r x r blocks; the pixels of a row are its channels.
        ones = np.eye(c, dtype=np.int8).reshape(out, r, r, 1, 1, c)
        rows = [
            _permute_channels(lo, image, x.q, ones[:, i].swapaxes(0, 1).reshape(r * out, 1, 1, c)) for i in range(r)
        ]
    else:
        inner = lo.permute(lo.reshape(of_value(image), (n * h, w, out, r * r)), (0, 1, 3, 2))
        inner = lo.reshape(of_value(lo.emit(inner)), (n, h, w, c))
        rows = [lo.emit(movement.crop(lo, inner, 3, i * r * out, r * out)) for i in range(r)]
    return lo.reshape(_image(lo, tosa.concat(lo.b, rows, 2), (n, h * r, w * r, out), x), shape)


@data_movement(
    "pixel_unshuffle",
    samples=lambda: [
        module(lambda: nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 4, 1)), f32(1, 3, 4, 6)),
        call(lambda x: F.pixel_unshuffle(x + 1.0, 3), f32(3, 1, 6, 3)),
        call(lambda x: F.pixel_unshuffle(x + 1.0, 4), f32(1, 3, 8, 4)),
        call(lambda x: F.pixel_unshuffle(x + 1.0, 2), f32(1, 64, 4, 2)),
        call(lambda x: F.pixel_unshuffle(x + 1.0, 2), f32(17, 4, 2)),
    ],
)
def pixel_unshuffle(lo: Lowering, self: Tensor, downscale_factor: int) -> Tensor:
    x, r = _as_images(lo, movement.require_movable(lo, self)), downscale_factor
    n, c, h, w = x.shape[0], x.shape[1], x.shape[2] // r, x.shape[3] // r
    shape = (*self.shape[:-3], c * r * r, h, w)
    if not lo.target.is_npu or x.q is None:
        blocks = lo.permute(lo.reshape(x, (n, c, h, r, w, r)), (0, 1, 3, 5, 2, 4))
        return lo.reshape(blocks, shape)
    image = lo.to_layout(x, NHWC)
    # The columns of a block are already channels: they are adjacent in memory. So are its rows, W pixels apart.
    rows = lo.reshape(of_value(image), (n, h, r * w, r * c))
    parts = [lo.emit(movement.crop(lo, rows, 2, i * w, w)) for i in range(r)]
    value = parts[0] if r == 1 else tosa.concat(lo.b, parts, 3)
    if _moves_by_conv(lo, x, c * r * r):
        ones = np.eye(c * r * r, dtype=np.int8).reshape(r * r, c, 1, 1, -1).swapaxes(0, 1)
        value = _permute_channels(lo, value, x.q, ones.reshape(c * r * r, 1, 1, c * r * r))
    else:
        value = lo.emit(lo.permute(lo.reshape(of_value(value), (n * h, w, r * r, c)), (0, 1, 3, 2)))
    return lo.reshape(_image(lo, value, (n, h, w, c * r * r), x), shape)


@data_movement(
    "channel_shuffle",
    "channel_shuffle.default",
    "native_channel_shuffle.default",
    samples=lambda: [
        module(lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.ChannelShuffle(2), nn.Conv2d(8, 3, 1)), f32(1, 3, 4, 5)),
        call(lambda x: F.channel_shuffle(x + 1.0, 3), f32(3, 6, 3, 2)),
        call(lambda x: F.channel_shuffle(x + 1.0, 5), f32(1, 320, 2, 3)),
        call(lambda x: F.native_channel_shuffle(x + 1.0, 4), f32(1, 64, 2, 2)),
        call(lambda x: F.channel_shuffle(x + 1.0, 2), f32(2, 4, 3)),
    ],
)
def channel_shuffle(lo: Lowering, self: Tensor, groups: int) -> Tensor:
    x = movement.require_movable(lo, self)
    (n, c), tail = x.shape[:2], x.shape[2:]
    if not lo.target.is_npu or x.q is None or x.rank != 4:
        mixed = lo.reshape(x, (n, groups, c // groups, prod(tail)))
        return lo.reshape(lo.permute(mixed, (0, 2, 1, 3)), x.shape)
    image = lo.to_layout(x, NHWC)
    _, h, w, _ = image.shape
    if _moves_by_conv(lo, x, c):
        ones = np.eye(c, dtype=np.int8).reshape(groups, c // groups, 1, 1, c).swapaxes(0, 1)
        value = _permute_channels(lo, image, x.q, ones.reshape(c, 1, 1, c))
    else:
        value = lo.emit(lo.permute(lo.reshape(of_value(image), (n * h, w, groups, c // groups)), (0, 1, 3, 2)))
    return _image(lo, value, (n, h, w, c), x)
