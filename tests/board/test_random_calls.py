"""Kernels with arguments that are changed at random: a status or a result, never a bad access."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from support.firmware import GCC, Ended, Firmware
from support.handmade import Same, Spec, Step, make_program
from support.kernel_calls import NUMPY, compute, make_step
from support.possible_calls import CALLS
from tosaic.board.kernels import list_kernels
from tosaic.formats.npy import Array

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
TYPES = (torch.float32, torch.int64, torch.int32, torch.int8, torch.bool)
NUMBERS = (*range(-3, 6), 17, 2**15, 2**31 - 1, 2**31, 2**32, 2**63 - 1, -(2**31), -(2**63))
DOUBLES = (0.0, 1.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"))


def _list_specs(items: Any) -> Iterator[Spec]:
    for item in items:
        if isinstance(item, list):
            yield from _list_specs(item)
        elif isinstance(item, Spec):
            yield item


class Changer:
    """Changes arguments of a call."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)

    def change(self, item: Any) -> Any:
        """Return another value of the same kind, or None."""
        draw = self.random
        if isinstance(item, Spec):
            return self._change_tensor(item)
        if isinstance(item, list):
            items = list(item)
            if items and draw.random() < 0.7:
                place = draw.randrange(len(items))
                items[place] = self.change(items[place])
            elif items and draw.random() < 0.5:
                items.pop()
            else:
                items.append(draw.randrange(3) if not any(isinstance(x, float | Spec) for x in items) else items[0])
            return type(item)(items)
        if isinstance(item, bool):
            return not item
        if isinstance(item, float):
            return draw.choice(DOUBLES)
        return draw.choice(NUMBERS) if item is not None else item

    def _change_tensor(self, spec: Spec) -> Spec:
        draw, shape, order = self.random, list(spec.shape), list(spec.order or range(len(spec.shape)))
        change = draw.randrange(5)
        if change == 0:
            return dataclasses.replace(spec, dtype=draw.choice(TYPES))
        if change == 1:
            draw.shuffle(order)
        elif change == 2 and shape:
            return dataclasses.replace(spec, shape=tuple(shape[1:]), order=())
        elif change == 3:
            return dataclasses.replace(spec, shape=(draw.choice((0, 1, 2)), *shape), order=())
        elif shape:
            shape[draw.randrange(len(shape))] = draw.choice((0, 1, 2, 3, 4, 7))
        return dataclasses.replace(spec, shape=tuple(shape), order=tuple(order))

    def change_step(self, step: Step) -> Step:
        args = list(step.args)
        for _ in range(self.random.choice((1, 1, 2))):
            place = self.random.randrange(len(args))
            args[place] = self.change(args[place])
        outs = [dataclasses.replace(out, unbound=True) for out in step.outs]
        place = self.random.randrange(len(outs))
        if self.random.random() < 0.3:
            outs[place] = dataclasses.replace(self._change_tensor(outs[place]), unbound=True)
        elif self.random.random() < 0.3 and isinstance(args[0], Spec):
            # The output is an input, or another output.
            args[0] = dataclasses.replace(args[0], unbound=True)
            outs[place] = Same(0)
        return dataclasses.replace(step, args=tuple(args), outs=tuple(outs))

    def fill(self, spec: Spec) -> Array:
        """Numbers, most of which may be indices."""
        count = int(np.prod(spec.shape))
        return np.array([self.random.choice((0, 0, 1, 1, 2, -1)) for _ in range(count)]).astype(NUMPY[spec.dtype])


def make_call(operator: str, seed: int) -> tuple[bytes, list[Array]]:
    """A call whose arguments are changed, and its inputs."""
    args, dtypes = CALLS[operator]
    shapes = [result.shape for result in compute(operator, args, dtypes)]
    step = make_step(operator, args, [Spec(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)])
    changer = Changer(f"{operator} {seed}")
    changed = changer.change_step(_leave(step))
    return make_program(changed), [changer.fill(spec) for spec in _list_specs(changed.args)]


def _leave(step: Step) -> Step:
    """Leave the inputs in the caller's memory, where every access outside them is seen."""

    def leave(item: Any) -> Any:
        if isinstance(item, list):
            return type(item)(leave(each) for each in item)
        return dataclasses.replace(item, planned=False) if isinstance(item, Spec) else item

    return dataclasses.replace(step, args=tuple(map(leave, step.args)))


def run(firmware: Firmware, data: bytes, inputs: list[Array]) -> Ended:
    """Run a call in a pool that ends where its results end."""
    planned = firmware.run(data, inputs).peaks[1]
    return firmware.run(data, inputs, pools=(1 << 20, planned, 0, 0))


@pytest.mark.parametrize("count", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_random_calls(firmware: Firmware, count: int) -> None:
    done = dict.fromkeys(CALLS, 0)
    for operator in CALLS:
        for seed in range(count):
            data, inputs = make_call(operator, seed)
            done[operator] += run(firmware, data, inputs).status == 0
    # Some changes do not matter: the calls are deep enough.
    assert sum(count > 0 for count in done.values()) > len(done) / 2


def test_every_kernel_has_a_call() -> None:
    """All kernels of the files that have calls; the one without can only be called in place."""
    files = {list_kernels()[operator].path for operator in CALLS}
    kernels = {operator for operator, kernel in list_kernels().items() if kernel.path in files}
    assert kernels - set(CALLS) == {"aten::index_put_"}
