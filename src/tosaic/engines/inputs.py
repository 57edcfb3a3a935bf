"""Input files that a user names on the command line: .npy, .npz, .pt and raw bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tosaic.core import input_file
from tosaic.core.budget import Budget
from tosaic.core.dtypes import NUMPY
from tosaic.core.errors import Invalid
from tosaic.formats.archive import unpack
from tosaic.formats.npy import Array, read_npy
from tosaic.formats.pt import read_pt
from tosaic.formats.tensors import TensorType, to_array

RAW = (".bin", ".raw")
FORMATS = (".npy", ".npz", ".pt", *RAW)
_MEMBER = re.compile(r"[^/\\]+\.npy")


def make_ones(types: Sequence[TensorType], max_memory: int | None = None) -> list[Array]:
    """Make the default inputs of a program: ones."""
    budget = Budget(0, max_memory)
    for index, (dtype, shape) in enumerate(types):
        budget.take(math.prod(shape) * dtype.itemsize, f"input {index}")
    return [np.ones(shape, dtype) for dtype, shape in types]


def read_inputs(files: Sequence[str | Path], types: Sequence[TensorType], max_memory: int | None = None) -> list[Array]:
    """Read the inputs of a program from files, in order; a .npz or .pt may hold several. Without files, use ones."""
    if not files:
        return make_ones(types, max_memory)
    arrays: list[tuple[str, Array]] = []
    for file in map(Path, files):
        arrays += _read_file(file, types[len(arrays) :], max_memory)
    if len(arrays) != len(types):
        names = ", ".join(name for name, _ in arrays)
        raise Invalid(f"{len(arrays)} inputs were given ({names}), but the program takes {len(types)}")
    for index, ((name, array), type_) in enumerate(zip(arrays, types, strict=True)):
        given = TensorType(array.dtype, array.shape)
        if given != type_:
            raise Invalid(
                f"{name} is {given}, but input {index} of the program is {type_}",
                fix=f"convert it to {type_.dtype} with shape {list(type_.shape)}",
            )
    return [array for _, array in arrays]


def _read_file(file: Path, types: Sequence[TensorType], max_memory: int | None) -> list[tuple[str, Array]]:
    """Read the arrays of a file, each with its name for errors; `types` are those of the remaining inputs."""
    suffix = file.suffix.lower()
    if suffix not in FORMATS:
        raise Invalid(f"unknown input file type: `{file}`", fix=f"use one of {', '.join(FORMATS)}")
    if suffix in RAW:
        return [(f"`{file}`", _read_raw(file, types, max_memory))]
    content, budget = read_content(file, max_memory)
    items: list[tuple[str, Any]] = [(f"`{file}`", content)]
    if issubclass(type(content), Mapping):
        items = [(f"`{name}` of `{file}`", item) for name, item in content.items()]
    elif issubclass(type(content), list | tuple):
        items = [(f"`{index}` of `{file}`", item) for index, item in enumerate(content)]
    return [(name, item if isinstance(item, np.ndarray) else _as_array(name, item, budget)) for name, item in items]


def read_content(file: Path, max_memory: int | None = None) -> tuple[Any, Budget]:
    """Read a .npy, .npz or .pt file (an array, arrays by name, or tensors in lists and dicts); return a budget too."""
    (data, budget), what = input_file.read(file, max_memory), f"`{file}`"
    match file.suffix.lower():
        case ".npy":
            return read_npy(data, what, budget), budget
        case ".npz":
            members = unpack(data, _MEMBER, what, budget)
            names = {name.removesuffix(".npy"): member for name, member in members.items()}
            return {name: read_npy(member, f"`{name}` of {what}", budget) for name, member in names.items()}, budget
        case _:
            return read_pt(data, what, budget), budget


def _read_raw(file: Path, types: Sequence[TensorType], max_memory: int | None) -> Array:
    if not types:
        raise Invalid(f"`{file}` is one input too many for the program")
    dtype, shape = types[0]
    data, budget = input_file.read(file, max_memory)
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise Invalid(f"`{file}` has {len(data)} bytes, but {types[0]} takes {wanted}")
    if dtype.kind == "b" and data.strip(b"\0\1"):
        raise Invalid(f"`{file}` has a byte that is not a bool", why="a bool is a byte of 0 or 1")
    budget.take(len(data), f"`{file}`")
    flat: Array = np.frombuffer(data, dtype)
    return flat.reshape(shape).copy()


def _as_array(name: str, item: Any, budget: Budget) -> Array:
    import torch

    if not isinstance(item, torch.Tensor) or item.is_sparse or item.is_quantized:
        raise Invalid(f"{name} is not a plain tensor", why=f"it is {type(item).__name__}")
    dtype = NUMPY.get(str(item.dtype).removeprefix("torch."))
    if dtype is None:
        raise Invalid(f"{name} cannot be used", why=f"it is a tensor of {item.dtype}")
    budget.take(item.numel() * np.dtype(dtype).itemsize, name)
    return to_array(item.detach(), np.dtype(dtype))
