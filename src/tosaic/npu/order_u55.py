"""The order of weights in a stream for U55 and U65."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tosaic.npu.errors import Malformed
from tosaic.npu.record import Kind, Op, Shape, Window
from tosaic.npu.registers import Family

_IFM_GROUP = 8
_PART = 8


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
            part_y=_PART // window.dilation_y,
            part_x=_PART // window.dilation_x,
            depthwise=depthwise,
            part_kernel=not depthwise and op.get("KERNEL_STRIDE", "weight_order") == 1,
            wide=op.name("IFM_PRECISION", "activation_precision") == "B16",
            block=op.get("OFM_BLK_DEPTH_M1") + 1,
            group=4 if op.macs == 32 else 8,
            # A core without output channels has no stream.
            streams=min(ofm.depth, 2 if op.family is Family.U65 and op.macs == 512 else 1),
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
        volume = np.zeros((self.taps_y, self.taps_x, self.inputs + 32, outputs + self.group), np.float32)
        at = 0
        for first_out in range(0, outputs, block):
            groups = -(-min(block, outputs - first_out) // self.group)
            for first_in, in_groups in self._input_blocks():
                for y, x, rows, columns in self._kernel_parts():
                    at = self._place(
                        stream, at, volume, (first_out, groups, first_in, in_groups), (y, x, rows, columns)
                    )
        padded = volume[:, :, self.inputs :].any() or volume[..., outputs:].any()
        if at != len(stream) or padded:
            raise Malformed("a weight stream does not fit its convolution", offset=offset, why=f"{len(stream)} weights")
        return volume[:, :, : self.inputs, :outputs]

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

    def _place(
        self,
        stream: npt.NDArray[np.int16],
        at: int,
        volume: npt.NDArray[np.float32],
        channels: tuple[int, int, int, int],
        kernel: tuple[int, int, int, int],
    ) -> int:
        """Put the next weights of the stream into their block of the volume; the place after them."""
        first_out, groups, first_in, in_groups = channels
        y, x, rows, columns = kernel
        step = 4 if self.depthwise else (2 if self.wide else 4) if self.part_kernel else 1
        elements = -(-rows * columns // step) * step
        deep = 1 if self.depthwise else _IFM_GROUP
        outer, inner = (in_groups, 1) if self.part_kernel else (1, in_groups)
        sizes = (outer, groups, elements, inner, self.group, deep)
        end = at + int(np.prod(sizes))
        if end > len(stream):
            return len(stream) + 1
        part = stream[at:end].reshape(sizes)
        if part[:, :, rows * columns :].any():
            return len(stream) + 1
        part = part[:, :, : rows * columns].reshape(outer, groups, rows, columns, inner, self.group, deep)
        target = volume[
            y : y + rows,
            x : x + columns,
            first_in : first_in + in_groups * deep,
            first_out : first_out + groups * self.group,
        ].reshape(rows, columns, outer, inner, deep, groups, self.group)
        target[...] = part.transpose(2, 3, 0, 4, 6, 1, 5)
        return end
