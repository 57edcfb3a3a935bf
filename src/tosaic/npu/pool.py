"""Pools: maxima, averages, sums and index searches over windows, and sums over channels."""

from __future__ import annotations

import numpy as np

from tosaic.npu.accumulator import count_bits, finish
from tosaic.npu.errors import UnknownField
from tosaic.npu.memory import Memory, Numbers
from tosaic.npu.operation import Op, Shape, read_map, read_ofm_shape, read_window
from tosaic.npu.output import Output, read_output, read_rounding
from tosaic.npu.weights import load_scales
from tosaic.npu.window import Input

#: A search keeps the position that it has found above this many bits.
_RAISED = 16


def run_pool(op: Op, memory: Memory) -> None:
    """Execute POOL."""
    count_bits(op)
    ofm = read_ofm_shape(op)
    per_channel = op.name("OFM_PRECISION", "scale_mode") == "PER_CHANNEL"
    output = read_output(op, memory, load_scales(op, memory, ofm.depth) if per_channel else None)
    if op.mode == "NONE":
        _copy_accumulator(op, memory, output)
        return
    window, source = read_window(op), read_map(op, "IFM")
    depth = op.get("IFM_DEPTH_M1") + 1
    sums_channels = op.mode == "REDUCE_SUM"
    if depth != ofm.depth and not (sums_channels and ofm.depth == 1):
        raise UnknownField("IFM_DEPTH_M1", depth - 1, offset=op.offset, why=f"the output has depth {ofm.depth}")
    for field, size in (("KERNEL_HEIGHT_M1", window.height), ("KERNEL_WIDTH_M1", window.width)):
        if sums_channels and size != 1:
            raise op.unknown(field, why="a sum over channels has no window")
    given = Input.of(op, source, window, ofm, depth)
    numbers = np.iinfo(np.int64)
    fill = {"MAX": numbers.min, "MIN": numbers.max}.get(op.mode, 0)
    for first, rows in output.pieces():
        padded = given.load(memory, first, rows, fill, "i8")
        values = _reduce(op, given, padded, rows, ofm)
        if op.mode == "AVERAGE" and _divides(op, given):
            values = _divide(values, _count_valid(given, first, rows, ofm))
        finish(output, memory, values, first)


def _copy_accumulator(op: Op, memory: Memory, output: Output) -> None:
    """Write the accumulator's initial value as the result: mode NONE computes nothing."""
    if op.name("ACC_FORMAT", "acc_input") != "IFM2":
        raise op.unknown("ACC_FORMAT", "acc_input", "of a pool that computes nothing")
    for first, rows in output.pieces():
        empty = np.zeros((rows, output.shape.width, output.shape.depth), np.int64)
        finish(output, memory, empty, first)


def _reduce(op: Op, given: Input, padded: Numbers, rows: int, ofm: Shape) -> Numbers:
    taps = (inputs for _, _, inputs in given.taps(padded, rows, ofm.width))
    first = next(taps)
    match op.mode:
        case "MAX" | "MIN":
            result = first.copy()
            better = np.maximum if op.mode == "MAX" else np.minimum
            for inputs in taps:
                better(result, inputs, out=result)
            return result
        case "AVERAGE" | "SUM":
            result = first.copy()
            for inputs in taps:
                result += inputs
            return result
        case "REDUCE_SUM":
            return first.sum(axis=2, keepdims=True)
        case "ARGMAX_X" | "ARGMAX_Y":
            return _search(op, given, padded, rows, ofm)
        case _:
            raise UnknownField("pooling_mode", op.mode, offset=op.offset)


def _search(op: Op, given: Input, padded: Numbers, rows: int, ofm: Shape) -> Numbers:
    """Find the first position of the maximum in each window, kept above the value, which the scale drops."""
    window = given.window
    if (window.taps_y if op.mode == "ARGMAX_X" else window.taps_x) != 1:
        raise op.unknown("KERNEL_HEIGHT_M1", why="a search for a maximum goes along one axis")
    if window.top or window.bottom or window.left or window.right:
        raise op.unknown("IFM_PAD_TOP", why="of a search for a maximum")
    if (op.get("OFM_SCALE", "scale"), op.get("OFM_SCALE", "shift"), read_rounding(op)) != (1, _RAISED, "floor"):
        raise op.unknown("OFM_SCALE", "scale", "of a search for a maximum")
    windows = np.stack([inputs for _, _, inputs in given.taps(padded, rows, ofm.width)])
    return windows.argmax(axis=0) << _RAISED


def _divides(op: Op, given: Input) -> bool:
    """Tell whether to divide by the element count: U55 does so only if there is padding, else its scale divides."""
    window = given.window
    return op.family.has_u85_units or any((window.top, window.bottom, window.left, window.right))


def _count_valid(given: Input, first: int, rows: int, ofm: Shape) -> Numbers:
    """Count the input elements in each window, as [rows, columns, 1]."""
    window = given.window

    def count(start: int, outputs: int, stride: int, taps: int, dilation: int, before: int, size: int) -> Numbers:
        begin = (start + np.arange(outputs)) * stride - before
        places = begin[:, None] + np.arange(taps) * dilation
        return ((places >= 0) & (places < size)).sum(axis=1)

    vertical = count(first, rows, window.stride_y, window.taps_y, window.dilation_y, window.top, given.height)
    across = count(0, ofm.width, window.stride_x, window.taps_x, window.dilation_x, window.left, given.width)
    return (vertical[:, None] * across[None, :])[..., None]


def _divide(sums: Numbers, counts: Numbers) -> Numbers:
    """Divide with rounding by a 31-bit reciprocal."""
    safe = np.maximum(counts, 1).astype(np.int64)
    bits = np.array([int(count - 1).bit_length() for count in safe.reshape(-1)], np.int64).reshape(safe.shape)
    reciprocal = (((1 << 30) + 1) << bits) // safe
    return (sums * reciprocal + (1 << (29 + bits))) >> (30 + bits)
