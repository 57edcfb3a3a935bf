"""Methods of tensors with types, which torch's own lack: conversion from and to numpy arrays, distinct numbers."""

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


def unique(tensor: torch.Tensor) -> torch.Tensor:
    """Return the distinct numbers of a tensor, in ascending order."""
    return tensor.unique()


def count_unique(tensor: torch.Tensor) -> torch.Tensor:
    """Count how often each distinct number of a tensor occurs, in ascending order of the numbers."""
    return tensor.unique(return_counts=True)[1]
