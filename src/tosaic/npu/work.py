"""How much an operation costs to simulate, from its registers alone: checked before anything is allocated."""

from __future__ import annotations

from tosaic.npu.errors import TooMuch
from tosaic.npu.record import Kind, Op, read_ofm_shape, read_window

#: An operation of its own, whatever its size.
_FIXED = 100_000
#: Nanoseconds per output element.
_ELEMENT = 40
#: An operation whose output has more elements than this cannot be one that fits an NPU's memory.
_MAX_ELEMENTS = 1 << 26


def estimate_work(op: Op) -> int:
    """About the nanoseconds that the simulation of an operation takes."""
    if op.kind is Kind.DMA:
        return _FIXED + op.get("DMA0_LEN")
    if not op.kind.is_kernel:
        return 0
    shape = read_ofm_shape(op)
    if shape.size > _MAX_ELEMENTS:
        raise TooMuch(f"an output of {shape.size} elements", offset=op.offset)
    cost = _FIXED + _ELEMENT * shape.size
    if op.kind in (Kind.CONV, Kind.DEPTHWISE, Kind.POOL) and not (op.kind is Kind.POOL and op.mode == "NONE"):
        window = read_window(op)
        taps = window.taps_y * window.taps_x
        depth = op.get("IFM_DEPTH_M1") + 1
        if op.kind is Kind.CONV:
            cost += shape.size * taps * depth // 8 + shape.height * shape.width * taps * depth * 2
        else:
            cost += 4 * shape.size * taps + 4 * shape.height * shape.width * depth
    return cost
