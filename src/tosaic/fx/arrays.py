"""Methods of tensors with types, which torch's own lack: conversion from and to numpy arrays."""

from __future__ import annotations

import numpy as np
import torch

from tosaic.ir.graph import Array


def to_numpy(tensor: torch.Tensor) -> Array:
    """Return a tensor's data as an array (bfloat16 as its 16 raw bits)."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype is torch.bfloat16 else tensor.numpy()


def to_torch(array: Array) -> torch.Tensor:
    """Return a tensor that shares an array's memory."""
    return torch.from_numpy(array)


def find_memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the dimensions from outer to inner in memory; None if the tensor is only a part of what is there."""
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d))
    return tuple(order) if tensor.permute(order).is_contiguous() else None
