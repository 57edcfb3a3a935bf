"""Cycles of one kernel operation in the MACs and in the output stage, and the blocks it is split into."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tosaic.npu.accelerator import INPUT_GROUP, KERNEL_PART, find_input_block
from tosaic.npu.lut import find_function
from tosaic.npu.operation import Kind, Op, Shape, Storage, Window, input_extent, read_map, read_ofm_shape, read_window

#: Cycles per output element of a division on U85.
_DIVISION = 33.0


@dataclass(frozen=True, slots=True)
class Work:
    """Size of an operation, in elements and blocks; `ifm` is the part of the input that its output needs.

    Blocks are clipped to the feature maps; `block_size` counts the elements of an unclipped block of output.
    """

    op: Op
    ofm: Shape
    ifm: Shape
    window: Window | None
    ofm_block: Shape
    ifm_block: Shape
    microblock: Shape
    ifm_bits: int
    ofm_bits: int
    block_size: int

    @property
    def blocks(self) -> float:
        """Output blocks, counted by microblocks: a block at the edge is smaller."""
        inside = _count(self.ofm_block, self.microblock)
        return _count(self.ofm, self.microblock) / inside

    @property
    def taps(self) -> int:
        return 1 if self.window is None else self.window.taps_y * self.window.taps_x

    @property
    def sums_inputs(self) -> bool:
        """Whether every output element needs all input channels."""
        return self.op.kind is Kind.CONV or (self.op.kind is Kind.POOL and self.op.mode == "REDUCE_SUM")

    @property
    def macs(self) -> int:
        if self.op.kind not in (Kind.CONV, Kind.DEPTHWISE):
            return 0
        return self.ofm.size * self.taps * (self.ifm.depth if self.sums_inputs else 1)


def _count(shape: Shape, part: Shape) -> int:
    return math.prod(-(-size // step) for size, step in zip(shape, part, strict=True))


def _smaller(one: Shape, other: Shape) -> Shape:
    return Shape(*(min(pair) for pair in zip(one, other, strict=True)))


def read_work(op: Op) -> Work:
    """Return the size of a kernel operation."""
    ofm = read_ofm_shape(op)
    uncut = Shape(*(op.get(f"OFM_BLK_{axis}_M1") + 1 for axis in ("HEIGHT", "WIDTH", "DEPTH")))
    block = _smaller(ofm, uncut)
    ofm_bits = 8 << op.get("OFM_PRECISION", "activation_precision")
    ifm_bits = 8 << op.get("IFM_PRECISION", "activation_precision")
    if op.kind in (Kind.ELEMENTWISE, Kind.RESIZE) or (op.kind is Kind.POOL and op.mode == "NONE"):
        ifm = _read_plain_input(op, ofm)
        cut, micro = _smaller(ifm, block), _find_microblock(op, ofm)
        return Work(op, ofm, ifm, None, block, cut, micro, ifm_bits, ofm_bits, uncut.size)
    window, depth = read_window(op), op.get("IFM_DEPTH_M1") + 1
    height, width = input_extent(op, window, ofm)
    ifm = Shape(height, width, depth)
    sums = op.kind is Kind.CONV or op.mode == "REDUCE_SUM" if op.kind is not Kind.DEPTHWISE else False
    rows = (block.height - 1) * window.stride_y + min(window.height, KERNEL_PART)
    columns = (block.width - 1) * window.stride_x + min(window.width, KERNEL_PART)
    deep = _find_input_depth(op, ifm_bits) if sums else block.depth
    ifm_block = _smaller(ifm, Shape(rows, columns, deep))
    micro = _find_microblock(op, ofm)
    return Work(op, ofm, ifm, window, block, ifm_block, micro, ifm_bits, ofm_bits, uncut.size)


def _read_plain_input(op: Op, ofm: Shape) -> Shape:
    if op.kind is Kind.RESIZE:
        return Shape(op.get("KERNEL_HEIGHT_M1") + 1, op.get("KERNEL_WIDTH_M1") + 1, ofm.depth)
    return ofm


def _find_microblock(op: Op, ofm: Shape) -> Shape:
    if op.accelerator.microblock is None:
        return Shape(*op.accelerator.find_microblock(op.name("ACC_FORMAT", "microblock")))
    block = Shape(*op.accelerator.microblock)
    # A single row of output uses both rows of MACs for columns.
    flat = block.height == 2 and op.kind is Kind.CONV and ofm.height == 1 and ofm.width % 2 == 0
    return Shape(1, 4, block.depth) if flat and op.get("KERNEL_HEIGHT_M1") == 0 else block


def _find_input_depth(op: Op, bits: int) -> int:
    if op.family.has_u85_units:
        return 16 if op.is_part_kernel_first else 32 if bits == 32 else 64
    return find_input_block(op.is_part_kernel_first, bits)


def count_mac_cycles(work: Work) -> float:
    """Count the cycles that the MACs need for one block of output."""
    window = work.window
    if window is None:
        return 0.0
    groups = Shape(*(-(-size // step) for size, step in zip(work.ofm_block, work.microblock, strict=True)))
    total = 0.0
    for rows, down in _cut_kernel(window.taps_y):
        for columns, across in _cut_kernel(window.taps_x):
            total += down * across * _count_part(work, groups, rows * columns)
    if work.sums_inputs:
        total *= -(-work.ifm.depth // work.ifm_block.depth)
    return total / work.op.accelerator.parallel_microblocks


def _cut_kernel(taps: int) -> list[tuple[int, int]]:
    """Return the sizes of the parts that a kernel is split into along an axis, each with how often it occurs."""
    whole, rest = divmod(taps, KERNEL_PART)
    return [(size, often) for size, often in ((KERNEL_PART, whole), (rest, 1)) if size and often]


def _count_part(work: Work, groups: Shape, elements: int) -> float:
    """Count the cycles for one part of the kernel, including stalls between dependent sums."""
    op, bits = work.op, work.ifm_bits
    pixels = groups.height * groups.width
    u85 = op.family.has_u85_units
    decode = 4 * work.microblock.depth // op.accelerator.cores_per_microblock
    input_groups = -(-work.ifm_block.depth // INPUT_GROUP)
    steps, repeats = elements, 1
    if op.kind is Kind.POOL and not work.sums_inputs:
        steps = 1
        cycles = max(4, elements) * pixels * groups.depth * (bits // 2 if u85 or op.macs != 32 else 1)
    elif op.kind is Kind.DEPTHWISE:
        steps = -(-elements // 4)
        cycles = max(decode, 4 * pixels * (bits // 8)) * steps * groups.depth
    elif op.is_part_kernel_first:
        steps, repeats = -(-elements // (2 if bits == 16 else 4)), input_groups
        cycles = max(decode, 4 * pixels) * steps * groups.depth * repeats / _sparsity(op)
    else:
        busy = max(1, work.ifm_block.depth // INPUT_GROUP) * pixels if u85 else 4 * pixels
        cycles = max(decode, busy) * steps * groups.depth * (bits // 8 if u85 else 1) / _sparsity(op)
    return cycles + _count_delay(work, groups, steps) * repeats


def _sparsity(op: Op) -> int:
    sparse = op.family.has_u85_units and op.kind is Kind.CONV
    return 2 if sparse and op.name("WEIGHT_FORMAT", "weight_sparsity") != "NONE" else 1


def _count_delay(work: Work, groups: Shape, steps: int) -> int:
    op = work.op
    wide = op.name("ACC_FORMAT", "acc_format") != "I32"
    delay = op.accelerator.accumulation_wait[wide]
    total = 0
    if groups.height * groups.width == 1:
        total = delay * steps if groups.depth == 1 else delay * (steps - 1) * groups.depth
    if op.macs == 32 and wide and groups.depth > 1 and 1 in (groups.width, groups.height):
        total += delay * groups.depth
    return total


def count_output_cycles(work: Work) -> float:
    """Count the cycles of the output stage per element."""
    op = work.op
    return _output_u85(work) if op.family.has_u85_units else _output_u55(work)


def _output_u55(work: Work) -> float:
    op, table = work.op, work.op.accelerator.output_cycles
    elementwise = op.kind is Kind.ELEMENTWISE
    if elementwise and work.ifm_bits == 32:
        index = 0 if op.mode in ("ABS", "CLZ", "LRELU") else 1
    elif elementwise and op.mode == "MUL":
        index = 2 if work.ofm_bits == 32 else 3
    elif not elementwise and op.name("ACC_FORMAT", "acc_format") == "I40":
        index = 3
    elif elementwise and op.mode in ("ADD", "SUB"):
        index = 4 if op.name("IFM_PRECISION", "scale_mode") == "OPA_OPB_16" else 5
    else:
        index = 6 if op.kind is Kind.POOL and op.mode == "MAX" else 7
    return max(table[index], 1.0 / op.accelerator.cores) if find_function(op) else table[index]


def _output_u85(work: Work) -> float:
    op, table = work.op, work.op.accelerator.output_cycles
    binary = op.kind is Kind.ELEMENTWISE and op.mode not in ("ABS", "CLZ", "NOT", "LRELU")
    if op.kind is Kind.ELEMENTWISE and op.mode == "DIV":
        return _DIVISION
    if op.kind is Kind.RESIZE:
        return table[0] * (1 if work.ifm_bits == 8 else 2)
    chained = read_map(op, "OFM").storage is Storage.CHAINED and 32 in (work.ofm_bits, work.ifm_bits)
    if chained or (binary and work.ifm_bits == 32):
        cycles = table[4] if work.ofm_bits == 32 and not chained else table[3]
    else:
        cycles = table[{8: 0, 16: 1, 32: 2}[work.ofm_bits]]
    # Swapping rows and columns, or reversing columns, is not possible at full speed.
    slow = op.name("OFM_PRECISION", "activation_transpose") in ("WHC", "WCH", "CWH")
    slow = slow or op.name("OFM_PRECISION", "activation_reverse") == "W"
    return max(cycles, 2 * table[0]) if slow else cycles
