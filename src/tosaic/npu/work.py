"""Estimates the cost of simulating an operation from its registers alone, before anything is allocated."""

from __future__ import annotations

from tosaic.npu.operation import Kind, Op, read_ofm_shape, read_window
from tosaic.npu.output import PIECE

#: Nanoseconds per operation, regardless of its size.
_FIXED = 100_000
#: Nanoseconds per output element.
_ELEMENT = 40
#: Nanoseconds per kernel element and piece of the output.
_STEP = 10_000


def estimate_work(op: Op) -> int:
    """Estimate the nanoseconds that the simulation of an operation takes."""
    if op.kind is Kind.DMA:
        return _FIXED + op.get("DMA0_LEN")
    if not op.kind.is_kernel:
        return 0
    shape = read_ofm_shape(op)
    cost = _FIXED + _ELEMENT * shape.size
    if op.kind in (Kind.CONV, Kind.DEPTHWISE, Kind.POOL) and not (op.kind is Kind.POOL and op.mode == "NONE"):
        window = read_window(op)
        taps = window.taps_y * window.taps_x
        depth = op.get("IFM_DEPTH_M1") + 1
        pixels = shape.height * shape.width
        cost += taps * (_STEP + _STEP * shape.size // PIECE)
        if op.kind is Kind.CONV:
            cost += shape.size * taps * depth // 8 + 2 * pixels * taps * depth
        else:
            cost += 4 * shape.size * taps + 4 * pixels * depth
    return cost
