"""Tensors of a program in memory: their location, their dimension order, and their conversion to arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tosaic.core.budget import Budget
from tosaic.core.dtypes import NUMPY
from tosaic.core.errors import Invalid
from tosaic.formats.npy import Array
from tosaic.formats.pte import Plan, Pte, Tensor

if TYPE_CHECKING:
    import torch


Shape: TypeAlias = tuple[int, ...]


class TensorType(NamedTuple):
    """Type and shape of an array; bfloat16 is kept as its bits in uint16, float8 in uint8."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def type_of(tensor: Tensor) -> TensorType:
    """Return a tensor's type as its caller sees it."""
    if tensor.dtype not in NUMPY:
        raise Invalid(f"tensors of type {tensor.dtype} cannot be computed here")
    return TensorType(np.dtype(NUMPY[tensor.dtype]), tensor.shape)


def order_in_memory(tensor: Tensor) -> TensorType:
    """Return a tensor's type with the dimensions in memory order, as a delegate sees it."""
    found = type_of(tensor)
    return TensorType(found.dtype, tuple(found.shape[dim] for dim in tensor.dim_order))


class Memory:
    """The planned buffers and the constants as torch tensors."""

    def __init__(self, pte: Pte, plan: Plan, budget: Budget) -> None:
        """Set up the memory of a plan, whose buffers the budget already includes."""
        import torch

        # The first entry of the file's list is not a buffer.
        self._buffers = [torch.zeros(size, dtype=torch.uint8) for size in (0, *plan.planned_sizes)]
        self._constants: dict[tuple[int, int], torch.Tensor] = {}
        # Cached tensors, by the identity of the plan's tensor.
        self._views: dict[tuple[int, Shape], torch.Tensor] = {}
        # Constants of a valid file do not overlap, so together they are no larger than the file.
        self._unread = 2 * pte.size
        self._budget = budget
        for value in plan.values:
            if isinstance(value, Tensor) and value.allocation is not None and value.data is not None:
                self.place(value, value.shape).copy_(self.read_constant(value))

    def place(self, spec: Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return the planned memory of a tensor, viewed with a shape."""
        key = (id(spec), tuple(shape))
        found = self._views.get(key)
        if found is not None:
            return found
        assert spec.allocation is not None
        start, size = spec.allocation.offset, type_of(spec).dtype.itemsize
        if start % size:
            raise Invalid(f"a {spec.dtype} tensor is planned at offset {start}, which is not a multiple of {size}")
        flat = self._buffers[spec.allocation.memory_id][start : start + math.prod(shape) * size]
        view = arrange(flat, spec, shape)
        if spec.dynamism == "static":
            self._views[key] = view
        return view

    def read_constant(self, spec: Tensor) -> torch.Tensor:
        import torch

        found = self._views.get((id(spec), spec.shape))
        if found is not None and spec.allocation is None:
            return found
        assert spec.data is not None
        raw = np.frombuffer(spec.data, np.uint8)
        key = (raw.ctypes.data, raw.size)
        if key not in self._constants:
            self._unread -= raw.size
            if self._unread < 0:
                raise Invalid("the constants of the .pte file overlap", why="together they are larger than the file")
            self._budget.take(raw.size, "a constant of the program")
            self._constants[key] = torch.as_tensor(raw.copy())
        view = arrange(self._constants[key], spec, spec.shape)
        if spec.allocation is None:
            self._views[id(spec), spec.shape] = view
        return view


def arrange(flat: torch.Tensor, spec: Tensor, shape: Sequence[int]) -> torch.Tensor:
    """View bytes as a tensor whose dimensions are ordered in memory by its dim order."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    # An empty tensor has no strides that a view would accept.
    typed = flat.view(dtype) if flat.numel() else flat.to(dtype)
    ordered = typed.reshape([shape[dim] for dim in spec.dim_order])
    return ordered.permute([spec.dim_order.index(dim) for dim in range(len(shape))])


def lay_out(tensor: torch.Tensor, spec: Tensor) -> torch.Tensor:
    """Copy the values into new memory, in the order of the spec."""
    import torch

    memory = torch.zeros(tensor.numel() * type_of(spec).dtype.itemsize, dtype=torch.uint8)
    return arrange(memory, spec, tuple(tensor.shape)).copy_(tensor)


def from_array(array: Array, dtype: str) -> torch.Tensor:
    """Make a torch tensor with the values of an array; `dtype` is the meaning of uint16 or uint8 bits."""
    import torch

    return torch.as_tensor(np.array(array, order="C")).view(getattr(torch, dtype))


def to_array(tensor: torch.Tensor, dtype: np.dtype[np.generic]) -> Array:
    """Make a new array with the values of a torch tensor."""
    import torch

    flat: Any = tensor.contiguous().reshape(-1).view(torch.uint8)
    raw: Array = flat.numpy()
    return raw.view(dtype).reshape(tuple(tensor.shape)).copy()
