"""Accumulators: their width, their initial value, and the destination of their sums."""

from __future__ import annotations

import numpy as np

from tosaic.npu.errors import Fault
from tosaic.npu.memory import Memory, Numbers
from tosaic.npu.operation import Op, Shape, read_map
from tosaic.npu.output import Output

#: Bits of each accumulator format.
_FORMATS = {"I32": 32, "I40": 40, "I48": 48}


def count_bits(op: Op) -> int:
    """Return the accumulator's width in bits."""
    name = op.name("ACC_FORMAT", "acc_format")
    if name not in _FORMATS:
        raise op.unknown("ACC_FORMAT", "acc_format", "float accumulators are not supported")
    return _FORMATS[name]


def finish(output: Output, memory: Memory, sums: Numbers, first_row: int) -> None:
    """Add the accumulators' previous contents, then pass the sums to the output stage or keep them."""
    op = output.op
    if op.family.has_u85_units:
        sums = _add_before(op, memory, sums, first_row)
        if op.name("ACC_FORMAT", "acc_output") == "DISABLE":
            _keep(output, memory, sums)
            return
    output.finish(memory, sums, first_row)


def _add_before(op: Op, memory: Memory, sums: Numbers, first_row: int) -> Numbers:
    rows, columns, depth = sums.shape
    match op.name("ACC_FORMAT", "acc_input"):
        case "IFM2":
            source = read_map(op, "IFM2")
            before = memory.load(source, Shape(rows, columns, depth), first_row).astype(np.int64) - source.zero_point
        case "KEEP":
            before = memory.sums
            if before is None or before.shape != sums.shape:
                raise Fault("the accumulators contain no sums of this shape", offset=op.offset)
        case _:
            return sums
    return sums.astype(np.int64) + before


def _keep(output: Output, memory: Memory, sums: Numbers) -> None:
    """Keep the sums in the accumulators, which only works if the whole output is one block."""
    op = output.op
    block = [op.get(f"OFM_BLK_{axis}_M1") + 1 for axis in ("HEIGHT", "WIDTH", "DEPTH")]
    if sums.shape != tuple(output.shape) or np.greater(sums.shape, block).any():
        raise op.unknown("ACC_FORMAT", "acc_output", "the output does not fit the accumulators")
    memory.sums = sums.astype(np.int64)
