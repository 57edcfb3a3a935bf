"""Methods of tensors with types, which torch's own lack: conversion from and to numpy arrays."""

from __future__ import annotations

import torch

from tosaic.ir.graph import Array


def to_numpy(tensor: torch.Tensor) -> Array:
    """Return a tensor's data as an array (of floats that numpy lacks, their raw bits)."""
    tensor = tensor.detach().cpu().contiguous()
    raw = _RAW.get(tensor.dtype)
    return tensor.numpy() if raw is None else tensor.view(raw).numpy().view(f"u{raw.itemsize}")


def to_torch(array: Array) -> torch.Tensor:
    """Return a tensor that shares an array's memory."""
    return torch.from_numpy(array)


def find_memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the dimensions from outer to inner in memory; None if the tensor is only a part of what is there."""
    # Computed from the numbers alone: to ask a fake tensor for a permuted one takes a hundred times as long.
    sizes, strides = tuple(tensor.shape), tensor.stride()
    order = sorted(range(len(sizes)), key=lambda d: (-strides[d], d))
    step = 1
    for d in reversed(order):
        if sizes[d] != 1 and strides[d] != step:
            return None if 0 not in sizes else tuple(order)
        step *= sizes[d]
    return tuple(order)


def from_bits(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of floats that numpy lacks from an array of their raw bits, whose memory it shares."""
    raw = _RAW[dtype]
    return torch.from_numpy(array.view(f"i{raw.itemsize}")).view(dtype)


def has_bits(dtype: torch.dtype) -> bool:
    """Tell whether arrays hold tensors of this type as raw bits."""
    return dtype in _RAW


#: Floats that numpy lacks, with an integer type of their width.
_RAW = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.int8, torch.float8_e5m2: torch.int8}
