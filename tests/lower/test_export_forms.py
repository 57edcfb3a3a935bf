"""Spellings of ordinary programs that export keeps in a form of their own."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executorch.exir.error import InternalError
from torch import nn
from torch.utils.checkpoint import checkpoint

import tosaic
from support.apis import Call, compile_both, list_left
from tosaic.driver.exported import export
from tosaic.fx.modes import inline_modes

X = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(7))
IMAGE = torch.randn(1, 3, 4, 4, generator=torch.Generator().manual_seed(8))
LAST = torch.channels_last


@pytest.mark.parametrize("target", ["ethos-u85-256", "TOSA-1.0+FP"])
def test_one_hot(target: str) -> None:
    def function(layer: Any, x: Any, i: Any) -> Any:
        return layer(x) + F.one_hot(i, 8).float()

    program, used = compile_both(function, (X, torch.tensor([[1, 2, 3, 7]])), target)
    assert len(program.delegates) == 1
    assert not any("assert" in op for op in list_left(program, used)[1])


FILLS: dict[str, Any] = {
    "full_like": lambda _, x: x + torch.full_like(x, 3.2, memory_format=LAST),
    "zeros_like": lambda _, x: torch.zeros_like(x, memory_format=LAST) + x,
    "ones_like": lambda _, x: x * torch.ones_like(x, memory_format=LAST),
    "empty_like": lambda _, x: x + torch.empty_like(x, memory_format=LAST).fill_(2.0),
    "new_full": lambda _, x: x + x.new_full((4, 4), 1.5),
    "returned": lambda _, x: (x * 2, torch.full_like(x, 3.2, memory_format=LAST)),
}


@pytest.mark.parametrize("target", ["ethos-u55-128", "TOSA-1.0+FP"])
@pytest.mark.parametrize("name", FILLS)
def test_fills_in_any_memory_format(name: str, target: str, request: pytest.FixtureRequest) -> None:
    if (name, target) == ("returned", "TOSA-1.0+FP") and importlib.metadata.version("executorch") >= "1.5":
        reason = "exir 1.5 keeps the memory format of a fill on the CPU, and cannot write it"
        request.applymarker(pytest.mark.xfail(strict=True, raises=InternalError, reason=reason))
    program, _ = compile_both(FILLS[name], (IMAGE,), target)
    assert len(program.delegates) == 1
    if name not in ("empty_like", "returned"):
        assert not [r.op for r in program.reasons if not r.is_io]


@pytest.mark.parametrize("move", ["clone", "to", "contiguous", "rand_like"])
def test_other_memory_formats_on_the_cpu(move: str) -> None:
    def function(_: Any, x: Any) -> Any:
        y = torch.pow(torch.sigmoid(x) + 1.0, torch.sigmoid(x))
        moved = torch.rand_like(y, memory_format=LAST) * 0 + y if move == "rand_like" else None
        return moved if moved is not None else getattr(y, move)(memory_format=LAST) * 2.5

    model = Call(function).eval()
    program = tosaic.compile(model, (IMAGE,), "ethos-u55-128")
    (got,) = program.run(IMAGE)
    assert abs(got - model(IMAGE).numpy()).max() < 0.05


def without_gradient(layer: Any, x: Any) -> Any:
    with torch.no_grad():
        scale = torch.arange(8).float() * 0.1 + 1
    return layer(x) * scale


def with_gradient(layer: Any, x: Any) -> Any:
    with torch.no_grad(), torch.enable_grad():
        y = layer(x) * 2
    return y + 1


def nested(layer: Any, x: Any) -> Any:
    with torch.no_grad():
        y = layer(x)
        with torch.autocast("cpu", enabled=False):
            z = layer(y) + y
    return z * 2


def inference(layer: Any, x: Any) -> Any:
    with torch.inference_mode():
        return layer(x) * 2


def checkpointed(layer: Any, x: Any) -> Any:
    return checkpoint(lambda y: layer(y).relu(), x, use_reentrant=False) + 1


MODES = [
    without_gradient,
    with_gradient,
    nested,
    inference,
    checkpointed,
    torch.no_grad()(lambda layer, x: layer(x) * 2),
]


@pytest.mark.parametrize("target", ["ethos-u55-128", "TOSA-1.0+FP"])
@pytest.mark.parametrize(
    "function", MODES, ids=["no_grad", "enable_grad", "nested", "inference", "checkpoint", "whole"]
)
def test_modes_cost_nothing(function: Any, target: str) -> None:
    assert list_left(*compile_both(function, (X,), target)) == ([], [])


def test_what_autocast_casts_is_cast() -> None:
    def function(layer: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
        return y.float() + 1

    compile_both(function, (X,), "TOSA-1.0+FP+bf16")


class Hidden(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = torch.native_dropout(x.abs() + 1.0, 0.0, True)[0]
        return y * x


def test_a_reason_under_no_grad_has_its_place() -> None:
    program = tosaic.compile(Hidden().eval(), (X,), "ethos-u55-128")
    (reason,) = (r for r in program.reasons if r.op == "aten.native_dropout.default")
    path, _, line = reason.where.rpartition(":")
    assert path.endswith("test_export_forms.py")
    assert int(line) == Hidden.forward.__code__.co_firstlineno + 2


def test_the_program_of_the_user_is_left_alone() -> None:
    program = export(Call(nested).eval(), (X,))
    before = str(program)
    assert "wrap_with_set_grad_enabled" not in str(inline_modes(program))
    assert str(program) == before


@pytest.mark.parametrize("target", ["ethos-u55-128", "TOSA-1.0+FP"])
def test_writes_into_a_new_tensor(target: str) -> None:
    def function(_: Any, x: Any) -> Any:
        y = torch.zeros(1, 4, 8)
        y[:, 1:] = x[:, 1:]
        y += x
        return y

    compile_both(function, (X,), target)
