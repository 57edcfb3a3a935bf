"""Runs a program again and again: its mutable buffers keep their values from one run to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tosaic.api.calibration import as_tensor
from tosaic.core.dtypes import SMALL_FLOATS
from tosaic.core.errors import Invalid
from tosaic.core.tensor_info import TensorInfo
from tosaic.engines.interpreter import Method
from tosaic.formats.npy import Array
from tosaic.fx.arrays import to_numpy


@dataclass(frozen=True, slots=True)
class Session:
    """A loaded program, which starts with the buffers of the model as it was compiled. `Program.load` makes one."""

    method: Method
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def run(self, *inputs: Any) -> list[np.ndarray[Any, Any]]:
        """Run the program with what the previous runs left in its buffers."""
        return decode_outputs(self.method.run(encode_inputs(inputs, self.inputs)), self.outputs)


def encode_inputs(inputs: Sequence[Any], infos: Sequence[TensorInfo]) -> list[Array]:
    """Check the inputs of a run, and return them as engines take them: the bits of floats that numpy lacks."""
    tensors = [as_tensor(x, f"input {i}").detach().contiguous() for i, x in enumerate(inputs)]
    _check_inputs(tensors, infos)
    return [to_numpy(t) for t in tensors]


def decode_outputs(outputs: Sequence[Array], infos: Sequence[TensorInfo]) -> list[np.ndarray[Any, Any]]:
    """Return the outputs of an engine as users take them."""
    pairs = zip(outputs, infos, strict=True)
    return [array.view(SMALL_FLOATS[info.dtype]) if info.dtype in SMALL_FLOATS else array for array, info in pairs]


def _check_inputs(tensors: Sequence[torch.Tensor], infos: Sequence[TensorInfo]) -> None:
    if len(tensors) != len(infos):
        wanted = ", ".join(f"`{info.name}` {info.dtype}{list(info.shape)}" for info in infos)
        raise Invalid(
            f"{len(tensors)} inputs were given, the program takes {len(infos)}", fix=f"pass one tensor each: {wanted}"
        )
    for index, (tensor, info) in enumerate(zip(tensors, infos, strict=True)):
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        if (shape, dtype) != (info.shape, info.dtype):
            raise Invalid(
                f"input {index} is {dtype}{list(shape)}, the program takes {info.dtype}{list(info.shape)}",
                fix=f"convert it to {info.dtype} with shape {list(info.shape)}"
                + (" (channels last)" if info.layout == "nhwc" else ""),
            )
