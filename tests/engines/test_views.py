"""Kernels that the interpreter runs by torch, against ExecuTorch's own kernels for the same program."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from executorch.exir import EdgeCompileConfig, to_edge

from support.handmade import Spec, Step, call, make_program
from tosaic.core.errors import ToolFailed
from tosaic.engines import executorch, shim
from tosaic.engines.interpreter import Method
from tosaic.formats.npy import Array
from tosaic.formats.pte import read
from tosaic.ops import registry

needs_compiler = pytest.mark.skipif(
    not shim.find_compiler(), reason="no C++ compiler for the shim of engine executorch"
)

FIRST = Spec((3, 4, 5))
#: Each works on a tensor that does not begin at the start of the planned memory.
VIEWS = {
    "as_strided": call("aten::as_strided_copy", "out", (FIRST, [4, 3], [5, 2], 7), Spec((4, 3))),
    "as_strided without an offset": call("aten::as_strided_copy", "out", (FIRST, [2, 2], [1, 9], None), Spec((2, 2))),
    "select": call("aten::select_copy", "int_out", (FIRST, 1, -1), Spec((3, 5))),
    "slice": call("aten::slice_copy", "Tensor_out", (FIRST, 2, 1, 5, 2), Spec((3, 4, 2))),
    "narrow": call("aten::narrow_copy", "out", (FIRST, 1, 2, 2), Spec((3, 2, 5))),
    "diagonal": call("aten::diagonal_copy", "out", (FIRST, 1, 0, 2), Spec((4, 3))),
    "unfold": call("aten::unfold_copy", "out", (FIRST, 2, 3, 2), Spec((3, 4, 2, 3))),
    "split": call("aten::split_copy", "Tensor_out", (FIRST, 2, 1), [Spec((3, 2, 5)), Spec((3, 2, 5))]),
    "split with sizes": call(
        "aten::split_with_sizes_copy", "out", (FIRST, [1, 3], 1), [Spec((3, 1, 5)), Spec((3, 3, 5))]
    ),
    "unbind": call("aten::unbind_copy", "int_out", (FIRST, 0), [Spec((4, 5)), Spec((4, 5)), Spec((4, 5))]),
    "permute": call("aten::permute_copy", "out", (FIRST, [2, 0, 1]), Spec((5, 3, 4))),
    "transpose": call("aten::transpose_copy", "int_out", (FIRST, 0, -1), Spec((5, 4, 3))),
    "squeeze": call("aten::squeeze_copy", "dims_out", (Spec((1, 4, 1)), [0, 2]), Spec((4,))),
    "unsqueeze": call("aten::unsqueeze_copy", "out", (FIRST, -1), Spec((3, 4, 5, 1))),
    "expand": call("aten::expand_copy", "out", (Spec((3, 1)), [2, 3, 4], False), Spec((2, 3, 4))),
    "view": call("aten::view_copy", "out", (FIRST, [12, -1]), Spec((12, 5))),
    "view without a kernel": call(
        "executorch_prim::et_view", "default", (FIRST, [5, -1]), Spec((5, 12), planned=False)
    ),
    "flip": call("aten::flip", "out", (FIRST, [0, 2]), FIRST),
    "roll": call("aten::roll", "out", (FIRST, [2], [1]), FIRST),
    "copy of another order": call(
        "dim_order_ops::_to_dim_order_copy",
        "out",
        (Spec((1, 2, 3, 4)), False, [0, 2, 3, 1]),
        Spec((1, 2, 3, 4), order=(0, 2, 3, 1)),
    ),
    "two tensors": make_program(
        Step("aten::select_copy", "int_out", (FIRST, 0, 1), (Spec((4, 5)),)),
        Step("aten::as_strided_copy", "out", (Spec((4, 5)), [5, 4], [1, 5], 0), (Spec((5, 4)),)),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def one_child() -> Iterator[None]:
    """No child left behind."""
    yield
    executorch.worker().close()


def compare(data: bytes, name: str) -> str:
    """What is different, if anything."""
    method, rng = Method(read(data)), np.random.default_rng(0)
    inputs: list[Array] = [(rng.random(shape) * 4 + 0.5).astype(dtype) for dtype, shape in method.inputs]
    ours = method.run(inputs)
    for number, (a, b) in enumerate(zip(ours, executorch.run(data, inputs), strict=True)):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{name}: output {number} is {a.dtype}{a.shape}, in ExecuTorch {b.dtype}{b.shape}"
        x, y = a.astype(np.float64), b.astype(np.float64)
        if not np.allclose(x, y, rtol=0, atol=1e-5 * max(1.0, float(np.abs(y[np.isfinite(y)]).max(initial=0)))):
            return f"{name}: output {number} differs by {np.nanmax(np.abs(x - y))}"
    return ""


@needs_compiler
@pytest.mark.parametrize("name", VIEWS)
def test_views_are_those_of_the_runtime(name: str) -> None:
    assert compare(VIEWS[name], name) == ""


@needs_compiler
@pytest.mark.slow
def test_kernels_that_records_leave_are_those_of_the_runtime() -> None:
    """Each kernel of the samples once: without a delegate, all that a sample computes is left on the CPU."""
    importlib.import_module("executorch.kernels.quantized")  # the out variants that exir looks for

    from support import samples

    seen: set[str] = set()
    different: list[str] = []
    refused: set[str] = set()
    for record in registry().records.values():
        for index in range(len(record.samples())):
            _, _, program = samples.exported(record.name, index)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    edge = to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False))
                    data: Any = edge.to_executorch().buffer
            except RuntimeError as error:
                assert "Missing out variants" in str(error)
                continue
            operators = {str(operator) for operator in read(data).find().operators}
            if operators <= seen:
                continue
            try:
                different += filter(None, [compare(data, f"{record.name} {index}")])
                seen |= operators
            except ToolFailed:
                refused.add(f"{record.name} {index}")
    assert different == []
    assert len(seen) > 80
    # The runtime in the wheel lacks kernels that a device may have, and pads only to the outside.
    assert {name.partition(" ")[0] for name in refused} <= {"pad", "upsample_nearest1d", "upsample_nearest2d"}
