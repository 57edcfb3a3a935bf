"""The order of weights in a stream for U55 and U65."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tosaic.npu.accelerator import INPUT_GROUP, KERNEL_PART, find_input_block
from tosaic.npu.errors import Malformed
from tosaic.npu.operation import Kind, Op, Shape, Window
from tosaic.npu.registers import Family


def count_cores(op: Op) -> int:
    """Return the number of U55 or U65 cores that share the output channels of a convolution."""
    cores = op.accelerator.cores
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
        assert op.accelerator.microblock is not None
        *_, group = op.accelerator.microblock
        return OrderU55(
            outputs=ofm.depth,
            inputs=depth,
            taps_y=window.taps_y,
            taps_x=window.taps_x,
            part_y=KERNEL_PART // window.dilation_y,
            part_x=KERNEL_PART // window.dilation_x,
            depthwise=depthwise,
            part_kernel=op.is_part_kernel_first,
            wide=op.name("IFM_PRECISION", "activation_precision") == "B16",
            block=op.get("OFM_BLK_DEPTH_M1") + 1,
            group=group,
            # A core without output channels has no stream.
            streams=min(ofm.depth, count_cores(op)),
        )

    @property
    def count(self) -> int:
        return self.outputs * self.inputs * self.taps_y * self.taps_x

    def arrange(self, numbers: Sequence[npt.NDArray[np.int16]], offset: int) -> npt.NDArray[np.float32]:
        """Arrange the numbers of each core's stream as [kernel rows, kernel columns, inputs, outputs]."""
        result = np.empty((self.taps_y, self.taps_x, self.inputs, self.outputs), np.float32)
        for core, stream in enumerate(numbers):
            channels = result[..., core :: self.streams]
            block = (self.block + self.streams - 1 - core) // self.streams
            channels[...] = self._arrange_core(stream, channels.shape[-1], block, offset)
        return result

    def _arrange_core(
        self, stream: npt.NDArray[np.int16], outputs: int, block: int, offset: int
    ) -> npt.NDArray[np.float32]:
        runs, inputs = self._output_runs(outputs, block), self._input_runs()
        elements = sum(self._pad(rows * columns) for _, _, rows, columns in self._kernel_parts())
        deep = self._deep * sum(blocks * groups for _, blocks, groups in inputs)
        sizes = [self.group * groups * deep * elements for _, _, groups in runs]
        if len(stream) != sum(blocks * size for (_, blocks, _), size in zip(runs, sizes, strict=True)):
            raise Malformed("a weight stream does not fit its convolution", offset=offset, why=f"{len(stream)} weights")
        wide = max(first + blocks * groups * self.group for first, blocks, groups in runs)
        volume = np.zeros((self.taps_y, self.taps_x, deep, wide), np.float32)
        at, fits = 0, True
        for (first, blocks, groups), size in zip(runs, sizes, strict=True):
            part = stream[at : at + blocks * size].reshape(blocks, size)
            target = volume[..., first : first + blocks * groups * self.group]
            fits = self._put(part, target, groups) and fits
            at += blocks * size
        if not fits or volume[:, :, self.inputs :].any() or volume[..., outputs:].any():
            raise Malformed("the padding of a weight stream is not zero", offset=offset)
        return volume[:, :, : self.inputs, :outputs]

    def _output_runs(self, outputs: int, block: int) -> list[tuple[int, int, int]]:
        """Return first channel, block count and groups per block for each run of equal blocks of output channels."""
        whole, rest = divmod(outputs, block)
        groups, last = -(-block // self.group), -(-rest // self.group)
        # Blocks overlap if their size is not a multiple of a group.
        step = whole if block % self.group == 0 else 1
        runs = [(first * block, step, groups) for first in range(0, whole, max(step, 1))]
        return [*runs, (whole * block, 1, last)] if last else runs

    def _input_runs(self) -> list[tuple[int, int, int]]:
        """Return the same runs for input channels; depth first always fills its blocks."""
        if self.depthwise:
            return [(0, 1, 1)]
        size = find_input_block(self.part_kernel, 16 if self.wide else 8)
        if not self.part_kernel:
            return [(0, -(-self.inputs // size), size // INPUT_GROUP)]
        whole, rest = divmod(self.inputs, size)
        runs = ((0, whole, size // INPUT_GROUP), (whole * size, 1, -(-rest // INPUT_GROUP)))
        return [(first, blocks, groups) for first, blocks, groups in runs if blocks * groups]

    @property
    def _deep(self) -> int:
        """Input channels in a group."""
        return 1 if self.depthwise else INPUT_GROUP

    def _pad(self, elements: int) -> int:
        """Round the number of kernel elements up to whole rounds."""
        step = 4 if self.depthwise else (2 if self.wide else 4) if self.part_kernel else 1
        return -(-elements // step) * step

    def _kernel_parts(self) -> Iterator[tuple[int, int, int, int]]:
        for y in range(0, self.taps_y, self.part_y):
            for x in range(0, self.taps_x, self.part_x):
                yield y, x, min(self.part_y, self.taps_y - y), min(self.part_x, self.taps_x - x)

    def _put(self, stream: npt.NDArray[np.int16], volume: npt.NDArray[np.float32], groups: int) -> bool:
        """Put some blocks of output channels, one per row, into the volume; return False if the padding is not zero.

        Each block holds blocks of input channels, and each of these the parts of the kernel.
        """
        fits, at, deep, group, outs = True, 0, self._deep, self.group, len(stream)
        for first, blocks, in_groups in self._input_runs():
            parts = [(y, x, rows, columns, self._pad(rows * columns)) for y, x, rows, columns in self._kernel_parts()]
            each = in_groups * groups * group * deep
            size = each * sum(padded for *_, padded in parts)
            run = stream[:, at : at + blocks * size].reshape(outs, blocks, size)
            at, begin = at + blocks * size, 0
            # Input groups are outside or inside the kernel loop.
            outer, inner = (in_groups, 1) if self.part_kernel else (1, in_groups)
            for y, x, rows, columns, padded in parts:
                part = run[..., begin : begin + each * padded]
                part = part.reshape(outs, blocks, outer, groups, padded, inner, group, deep)
                begin += each * padded
                fits = fits and not part[:, :, :, :, rows * columns :].any()
                kernel = part[:, :, :, :, : rows * columns]
                kernel = kernel.reshape(outs, blocks, outer, groups, rows, columns, inner, group, deep)
                target = volume[y : y + rows, x : x + columns, first : first + blocks * in_groups * deep]
                target = target.reshape(rows, columns, blocks, outer, inner, deep, outs, groups, group)
                target[...] = kernel.transpose(4, 5, 1, 2, 6, 8, 0, 3, 7)
        return fits
