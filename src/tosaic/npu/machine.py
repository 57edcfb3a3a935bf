"""Executes a command stream: fetches commands, keeps the registers, and dispatches operations to their executors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from threadpoolctl import ThreadpoolController

from tosaic.npu.conv import run_conv
from tosaic.npu.dma import run_dma
from tosaic.npu.elementwise import run_elementwise
from tosaic.npu.errors import TooMuch, UnknownField
from tosaic.npu.hazard import Hazards
from tosaic.npu.lut import forget_tables
from tosaic.npu.memory import Memory
from tosaic.npu.operation import Kind, Op, State, read_map, read_ofm_shape
from tosaic.npu.pool import run_pool
from tosaic.npu.resize import run_resize
from tosaic.npu.stream import Stream
from tosaic.npu.weights import WeightCache
from tosaic.npu.work import estimate_work

Trace: TypeAlias = Callable[[int, Op, Memory], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a stream: commands fetched, and work in approximate nanoseconds on one core."""

    commands: int = 1_000_000
    work: int = 10_000_000_000


DEFAULT_LIMITS = Limits()


def execute(
    stream: Stream,
    memory: Memory,
    cache: WeightCache,
    *,
    trace: Trace | None = None,
    hazards: Hazards | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> int:
    """Run from the first command to STOP; return the offset after it."""
    # The matrices of one command are small: threads of numpy's BLAS cost more than they gain.
    with _find_blas().limit(limits=1):
        return _execute(stream, memory, cache, trace, hazards, limits)


@functools.cache
def _find_blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def _execute(
    stream: Stream,
    memory: Memory,
    cache: WeightCache,
    trace: Trace | None,
    hazards: Hazards | None,
    limits: Limits,
) -> int:
    state = State(stream)
    offset, work = 0, 0
    last_kernel: Op | None = None
    for _ in range(limits.commands):
        instruction = stream.read(offset)
        offset += 8 if instruction.command.has_payload else 4
        op = state.take(instruction)
        if op is None:
            continue
        if op.kind is Kind.STOP:
            return offset
        if op.kind is Kind.BRANCH:
            offset = _branch(op, last_kernel, memory, offset)
            continue
        work += estimate_work(op)
        if work > limits.work:
            raise TooMuch("the stream needs too much work", offset=op.offset, why=f"the limit is {limits.work}")
        if hazards is not None:
            memory.accesses = []
        _run(op, memory, cache)
        if hazards is not None:
            hazards.take(op, memory.accesses or [])
        if op.kind.is_kernel:
            last_kernel = op
            forget_tables(op, memory)
        if trace is not None and (op.kind.is_kernel or op.kind is Kind.DMA):
            trace(op.offset, op, memory)
    raise TooMuch("the stream does not end", why=f"{limits.commands} commands were executed")


def _run(op: Op, memory: Memory, cache: WeightCache) -> None:
    match op.kind:
        case Kind.CONV | Kind.DEPTHWISE:
            run_conv(op, memory, cache)
        case Kind.POOL:
            run_pool(op, memory)
        case Kind.ELEMENTWISE:
            run_elementwise(op, memory)
        case Kind.RESIZE:
            run_resize(op, memory)
        case Kind.DMA:
            run_dma(op, memory)
        case _:
            # Waits, interrupts and counters have no effect when each operation ends before the next begins.
            return


def _branch(op: Op, last_kernel: Op | None, memory: Memory, after: int) -> int:
    """Return the offset of the next command; a condition is the single number that the last operation wrote."""
    target = op.argument("branch_target")
    if op.mode == "ALWAYS":
        return target
    if last_kernel is None or read_ofm_shape(last_kernel).size != 1:
        raise UnknownField(
            "branch_cond", "RF_TRUE", offset=op.offset, why="the last operation does not have one result"
        )
    value = memory.load(read_map(last_kernel, "OFM"), read_ofm_shape(last_kernel))
    return target if value.any() else after
