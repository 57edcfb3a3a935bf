"""Operators that models leave on the CPU and ExecuTorch's runtime has no kernel for run in the host interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tosaic
from support.modules import Call

X = torch.linspace(-2.0, 2.0, 60).reshape(1, 3, 4, 5)
INDEX = torch.tensor([2, 0])

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True),
    "addcdiv": lambda x: torch.addcdiv(x, x, x + 5.0, value=0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "cummax": lambda x: tuple(torch.cummax(x, 2)),
    "cummin": lambda x: tuple(torch.cummin(x, -1)),
    "diag_embed": lambda x: torch.diag_embed(x[0, 0]),
    "hardshrink": lambda x: F.hardshrink(x),
    "heaviside": lambda x: torch.heaviside(x, torch.full((5,), 0.5)),
    "index_copy": lambda x: x.index_copy(2, INDEX, x[:, :, 1:3]),
    "index_fill": lambda x: x.index_fill(3, INDEX, 1.5),
    "linalg_vector_norm": lambda x: torch.linalg.vector_norm(x, 3.0, -1),
    "mish": lambda x: F.mish(x),
    "softshrink": lambda x: F.softshrink(x),
    "std": lambda x: x.std(-1),
    # Factors that do not belong to the size: torch takes the last element, and so does the kernel.
    "upsample_nearest_exact2d": lambda x: torch.ops.aten._upsample_nearest_exact2d(x, [9, 11], 1.25, 1.3),
    "upsample_nearest2d": lambda x: torch.ops.aten.upsample_nearest2d(x, [2, 3], 1.5, 1.0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_kernel_beyond_the_runtime(name: str) -> None:
    model = Call(PROGRAMS[name]).eval()
    program = tosaic.compile(model, (X,), "TOSA-1.0+FP", delegate=False)
    want = model(X)
    for got, expected in zip(program.run(X), want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-6)
