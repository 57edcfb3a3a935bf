"""What a test graph is, the table of all of them, and helpers to build them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tosaic.formats.tosa_writer import serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import Array, DType, Graph, Value

I8, I16, I32, I48, BOOL = DType.I8, DType.I16, DType.I32, DType.I48, DType.BOOL
_RANGES = {I8: (-128, 128), I16: (-32768, 32768), I32: (-(1 << 20), 1 << 20), BOOL: (0, 2)}


@dataclass(frozen=True)
class Case:
    """A graph, and the range of each input where not all values are legal."""

    graph: Graph
    ranges: Sequence[tuple[int, int] | None] = ()

    @property
    def tosa(self) -> bytes:
        return serialize(self.graph)

    def inputs(self, seed: int = 0) -> list[Array]:
        rng = np.random.default_rng(seed)
        arrays: list[Array] = []
        for index, value in enumerate(self.graph.inputs):
            chosen = self.ranges[index] if index < len(self.ranges) else None
            low, high = chosen or _RANGES[value.dtype]
            kinds = {I8: np.int8, I16: np.int16, I32: np.int32, BOOL: np.bool_}
            arrays.append(rng.integers(low, high, value.shape).astype(kinds[value.dtype]))
        return arrays


_CASES: dict[str, tuple[Callable[[], Case], tuple[str, ...]]] = {}
BOTH, U85 = ("u55", "u85"), ("u85",)


def case(families: tuple[str, ...] = BOTH) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(function: Callable[[], Case]) -> Callable[[], Case]:
        _CASES[function.__name__] = (function, families)
        return function

    return register


def names(family: str) -> list[str]:
    return [name for name, (_, families) in _CASES.items() if family in families]


def make(name: str) -> Case:
    return _CASES[name][0]()


def make_rng() -> np.random.Generator:
    return np.random.default_rng(7)


def const(b: Builder, shape: Sequence[int], dtype: DType = I8, low: int = -127, high: int = 128) -> Value:
    return b.const(make_rng().integers(low, high, tuple(shape)), dtype)


def draw_scales(count: int) -> tuple[list[int], list[int]]:
    rng = make_rng()
    return rng.integers(1 << 30, (1 << 31) - 1, count).tolist(), rng.integers(36, 42, count).tolist()


def quantize(b: Builder, acc: Value, dtype: DType = I8, **more: Any) -> Value:
    """A rescale with one factor per channel."""
    if acc.dtype is I48:
        factor, shift = [20000 + 100 * i for i in range(acc.shape[-1])], [28] * acc.shape[-1]
        return ops.rescale(b, acc, dtype, multiplier=factor, shift=shift, scale32=False, per_channel=True)
    factor, shift = draw_scales(acc.shape[-1])
    return ops.rescale(b, acc, dtype, multiplier=factor, shift=shift, per_channel=True, **more)
