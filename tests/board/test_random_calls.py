"""Every kernel with random arguments, of the right kinds but rarely possible: a status or a result, never a bad access."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from support.firmware import GCC, Firmware
from support.handmade import Optionals, Same, Spec, Step, make_program
from support.kernel_calls import NUMPY
from tosaic.board.kernels import list_kernels

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc")
TYPES = (torch.float32, torch.int64, torch.int32, torch.int8, torch.bool)
NUMBERS = (*range(-3, 6), 17, 2**15, 2**31 - 1, 2**31, 2**32, 2**63 - 1, -(2**31), -(2**63))


class Caller:
    """Draws the arguments of a call. Tensors are mostly of one type and of similar shapes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.shape = tuple(self.random.choice((0, 1, 1, 2, 2, 3, 4)) for _ in range(self.random.randrange(6)))
        self.dtype = self.random.choice(TYPES)
        self.specs: list[Spec] = []
        self.small = self.random.random() < 0.7

    def draw_tensor(self, unbound: bool = False) -> Spec:
        shape = list(self.shape)
        for _ in range(self.random.choice((0, 0, 1, 2))):
            change = self.random.randrange(3)
            if change == 0 and shape:
                shape.pop(self.random.randrange(len(shape)))
            elif change == 1:
                shape.insert(self.random.randrange(len(shape) + 1), self.random.choice((1, 2, 3)))
            elif shape:
                shape[self.random.randrange(len(shape))] = self.random.choice((1, 2, 3, 5))
        order = list(range(len(shape)))
        if self.random.random() < 0.2:
            self.random.shuffle(order)
        dtype = self.dtype if self.random.random() < 0.6 else self.random.choice(TYPES)
        return Spec(tuple(shape), dtype, unbound=unbound, order=tuple(order))

    def draw_number(self) -> int:
        return self.random.randrange(-2, 4) if self.small else self.random.choice(NUMBERS)

    def draw_list(self, draw: Callable[[], Any]) -> list[Any]:
        return [draw() for _ in range(self.random.randrange(4))]

    def draw_double(self) -> float:
        return self.random.choice((0.0, 1.0, 0.5, 2.7, -1.0, 1e300, float("nan"), float("inf")))

    def take(self, letter: str) -> Any:
        draws: dict[str, Callable[[], Any]] = {
            "T": lambda: self.draw_tensor(self.random.random() < 0.3),
            "O": lambda: self.draw_tensor(True),
            "i": self.draw_number,
            "d": lambda: self.random.choice((self.draw_number(), self.draw_double(), True)),
            "r": self.draw_number,
            "b": lambda: self.random.random() < 0.5,
            "s": lambda: self.random.choice(("trunc", "floor", "none", "tanh", "")),
            "I": lambda: self.draw_list(self.draw_number),
            "D": lambda: [self.draw_double(), self.draw_double()],
            "B": list,
            "L": lambda: [self.draw_tensor(), *self.draw_list(self.draw_tensor)],
            "W": lambda: [self.draw_tensor(True), *self.draw_list(lambda: self.draw_tensor(True))],
            "l": lambda: Optionals([self.draw_tensor(), *self.draw_list(self.draw_index)]),
            "*": lambda: self.draw_number(),
        }
        return draws[letter]()

    def draw_index(self) -> Spec | None:
        spec = self.draw_tensor()
        return None if self.random.random() < 0.3 else Spec(spec.shape[:2], self.random.choice(TYPES[1:]))

    def fill(self, spec: Spec) -> Any:
        """Numbers that may be indices."""
        values = [
            self.random.choice((0, 1, 2, 3, -1, 2**40 if not self.small else 1))
            for _ in range(int(np.prod(spec.shape)))
        ]
        return np.array(values).astype(NUMPY[spec.dtype])


def make_call(name: str, signature: str, seed: int) -> tuple[bytes, list[Any]]:
    caller = Caller(seed)
    operator, _, overload = name.partition(".")
    items: list[Any] = []
    for letter, optional in re.findall(r"(.)(\??)", signature):
        items.append(None if optional and caller.random.random() < 0.4 else caller.take(letter))
    outs = signature.replace("?", "")
    first = next((i for i, letter in enumerate(outs) if letter in "OWr"), len(items))
    if first and caller.random.random() < 0.2 and isinstance(items[0], Spec) and first < len(items):
        items[first] = Same(0)  # the output is an input
    step = Step(operator, overload, tuple(items[:first]), tuple(items[first:]))
    arrays: list[Any] = []
    for item in items[:first]:
        arrays += [caller.fill(x) for x in (item if isinstance(item, list) else [item]) if isinstance(x, Spec)]
    return make_program(step), arrays


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_random_calls(firmware: Firmware, count: int) -> None:
    ended = 0
    for name, kernel in list_kernels().items():
        for seed in range(count):
            data, arrays = make_call(name, kernel.signature, seed)
            ended += firmware.run(data, arrays).status == 0
    assert ended > 0
