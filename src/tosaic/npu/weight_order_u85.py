"""The order of weights in a U85 stream, and its fast (uncompressed) form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tosaic.npu.accelerator import KERNEL_PART
from tosaic.npu.errors import Malformed, UnknownField
from tosaic.npu.operation import Kind, Op, Shape, Window
from tosaic.npu.weight_order import Place, make_volume

#: Consecutive output channels that one core processes.
_INTERLEAVE = 4
_HEADER_BYTES = 32


@dataclass(frozen=True, slots=True)
class OrderU85:
    """Blocks of output channels, in each blocks of input channels (forwards, then backwards), then kernel parts.

    Inside a part: input group, output group, kernel elements by phase of the stride (rows in a snake), input channels
    by 8 or 16, then output channels by four, distributed over the cores.
    """

    outputs: int
    inputs: int
    taps_y: int
    taps_x: int
    part_y: int
    part_x: int
    stride_y: int
    stride_x: int
    depthwise: bool
    block: int
    group: int
    input_block: int
    input_group: int
    rounding: int
    padding: int
    step: int
    cores: int
    fast: bool

    @staticmethod
    def of(op: Op, window: Window, depth: int, ofm: Shape) -> OrderU85:
        depthwise = op.kind is Kind.DEPTHWISE
        part_kernel = op.is_part_kernel_first
        wide = op.name("IFM_PRECISION", "activation_precision") == "B16"
        sparse = op.name("WEIGHT_FORMAT", "weight_sparsity") != "NONE"
        accelerator = op.accelerator
        *_, group = accelerator.find_microblock(op.name("ACC_FORMAT", "microblock"))
        if group % (_INTERLEAVE * accelerator.cores):
            why = f"it leaves {group} output channels for {accelerator.cores} cores"
            raise op.unknown("ACC_FORMAT", "microblock", why)
        if depthwise and sparse:
            raise UnknownField("WEIGHT_FORMAT.weight_sparsity", 1, offset=op.offset, why="of a depthwise convolution")
        input_block = _find_input_block(op.macs, group, part_kernel, sparse, wide)
        input_group = 1 if depthwise else 8 if part_kernel and wide and not sparse else input_block
        return OrderU85(
            outputs=ofm.depth,
            inputs=depth,
            taps_y=window.taps_y,
            taps_x=window.taps_x,
            part_y=KERNEL_PART // window.dilation_y,
            part_x=KERNEL_PART // window.dilation_x,
            # Only part kernel first and depthwise traverse the kernel in the phases of its stride.
            stride_y=window.stride_y if part_kernel or depthwise else 1,
            stride_x=window.stride_x if part_kernel or depthwise else 1,
            depthwise=depthwise,
            block=op.get("OFM_BLK_DEPTH_M1") + 1,
            group=group,
            input_block=input_block,
            input_group=input_group,
            rounding=10 if depthwise else 1 if not part_kernel else 10 if wide or sparse else 5,
            padding=accelerator.depthwise_padding[wide] if depthwise else 0,
            step=1 if depthwise else 16 if sparse else 8,
            cores=accelerator.cores,
            fast=op.name("WEIGHT_FORMAT", "weight_format") == "FWD",
        )

    @property
    def count(self) -> int:
        return self.outputs * self.inputs * self.taps_y * self.taps_x

    @property
    def streams(self) -> int:
        return 1 if self.fast else self.cores

    def expand(self, stream: bytes, offset: int) -> npt.NDArray[np.int16]:
        """Decode a fast stream: a header with a table, then indices into it or plain bytes."""
        if len(stream) < _HEADER_BYTES:
            raise Malformed("a weight stream is damaged", offset=offset, why="it is shorter than its header")
        header = int.from_bytes(stream[:_HEADER_BYTES], "little")
        body = np.frombuffer(stream, np.uint8, offset=_HEADER_BYTES)
        if header & 1:
            adjust = (header >> 104 & 0xFF ^ 0x80) - 0x80
            return body.view(np.int8).astype(np.int16) - np.int16(adjust)
        codes = [header >> (112 + 9 * entry) & 0x1FF for entry in range(16)]
        table = np.array([-(code >> 1) if code & 1 else code >> 1 for code in codes], np.int16)
        shifts, mask = ((0, 2, 4, 6), 3) if header & 2 else ((0, 4), 15)
        return table[(body[:, None] >> np.array(shifts, np.uint8) & mask).ravel()]

    def arrange(self, numbers: Sequence[npt.NDArray[np.int16]], offset: int) -> npt.NDArray[np.float32]:
        """Arrange the numbers of the streams as [kernel rows, kernel columns, inputs, outputs]."""
        total = self._count_share()
        cores = self._deal_out(numbers[0], total, offset) if self.fast else list(numbers)
        places = list(self._places())
        volume = make_volume((self.taps_y, self.taps_x), places, self.input_group, self.group)
        for core, stream in enumerate(cores):
            if len(stream) != total:
                raise Malformed(
                    "a weight stream does not fit its convolution",
                    offset=offset,
                    why=f"it has {len(stream)} weights where {total} are needed",
                )
            at = 0
            for place in places:
                end = at + self._size(place)
                if not self._put(place, stream[at:end], volume, core):
                    raise Malformed("the padding of a weight stream is not zero", offset=offset)
                at = end
        if volume[:, :, self.inputs :].any() or volume[..., self.outputs :].any():
            raise Malformed("the padding of a weight stream is not zero", offset=offset)
        return np.ascontiguousarray(volume[:, :, : self.inputs, : self.outputs])

    def _count_share(self) -> int:
        """Count the weights of each core, including padding."""
        whole, rest = divmod(self.outputs, self.block)
        groups = whole * -(-self.block // self.group) + -(-rest // self.group)
        in_groups = sum(-(-used // self.input_group) for _, used in self._input_blocks())
        elements = sum(self._pad(rows * columns) for _, _, rows, columns in self._kernel_parts())
        return groups * in_groups * elements * self.input_group * self.group // self.cores

    def _pad(self, elements: int) -> int:
        """Round the number of kernel elements up to whole rounds; a depthwise stream has more in every round."""
        return -(-elements // self.rounding) * (self.rounding + self.padding)

    def _deal_out(self, numbers: npt.NDArray[np.int16], total: int, offset: int) -> list[npt.NDArray[np.int16]]:
        """Split a fast stream into the shares of the cores, which alternate; its end is padded to 16 bytes."""
        if len(numbers) < total * self.cores:
            raise Malformed("a weight stream is too short", offset=offset, why=f"it has {len(numbers)} weights")
        share = self.group * self.input_group * self.rounding // self.cores
        dealt = numbers[: total * self.cores].reshape(total // share, self.cores, share)
        return [dealt[:, core].ravel() for core in range(self.cores)]

    def _places(self) -> Iterator[Place]:
        """Yield the parts of the stream in order; each core has a share of every one."""
        blocks, parts = list(self._input_blocks()), list(self._kernel_parts())
        for index, first_out in enumerate(range(0, self.outputs, self.block)):
            groups = -(-min(self.block, self.outputs - first_out) // self.group)
            for first_in, used in blocks if index % 2 == 0 else reversed(blocks):
                for y, x, rows, columns in parts:
                    yield Place(first_out, groups, first_in, -(-used // self.input_group), y, x, rows, columns)

    def _input_blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the first channel and number of channels of each block of inputs."""
        if self.depthwise:
            yield 0, 1
            return
        for first in range(0, self.inputs, self.input_block):
            yield first, min(self.input_block, self.inputs - first)

    def _kernel_parts(self) -> Iterator[tuple[int, int, int, int]]:
        for x in range(0, self.taps_x, self.part_x):
            for y in range(0, self.taps_y, self.part_y):
                yield y, x, min(self.part_y, self.taps_y - y), min(self.part_x, self.taps_x - x)

    def _walk(self, rows: int, columns: int) -> tuple[list[int], list[int]]:
        """Return the kernel elements of a part: phases of the stride, in each its rows, every other one backwards."""
        ys: list[int] = []
        xs: list[int] = []
        for phase_y in range(self.stride_y):
            for phase_x in range(self.stride_x):
                line = list(range(phase_x, columns, self.stride_x))
                for row, y in enumerate(range(phase_y, rows, self.stride_y)):
                    xs += line if row % 2 == 0 else line[::-1]
                    ys += [y] * len(line)
        return ys, xs

    def _size(self, place: Place) -> int:
        """Return the number of weights of a part in one core's share."""
        per_element = self.input_group * self.group // self.cores
        return place.in_groups * place.groups * self._pad(place.rows * place.columns) * per_element

    def _put(self, place: Place, share: npt.NDArray[np.int16], volume: npt.NDArray[np.float32], core: int) -> bool:
        """Put a core's share of a part into the volume; return False if its padding is not zero."""
        lanes, steps = self.group // _INTERLEAVE // self.cores, self.input_group // self.step
        slots, count = self.rounding + self.padding, place.rows * place.columns
        in_groups, groups = place.in_groups, place.groups
        rounds = -(-count // self.rounding)
        part = share.reshape(in_groups, groups, rounds, slots, steps, lanes, _INTERLEAVE, self.step)
        if part[:, :, :, self.rounding :].any():
            return False
        part = part[:, :, :, : self.rounding].reshape(in_groups, groups, rounds * self.rounding, *part.shape[4:])
        ys, xs = self._walk(place.rows, place.columns)
        channels = (in_groups, steps, self.step, groups, lanes, self.cores, _INTERLEAVE)
        target = place.cut(volume, self.input_group, self.group).reshape(place.rows, place.columns, *channels)
        target[ys, xs, :, :, :, :, :, core] = part[:, :, :count].transpose(2, 0, 3, 6, 1, 4, 5)
        return not part[:, :, count:].any()


def _find_input_block(macs: int, group: int, part_kernel: bool, sparse: bool, wide: bool) -> int:
    if part_kernel:
        return 16
    if sparse:
        return 64 if wide else 128
    return 32 if macs <= 256 and group == 16 else 64
