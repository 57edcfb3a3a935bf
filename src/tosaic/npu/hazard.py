"""Detection of missing waits: kernel operations and DMAs run concurrently until a wait command delays one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tosaic.npu.accelerator import MAX_KERNELS
from tosaic.npu.errors import Hazard
from tosaic.npu.memory import Access
from tosaic.npu.operation import Kind, Op


@dataclass(frozen=True, slots=True)
class _Pending:
    offset: int
    accesses: Sequence[Access]


class Hazards:
    """Follows a stream and raises Hazard when an operation accesses memory that an unfinished one reads or writes.

    Kernel operations are ordered by their block dependency, which is not checked.
    """

    def __init__(self) -> None:
        self._kernels: list[_Pending] = []
        self._transfers: list[_Pending] = []

    def take(self, op: Op, accesses: Sequence[Access]) -> None:
        """Record a wait, or an operation after it was executed."""
        if op.kind is Kind.KERNEL_WAIT:
            del self._kernels[: max(0, len(self._kernels) - op.argument("n"))]
        elif op.kind is Kind.DMA_WAIT:
            del self._transfers[: max(0, len(self._transfers) - op.argument("k"))]
        elif op.kind is Kind.DMA:
            _check(op, accesses, self._kernels, "KERNEL_WAIT")
            _check(op, accesses, self._transfers, "DMA_WAIT")
            self._transfers.append(_Pending(op.offset, tuple(accesses)))
            del self._transfers[: -op.accelerator.max_transfers]
        elif op.kind.is_kernel:
            _check(op, accesses, self._transfers, "DMA_WAIT")
            self._kernels.append(_Pending(op.offset, tuple(accesses)))
            del self._kernels[:-MAX_KERNELS]


def _check(op: Op, accesses: Sequence[Access], pending: Sequence[_Pending], missing: str) -> None:
    for earlier in pending:
        for one in accesses:
            for other in earlier.accesses:
                if (one.writes or other.writes) and _overlap(one, other):
                    verb = "overwrites" if one.writes else "reads"
                    low = max(one.bounds[0], other.bounds[0])
                    what = f"{op.kind.name} {verb} region {one.region} near address {low} too early"
                    raise Hazard(what, offset=op.offset, earlier=earlier.offset, missing=missing)


def _overlap(one: Access, other: Access) -> bool:
    """Tell whether two accesses share a byte: compare their ranges first, then the bytes themselves."""
    low, high = max(one.bounds[0], other.bounds[0]), min(one.bounds[1], other.bounds[1])
    if one.region != other.region or low >= high:
        return False
    return bool((_mark(one, low, high) & _mark(other, low, high)).any())


def _mark(access: Access, low: int, high: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark the bytes from low to high that an access touches."""
    first, last = access.bounds
    marks = np.zeros(last - first, np.bool_)
    np.ndarray(access.shape, np.bool_, marks, access.start - first, access.strides)[...] = True
    return marks[low - first : high - first]
