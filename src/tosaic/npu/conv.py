"""Convolutions, depthwise convolutions and, on U85, matrix products."""

from __future__ import annotations

import numpy as np

from tosaic.npu.accumulator import count_bits, finish
from tosaic.npu.errors import Fault, TooMuch, UnknownField
from tosaic.npu.memory import Memory, Numbers
from tosaic.npu.operation import FeatureMap, Kind, Op, Shape, Window, read_map, read_ofm_shape, read_window
from tosaic.npu.output import Output, read_output
from tosaic.npu.weights import WeightCache, Weights, load_scales, load_weights
from tosaic.npu.window import Input

#: Sums below this are exact in float32, where matrix products are fastest; in float64 all sums are exact.
_EXACT_SINGLE = 1 << 24
#: Elements of the matrix that a piece of the input is unfolded into: the usual number and the maximum.
_UNFOLDED, _MAX_UNFOLDED = 1 << 21, 1 << 24


def run_conv(op: Op, memory: Memory, cache: WeightCache) -> None:
    """Execute CONV or DEPTHWISE."""
    window, ofm = read_window(op), read_ofm_shape(op)
    source = read_map(op, "IFM")
    if source.bits == 32:
        raise op.unknown("IFM_PRECISION", "activation_precision", "of a convolution")
    depth = op.get("IFM_DEPTH_M1") + 1
    if op.kind is Kind.DEPTHWISE:
        if depth != ofm.depth:
            raise UnknownField("IFM_DEPTH_M1", depth - 1, offset=op.offset, why=f"the output has depth {ofm.depth}")
        weights, scales = load_weights(op, memory, cache, window, 1, ofm), load_scales(op, memory, ofm.depth)
    elif op.family.has_u85_units and op.argument("weights_ifm2"):
        weights, scales = _load_matrix(op, memory, window, depth, ofm), None
    else:
        weights, scales = load_weights(op, memory, cache, window, depth, ofm), load_scales(op, memory, ofm.depth)
    output = read_output(op, memory, scales)
    given = Input.of(op, source, window, ofm, depth)
    reach = _bound_inputs(source) * weights.reach
    dtype = "f4" if reach < _EXACT_SINGLE else "f8"
    compute = _sum_channels if op.kind is Kind.DEPTHWISE else _multiply
    for first, rows in output.pieces():
        padded = given.load(memory, first, rows, 0, dtype)
        values = compute(given, padded, weights.values.astype(dtype, copy=False), rows, ofm)
        _check_sums(output, values)
        finish(output, memory, values, first)


def _bound_inputs(source: FeatureMap) -> int:
    """Return the largest distance of an input from its zero point."""
    numbers = np.iinfo(source.dtype)
    return max(numbers.max - source.zero_point, source.zero_point - numbers.min)


def _load_matrix(op: Op, memory: Memory, window: Window, depth: int, ofm: Shape) -> Weights:
    """Load the second input as the weights of a 1x1 convolution: one row per output channel."""
    if window.height != 1 or window.width != 1:
        raise op.unknown("KERNEL_HEIGHT_M1", why="a matrix product has no kernel")
    source = read_map(op, "IFM2")
    rows = memory.load(source, Shape(1, ofm.depth, depth))[0].astype(np.float64)
    rows -= source.zero_point
    reach = int(np.abs(rows).sum(axis=1).max())
    return Weights(rows.T[None, None].astype(np.float32), reach)


def _multiply(given: Input, padded: Numbers, weights: Numbers, rows: int, ofm: Shape) -> Numbers:
    """Unfold the input, some rows at a time, and multiply it by the weights as one matrix."""
    taps_y, taps_x, depth, outputs = weights.shape
    matrix = weights.reshape(-1, outputs)
    result = np.empty((rows, ofm.width, outputs), padded.dtype)
    step = max(1, _UNFOLDED // (ofm.width * len(matrix)))
    if step * ofm.width * len(matrix) > _MAX_UNFOLDED:
        raise TooMuch("a row of a convolution is too large to be unfolded", offset=given.source.offset)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        taps = given.taps(padded[first * given.window.stride_y :], count, ofm.width)
        if taps_y == taps_x == 1:
            ((_, _, inputs),) = taps
            unfolded = inputs.reshape(count * ofm.width, depth)
        else:
            windows = np.empty((count, ofm.width, taps_y, taps_x, depth), padded.dtype)
            for ky, kx, inputs in taps:
                windows[:, :, ky, kx] = inputs
            unfolded = windows.reshape(count * ofm.width, len(matrix))
        np.matmul(unfolded, matrix, out=result[first : first + count].reshape(len(unfolded), outputs))
    return result


def _sum_channels(given: Input, padded: Numbers, weights: Numbers, rows: int, ofm: Shape) -> Numbers:
    """Convolve every channel with its own kernel."""
    total = np.zeros((rows, ofm.width, ofm.depth), padded.dtype)
    product = np.empty_like(total)
    for ky, kx, inputs in given.taps(padded, rows, ofm.width):
        np.multiply(inputs, weights[ky, kx], out=product)
        total += product
    return total


def _check_sums(output: Output, values: Numbers) -> None:
    """Check that no accumulator overflows: what the hardware does then is not known."""
    bits = count_bits(output.op)
    ends = np.stack([values.min(axis=(0, 1)), values.max(axis=(0, 1))])
    high = (ends.astype(np.int64) + output.scale.bias) >> (bits - 1)
    if high.min() < -1 or high.max() > 0:
        raise Fault("an accumulator overflows", offset=output.op.offset, why=f"it has {bits} bits")
