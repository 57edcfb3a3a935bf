"""Tensors without dimensions: as operands of tensors with many, and in operators that take a dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import tosaic
from support.modules import Call

U55, U85, FP = "ethos-u55-128", "ethos-u85-256", "TOSA-1.0+FP"
Function = Callable[..., torch.Tensor]


def compile_it(function: Function, target: str, *shapes: tuple[int, ...]) -> tuple[tosaic.Program, Any, Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    model = Call(function).eval()
    return tosaic.compile(model, inputs, target, calibration=[inputs]), model(*inputs), inputs


@pytest.mark.parametrize("target", [U55, U85])
@pytest.mark.parametrize("function", [torch.minimum, torch.add, torch.sub, torch.mul], ids=lambda f: f.__name__)
def test_a_number_before_a_tensor_of_five_dimensions(function: Function, target: str) -> None:
    program, _, _ = compile_it(function, target, (), (2, 6, 2, 2, 3))
    assert len(program.delegates) == 1
    assert program.verify(rounds=1).ok


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1, 1, 1, 1)], ids=str)
def test_a_tensor_of_one_element_before_a_permuted_one(shape: tuple[int, ...]) -> None:
    program, _, _ = compile_it(lambda a, b: a - b.permute(0, 2, 3, 4, 1), U55, shape, (2, 3, 4, 5, 6))
    assert len(program.delegates) == 1
    assert program.verify(rounds=1).ok


@pytest.mark.parametrize("target", [U55, U85, FP])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(-1),
        lambda x: x.mean(0, keepdim=True),
        lambda x: x.amax(0),
        lambda x: x.argmax(-1).to(torch.int32),
        lambda x: x.argmax(0, keepdim=True).to(torch.int32),
        lambda x: torch.softmax(x * 2.0, -1),
        lambda x: torch.log_softmax(x, 0),
        lambda x: x.squeeze(0) + 1.0,
        lambda x: x.unsqueeze(-1) * 2.0,
        lambda x: x.flip(0),
        lambda x: torch.linalg.vector_norm(x, dim=0),
    ],
    ids=["sum", "mean", "amax", "argmax", "kept", "softmax", "log", "squeeze", "unsqueeze", "flip", "norm"],
)
def test_a_dimension_of_a_number(function: Function, target: str) -> None:
    program, want, inputs = compile_it(function, target, ())
    (got,) = program.run(*inputs)
    assert got.shape == tuple(want.shape)
    torch.testing.assert_close(torch.from_numpy(got), want, atol=0.05 if target != FP else 1e-5, rtol=0.0)


class Columns(torch.nn.Module):
    """A maximum of two numbers that are written as a column, and a pooled image that is in memory meanwhile."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        largest = x.amin(-1).amax(0)
        norm = torch.linalg.vector_norm(y, 1, (1, 2), True)
        image = z.reshape(3, 17, 6, 6)
        return largest, torch.nn.functional.max_pool2d(image, 3, 1), image, norm


def test_a_column_has_room_for_all_of_it() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = tuple(torch.rand(shape, generator=generator) * 4.0 - 2.0 for shape in ((2, 17), (2, 4, 5), (1836,)))
    program = tosaic.compile(Columns().eval(), inputs, U55, calibration=[inputs])
    assert len(program.delegates) == 1
    verdict = program.verify(rounds=1)
    assert verdict.ok, verdict


@pytest.mark.parametrize("target", [U85, FP])
def test_a_norm_of_negative_order(target: str) -> None:
    program, want, inputs = compile_it(lambda x: torch.linalg.vector_norm(x, -2.0, dim=-1).cos(), target, (3, 4))
    assert [reason.op for reason in program.reasons if not reason.is_io] == []
    np.testing.assert_allclose(program.run(*inputs)[0], want.numpy(), atol=0.05 if target != FP else 1e-5)


@pytest.mark.parametrize("target", [U85, FP])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: torch.ops.aten.prelu.default(x, torch.tensor([0.25])), ()),
        (lambda x: x.index_select(1, x.argmax().to(torch.int32)), (1, 6)),
        (lambda x: torch.ops.aten.reflection_pad1d.default(x + 1.0, [-1, 1]), (1, 2, 4)),
        (lambda x: torch.ops.aten.reflection_pad1d.default(x + 1.0, [-1, 1]), (1, 3, 2)),
        (lambda x: torch.ops.aten.reflection_pad1d.default(x + 1.0, [-1, -1]), (1, 2, 4)),
        (lambda x: torch.ops.aten.upsample_nearest2d.default(x + 1.0, [4, 6], 2.0, 1.0), (1, 2, 2, 3)),
        (lambda x: functional.interpolate(x + 1.0, scale_factor=2.3), (1, 3, 2)),
        (lambda x: functional.interpolate(x + 1.0, scale_factor=(1.3, 2.3)), (1, 3, 3, 2)),
    ],
    ids=["prelu", "index", "reflect", "reach", "crop", "double", "row", "image"],
)
def test_rare_forms(function: Function, shape: tuple[int, ...], target: str) -> None:
    program, want, inputs = compile_it(function, target, shape)
    np.testing.assert_allclose(program.run(*inputs)[0], want.numpy(), atol=0.05 if target != FP else 1e-5)
