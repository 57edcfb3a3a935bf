"""Test inputs of the operator records, written without importing torch.

`torch`, `nn` and `F` here import the real modules at first use, so a record file may use `lambda x: F.relu6(x)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tosaic.core.targets import Target


class _Lazy:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


torch: Any = _Lazy("torch")
nn: Any = _Lazy("torch.nn")
F: Any = _Lazy("torch.nn.functional")


def everywhere(target: Target) -> bool:
    """Select every target."""
    return True


def with_booleans(target: Target) -> bool:
    """Select the targets that have comparisons, logic and a choice by their results."""
    return target.has_booleans and target.has_select


def with_gather(target: Target) -> bool:
    """Select the targets that have a look-up by computed indices."""
    return target.has_gather


#: what a sample runs on one to four tensors; a union of arities, so that a type checker infers a lambda's parameters
Function: TypeAlias = (
    Callable[[Any], Any]
    | Callable[[Any, Any], Any]
    | Callable[[Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any], Any]
)


@dataclass(frozen=True, slots=True)
class Input:
    """A random input: uniform in [low, high] (`float32`), or integers from low to high - 1; booleans are 0 and 1."""

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Sample:
    """A call of an operator. `call` takes the inputs; with `module` it is a factory of an nn.Module instead.

    `flavors` names the profiles it is meant for; ints have no quantized form, some ops no float form.
    `targets` selects the targets that support it; on the others a constraint of the record must reject it.
    """

    call: Callable[..., Any]
    inputs: tuple[Input, ...]
    module: bool = False
    flavors: tuple[str, ...] = ("FP", "INT")
    targets: Callable[[Target], bool] = everywhere


def f32(*shape: int, low: float = -2.0, high: float = 2.0) -> Input:
    return Input(shape, low, high)


def i32(*shape: int, low: int = -100, high: int = 100) -> Input:
    return Input(shape, low, high, "int32")


def i16(*shape: int, low: int = -1000, high: int = 1000) -> Input:
    return Input(shape, low, high, "int16")


def i8(*shape: int, low: int = -128, high: int = 128) -> Input:
    return Input(shape, low, high, "int8")


def boolean(*shape: int) -> Input:
    return Input(shape, 0, 2, "bool")


def _flavors(inputs: tuple[Input, ...]) -> tuple[str, ...]:
    """Return the default profiles: plain integers belong to the integer profile and are not quantized."""
    return ("INT",) if any(i.dtype != "float32" for i in inputs) else ("FP", "INT")


def call(
    function: Function,
    *inputs: Input,
    flavors: tuple[str, ...] | None = None,
    targets: Callable[[Target], bool] = everywhere,
) -> Sample:
    return Sample(function, inputs, False, _flavors(inputs) if flavors is None else flavors, targets)


def module(
    factory: Callable[[], Any],
    *inputs: Input,
    flavors: tuple[str, ...] | None = None,
    targets: Callable[[Target], bool] = everywhere,
) -> Sample:
    return Sample(factory, inputs, True, _flavors(inputs) if flavors is None else flavors, targets)


def reduce_dims(name: str) -> list[Sample]:
    """Make the samples that all reductions of one or several dimensions share."""

    def run(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return lambda x: getattr(torch, name)(x, *args, **kwargs)

    return [
        call(run(-1), f32(2, 17)),
        call(run(1), f32(3, 4, 5)),
        call(run((2, 3)), f32(1, 17, 6, 7)),
        call(run((-1, -2), keepdim=True), f32(3, 64, 4, 4)),
        call(run(1, keepdim=True), f32(1, 3, 4, 4)),
        call(run((0, 2)), f32(3, 2, 5)),
        call(run(0), f32(9)),
        call(run((1, 3)), f32(2, 3, 2, 4, 3)),
    ]
