"""Tensors on untrusted bytes: never outside of them, and none larger than the memory allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid

_ALIGNMENT = 16
_MAX_RANK = 64
_MAX_SIZE = 1 << 48


class Storage:
    """Bytes of a file as numbers of one type, for tensors that share them."""

    def __init__(self, content: memoryview, dtype: torch.dtype, what: str, budget: Budget) -> None:
        self.dtype, self._what, self._budget = dtype, what, budget
        if len(content) % dtype.itemsize:
            raise Invalid(f"{what} is damaged", why=f"{len(content)} bytes are not a whole number of {dtype} values")
        if dtype == torch.bool and bytes(content).strip(b"\0\1"):
            raise Invalid(f"{what} is damaged", why="a bool is a byte of 0 or 1")
        self._flat = self._make(content)
        # The size that the tensors may have together before it is counted: the bytes are already there.
        self._free = len(content)

    def _make(self, content: memoryview) -> torch.Tensor:
        if not content:
            return torch.empty(0, dtype=self.dtype)
        shared = None if content.readonly else torch.frombuffer(content, dtype=torch.uint8)
        if shared is None or shared.data_ptr() % _ALIGNMENT:
            self._budget.take(len(content), self._what)
            shared = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        return shared.view(self.dtype)

    def __len__(self) -> int:
        return self._flat.numel()

    def view(self, sizes: Sequence[object], strides: Sequence[object], offset: object) -> torch.Tensor:
        """Return a tensor on these bytes, after checking that they have all of its elements."""
        shape, steps, first = _as_counts(sizes), _as_counts(strides), _as_counts([offset])
        if shape is None or steps is None or first is None or len(shape) != len(steps):
            raise Invalid(f"{self._what} is damaged", why="the sizes or strides of a tensor are not usable")
        count = math.prod(shape)
        last = first[0] + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
        if count and last >= len(self):
            raise Invalid(
                f"{self._what} is damaged", why=f"a tensor of shape {list(shape)} ends after its {len(self)} elements"
            )
        # A tensor may repeat the few numbers of a file any number of times.
        size = count * self.dtype.itemsize
        self._budget.take(max(0, size - self._free), f"a tensor of {self._what}")
        self._free = max(0, self._free - size)
        return torch.as_strided(self._flat, shape, steps, first[0]) if count else self._flat.new_empty(shape)


def _as_counts(values: Sequence[object]) -> tuple[int, ...] | None:
    counts = tuple(value for value in values if type(value) is int and 0 <= value < _MAX_SIZE)
    return counts if len(counts) == len(values) <= _MAX_RANK else None
