"""The memory that a method needs on a device, in bytes: what the firmware's runtime takes from each pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tosaic.formats import blob as ethosu_blob
from tosaic.formats.blob import BACKEND, find_fast_scratch
from tosaic.formats.pte import (
    BoolList,
    DelegateCall,
    DoubleList,
    IntList,
    KernelCall,
    OptionalTensorList,
    Plan,
    Pte,
    Tensor,
    TensorList,
    Value,
)

#: All that is taken from a pool is a multiple of this.
UNIT = 16
#: The sizes of the runtime's structures on a 32-bit CPU; the generated C file asserts them.
SIZES = {"tosaic_value": 16, "tosaic_tensor": 24, "tosaic_delegate": 44}
_VALUE, _TENSOR, _DELEGATE = SIZES.values()
_WORD = 4


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a method.

    method        values, tensors, lists
    planned       the memory that the program plans, whose buffers are `buffers`
    scratch       memory of the NPU during a call
    fast_scratch  SRAM that only the NPU uses
    interface     inputs and outputs for which the program plans no memory
    """

    method: int
    planned: int
    scratch: int
    fast_scratch: int
    interface: int
    buffers: tuple[int, ...]

    def list_sizes(self) -> dict[str, int]:
        """List the pools by name."""
        return {
            "method": self.method,
            "planned": self.planned,
            "scratch": self.scratch,
            "fast_scratch": self.fast_scratch,
            "interface": self.interface,
        }


def measure_pools(pte: Pte, plan: Plan) -> Pools:
    """Compute the pools of a method exactly: one unit less, and the runtime refuses to load it."""
    blobs = [
        ethosu_blob.unpack(delegate.blob, named=pte.named_data) for delegate in plan.delegates if delegate.id == BACKEND
    ]
    ends = dict.fromkeys((*plan.inputs, *plan.outputs))
    return Pools(
        method=sum(round_up(size) for size in _list_takes(plan)),
        planned=sum(round_up(size) for size in plan.planned_sizes),
        scratch=max((round_up(blob.scratch_size) for blob in blobs), default=0),
        fast_scratch=max((round_up(find_fast_scratch(item.compile_specs)) for item in plan.delegates), default=0),
        interface=sum(round_up(_count_given(plan.values[index])) for index in ends),
        buffers=plan.planned_sizes,
    )


def round_up(size: int) -> int:
    """Round up to whole units."""
    return -(-size // UNIT) * UNIT


def _count_given(value: Value) -> int:
    """Return the bytes of a tensor whose memory the caller gives."""
    if isinstance(value, Tensor) and value.allocation is None and value.data is None:
        return value.nbytes
    return 0


def _list_takes(plan: Plan) -> Iterator[int]:
    """Yield what the runtime takes from the method pool, in its order."""
    yield len(plan.values) * _VALUE
    yield len(plan.buffer_sizes) * _WORD
    yield len(plan.buffer_sizes) * _WORD
    for value in plan.values:
        match value:
            case Tensor():
                yield _TENSOR + len(value.shape) * _WORD
            case IntList(items) | TensorList(items) | OptionalTensorList(items):
                yield len(items) * _WORD
            case DoubleList(items) | BoolList(items):
                yield len(items) * _WORD
                yield len(items) * _VALUE
            case _:
                pass
    yield len(plan.operators) * _WORD
    yield len(plan.delegates) * _DELEGATE
    calls = (step for step in plan.instructions if isinstance(step, KernelCall | DelegateCall))
    yield max((len(call.args) for call in calls), default=0) * _WORD
