"""A simulator of Ethos-U55, U65 and U85: runs the command streams that Vela makes, bit for bit as TOSA defines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.npu.errors import (
    Fault,
    Hazard,
    Malformed,
    OutOfRange,
    TooMuch,
    Uninitialized,
    UnknownField,
)
from tosaic.npu.hazard import Hazards
from tosaic.npu.machine import DEFAULT_LIMITS, Limits, Trace, execute
from tosaic.npu.memory import INTERNAL, Memory, Numbers, Region, make_region
from tosaic.npu.operation import Op, decode
from tosaic.npu.stream import Stream, disassemble, parse
from tosaic.npu.weights import WeightCache
from tosaic.tools.vela import Slot

__all__ = [
    "Fault",
    "Hazard",
    "Limits",
    "Malformed",
    "Memory",
    "Op",
    "OutOfRange",
    "TooMuch",
    "Uninitialized",
    "UnknownField",
    "WeightCache",
    "decode",
    "disassemble",
    "run",
    "run_blob",
]

WEIGHT_REGION, SCRATCH_REGION, FAST_REGION = 0, 1, 2
#: No microcontroller system has more memory than this.
_MAX_MEMORY = 256 << 20


def run(
    cmd_data: bytes,
    weight_data: bytes,
    scratch_size: int,
    inputs: Sequence[npt.NDArray[np.generic]],
    input_io: Sequence[Slot],
    output_io: Sequence[Slot],
    *,
    output_dtypes: Sequence[npt.DTypeLike] | None = None,
    fast_scratch_size: int = 0,
    trace: Trace | None = None,
    check_uninitialized: bool = False,
    check_waits: bool = False,
    cache: WeightCache | None = None,
    limits: Limits = DEFAULT_LIMITS,
    budget: Budget | None = None,
) -> list[Numbers]:
    """Run a command stream and return its outputs, each in the six dimensions of its record.

    output_dtypes         signed integers of the records' element sizes, unless given
    fast_scratch_size     bytes of region 2, for memory modes with SRAM dedicated to the NPU
    trace                 is called with (offset, op, memory) after each operation and DMA
    check_uninitialized   raise Uninitialized when a command reads memory that was never written
    check_waits           raise Hazard where KERNEL_WAIT or DMA_WAIT is missing
    cache                 keeps decoded weights from run to run
    budget                limit for the memories and decoded weights; by default that of a file with this network
    """
    stream = parse(cmd_data)
    budget = budget or Budget(len(cmd_data) + len(weight_data))
    sizes = {SCRATCH_REGION: scratch_size, FAST_REGION: fast_scratch_size}
    # Inputs and outputs may have separate regions, each as large as its last byte requires.
    for region, end in sorted((io.region, io.offset + _count_bytes(io)) for io in (*input_io, *output_io)):
        if region not in (WEIGHT_REGION, SCRATCH_REGION, FAST_REGION):
            sizes[region] = end
    taken = _check_sizes(sizes) * (2 if check_uninitialized else 1)
    budget.take(taken, "the memory of the simulated NPU")
    try:
        memory = _make_memory(stream, weight_data, sizes, check_uninitialized)
        _write_inputs(memory, inputs, input_io)
        execute(
            stream,
            memory,
            cache or WeightCache(budget=budget),
            trace=trace,
            hazards=Hazards() if check_waits else None,
            limits=limits,
        )
        memory.accesses = None
        dtypes = output_dtypes or [f"i{io.element_bytes}" for io in output_io]
        return [_read_output(memory, io, np.dtype(dtype)) for io, dtype in zip(output_io, dtypes, strict=True)]
    finally:
        budget.give_back(taken)


class _BlobOptions(TypedDict, total=False):
    """Keyword arguments that `run_blob` passes on to `run`."""

    fast_scratch_size: int
    trace: Trace | None
    check_uninitialized: bool
    check_waits: bool
    cache: WeightCache | None
    limits: Limits
    budget: Budget | None


def run_blob(
    blob: bytes,
    inputs: Sequence[npt.NDArray[np.generic]],
    output_dtypes: Sequence[npt.DTypeLike] | None = None,
    **options: Unpack[_BlobOptions],
) -> list[Numbers]:
    """Run the blob of an Ethos-U delegate like `run`; the blob does not state how much fast scratch it needs."""
    from tosaic.formats.blob import unpack

    parts = unpack(blob)
    return run(
        parts.cmd_data,
        parts.weight_data,
        parts.scratch_size,
        inputs,
        parts.inputs,
        parts.outputs,
        output_dtypes=output_dtypes,
        **options,
    )


def _check_sizes(sizes: dict[int, int]) -> int:
    """Return the total size of all regions in bytes, after checking that a system can have that much memory."""
    total = sum(sizes.values())
    if total > _MAX_MEMORY or min(sizes.values()) < 0:
        raise TooMuch("the network needs too much memory", why=f"{total} bytes")
    return total


def _make_memory(stream: Stream, weight_data: bytes, sizes: dict[int, int], track: bool) -> Memory:
    regions: dict[int, Region] = {
        number: make_region(f"region {number}", size, track=track) for number, size in sizes.items()
    }
    regions[WEIGHT_REGION] = make_region("the weights (region 0)", 0, data=weight_data)
    size = stream.accelerator.ram_bytes
    regions[INTERNAL] = make_region("the internal RAM", size, track=track)
    return Memory(regions)


def _count_bytes(io: Slot) -> int:
    total = io.element_bytes
    for size in io.shape:
        total *= size
    return total


def _write_inputs(memory: Memory, inputs: Sequence[npt.NDArray[np.generic]], ios: Sequence[Slot]) -> None:
    if len(inputs) != len(ios):
        raise Invalid(f"the network has {len(ios)} inputs, but {len(inputs)} were given")
    for index, (array, io) in enumerate(zip(inputs, ios, strict=True)):
        data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        if data.size != _count_bytes(io) or array.dtype.itemsize != io.element_bytes:
            given = f"{array.dtype}{list(array.shape)}"
            raise Invalid(
                f"input {index} is {given}",
                why=f"the network takes {list(io.shape)} with {io.element_bytes} bytes each",
            )
        memory.view(io.region, io.offset, (data.size,), (1,), "u1", None, write=True)[...] = data


def _read_output(memory: Memory, io: Slot, dtype: np.dtype[np.generic]) -> Numbers:
    if dtype.itemsize != io.element_bytes:
        raise Invalid(f"an output has {io.element_bytes} bytes per element", why=f"{dtype} was requested")
    data = memory.read_bytes(io.region, io.offset, _count_bytes(io), None)
    return data.view(dtype).reshape(io.shape).copy()
