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
