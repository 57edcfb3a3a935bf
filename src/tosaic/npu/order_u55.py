"""The order of weights in a stream for U55 and U65."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tosaic.npu.errors import Malformed
from tosaic.npu.order import PART, Place, make_volume
from tosaic.npu.record import Kind, Op, Shape, Window
from tosaic.npu.registers import Family

_IFM_GROUP = 8


def count_cores(op: Op) -> int:
    """The cores of a U55 or U65, between which the output channels of a convolution are dealt out."""
    cores = 2 if op.family is Family.U65 and op.macs == 512 else 1
    if op.family is Family.U65 and op.get("PARALLEL_MODE") != cores - 1:
        raise op.unknown("PARALLEL_MODE", why=f"the accelerator has {cores} cores")
    return cores


@dataclass(frozen=True, slots=True)
class OrderU55:
    """Nested blocks: output channels, input channels, parts of the kernel, and inside them groups of channels.

    Depth first: output group, kernel element, input group. Part kernel first: input group, output group, element.
    """

    outputs: int
    inputs: int
    taps_y: int
    taps_x: int
    part_y: int
    part_x: int
    depthwise: bool
    part_kernel: bool
    wide: bool
    block: int
    group: int
    streams: int

    @staticmethod
    def of(op: Op, window: Window, depth: int, ofm: Shape) -> OrderU55:
        depthwise = op.kind is Kind.DEPTHWISE
        return OrderU55(
            outputs=ofm.depth,
            inputs=depth,
            taps_y=window.taps_y,
            taps_x=window.taps_x,
            part_y=PART // window.dilation_y,
            part_x=PART // window.dilation_x,
            depthwise=depthwise,
            part_kernel=not depthwise and op.get("KERNEL_STRIDE", "weight_order") == 1,
            wide=op.name("IFM_PRECISION", "activation_precision") == "B16",
            block=op.get("OFM_BLK_DEPTH_M1") + 1,
            group=4 if op.macs == 32 else 8,
            # A core without output channels has no stream.
            streams=min(ofm.depth, count_cores(op)),
        )

    @property
    def count(self) -> int:
        return self.outputs * self.inputs * self.taps_y * self.taps_x

    def arrange(self, numbers: Sequence[npt.NDArray[np.int16]], offset: int) -> npt.NDArray[np.float32]:
        """The numbers of each core's stream as [kernel rows, kernel columns, inputs, outputs]."""
        result = np.empty((self.taps_y, self.taps_x, self.inputs, self.outputs), np.float32)
        for core, stream in enumerate(numbers):
            channels = result[..., core :: self.streams]
            block = (self.block + self.streams - 1 - core) // self.streams
            channels[...] = self._arrange_core(stream, channels.shape[-1], block, offset)
        return result

    def _arrange_core(
        self, stream: npt.NDArray[np.int16], outputs: int, block: int, offset: int
    ) -> npt.NDArray[np.float32]:
        if block < 1 or len(stream) != self._count_stream(outputs, block):
            raise Malformed("a weight stream does not fit its convolution", offset=offset, why=f"{len(stream)} weights")
        places = list(self._places(outputs, block))
        volume = make_volume((self.taps_y, self.taps_x), places, self._deep, self.group)
        at, fits = 0, True
        for place in places:
            sizes = self._sizes(place)
            end = at + math.prod(sizes)
            fits = self._put(place, stream[at:end].reshape(sizes), volume) and fits
            at = end
        if not fits or volume[:, :, self.inputs :].any() or volume[..., outputs:].any():
            raise Malformed("the padding of a weight stream is not zero", offset=offset)
        return volume[:, :, : self.inputs, :outputs]

    def _count_stream(self, outputs: int, block: int) -> int:
        """How many weights a core's stream holds, padding included."""
        whole, rest = divmod(outputs, block)
        groups = whole * -(-block // self.group) + -(-rest // self.group)
        inputs = sum(groups for _, groups in self._input_blocks()) * self._deep
        elements = sum(self._pad(rows * columns) for _, _, rows, columns in self._kernel_parts())
        return groups * self.group * inputs * elements

    @property
    def _deep(self) -> int:
        """Input channels in a group."""
        return 1 if self.depthwise else _IFM_GROUP

    def _pad(self, elements: int) -> int:
        """Kernel elements with those that fill up the last round."""
        step = 4 if self.depthwise else (2 if self.wide else 4) if self.part_kernel else 1
        return -(-elements // step) * step

    def _places(self, outputs: int, block: int) -> Iterator[Place]:
        for first_out in range(0, outputs, block):
            groups = -(-min(block, outputs - first_out) // self.group)
            for first_in, in_groups in self._input_blocks():
                for y, x, rows, columns in self._kernel_parts():
                    yield Place(first_out, groups, first_in, in_groups, y, x, rows, columns)

    def _input_blocks(self) -> Iterator[tuple[int, int]]:
        """First input channel and number of input groups of each block; depth first always fills its blocks."""
        if self.depthwise:
            yield 0, 1
            return
        size = 16 if self.part_kernel or self.wide else 32
        for first in range(0, self.inputs, size):
            used = min(size, self.inputs - first) if self.part_kernel else size
            yield first, -(-used // _IFM_GROUP)

    def _kernel_parts(self) -> Iterator[tuple[int, int, int, int]]:
        for y in range(0, self.taps_y, self.part_y):
            for x in range(0, self.taps_x, self.part_x):
                yield y, x, min(self.part_y, self.taps_y - y), min(self.part_x, self.taps_x - x)

    def _sizes(self, place: Place) -> tuple[int, int, int, int, int, int]:
        """The weights of a part in the order of the stream: input groups stand outside or inside the kernel."""
        outer, inner = (place.in_groups, 1) if self.part_kernel else (1, place.in_groups)
        return outer, place.groups, self._pad(place.rows * place.columns), inner, self.group, self._deep

    def _put(self, place: Place, part: npt.NDArray[np.int16], volume: npt.NDArray[np.float32]) -> bool:
        """Put a part of the stream into the volume; False if its padding is not zero."""
        outer, groups, _, inner, group, deep = part.shape
        rows, columns, count = place.rows, place.columns, place.rows * place.columns
        target = place.cut(volume, deep, group).reshape(rows, columns, outer, inner, deep, groups, group)
        elements = part[:, :, :count].reshape(outer, groups, rows, columns, inner, group, deep)
        target[...] = elements.transpose(2, 3, 0, 4, 6, 1, 5)
        return not part[:, :, count:].any()
