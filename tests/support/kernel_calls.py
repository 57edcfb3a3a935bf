"""Calls of CPU kernels, in ExecuTorch's runtime and in the firmware's: the results must be the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from support.firmware import STATUSES, Ended, Firmware
from support.handmade import TYPES, Spec, Step, make_program
from tosaic.engines import executorch
from tosaic.formats.npy import Array

LAST = (0, 2, 3, 1)
FLOAT, LONG, INT, CHAR, BOOL = torch.float32, torch.int64, torch.int32, torch.int8, torch.bool
CODES = {dtype: int(kind) for dtype, (kind, _) in TYPES.items()}
NUMPY = {dtype: torch.empty(0, dtype=dtype).numpy().dtype for dtype in TYPES}
_TORCH = {kind: dtype for dtype, kind in NUMPY.items()}


@dataclass(frozen=True)
class Ordered:
    """An array whose dimensions are in another order in memory."""

    array: Array
    order: tuple[int, ...] = LAST


def draw(shape: tuple[int, ...], dtype: torch.dtype = FLOAT, seed: int = 0) -> Array:
    """Numbers of a type, the limits of the type among them."""
    rng = np.random.default_rng(seed)
    if dtype == FLOAT:
        return np.asarray(rng.normal(size=shape), np.float32)
    if dtype == BOOL:
        return np.asarray(rng.random(shape) < 0.3)
    limits = torch.iinfo(dtype)
    array = np.asarray(rng.integers(-100, 100, shape), NUMPY[dtype])
    array[rng.random(shape) < 0.1] = limits.min
    array[rng.random(shape) < 0.1] = limits.max
    return array


def specify(item: Any) -> Any:
    """The tensor of a program for an array, in lists too; anything else as it is."""
    if isinstance(item, list):
        return type(item)(specify(each) for each in item)
    if isinstance(item, Ordered):
        return Spec(item.array.shape, _TORCH[item.array.dtype], order=item.order)
    return Spec(item.shape, _TORCH[item.dtype]) if isinstance(item, np.ndarray) else item


def list_arrays(item: Any) -> Iterator[Array | Ordered]:
    """The arrays among arguments, in lists too."""
    if isinstance(item, list):
        for each in item:
            yield from list_arrays(each)
    elif isinstance(item, np.ndarray | Ordered):
        yield item


def to_torch(item: Any) -> Any:
    """The tensor of torch for an array, in lists too; anything else as it is."""
    if isinstance(item, list):
        return [to_torch(each) for each in item]
    if isinstance(item, Ordered):
        return torch.from_numpy(item.array)
    return torch.from_numpy(item.copy()) if isinstance(item, np.ndarray) else item


def compute(operator: str, args: Sequence[Any], dtypes: Sequence[torch.dtype]) -> list[Array]:
    """The results of torch's kernel."""
    name, _, overload = operator.removeprefix("aten::").partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload)
    parameters = [each for each in function._schema.arguments if not each.is_out]
    # A type is a number in a file.
    codes = {code: dtype for dtype, code in CODES.items()}
    named = {
        each.name: codes.get(value, value) if each.name == "dtype" else value
        for each, value in zip(parameters, map(to_torch, args), strict=True)
    }
    plain = [named.pop(each.name) for each in parameters if not each.kwarg_only]
    outs = [each.name for each in function._schema.arguments if each.is_out]
    results = {key: torch.empty(0, dtype=dtype) for key, dtype in zip(outs, dtypes, strict=True)}
    function(*plain, **named, **results)
    return [result.numpy() for result in results.values()]


def make_step(operator: str, args: Sequence[Any], outs: Sequence[Spec]) -> Step:
    name, _, overload = operator.partition(".")
    return Step(name, overload, tuple(specify(item) for item in args), tuple(outs))


def run_steps(firmware: Firmware, steps: Sequence[Step], args: Sequence[Any]) -> tuple[str, Ended]:
    """Run calls in the firmware's runtime, which takes inputs as they are in memory."""
    given = [
        item.array.transpose(item.order) if isinstance(item, Ordered) else item for item in list_arrays(list(args))
    ]
    ended = firmware.run(make_program(*steps), given)
    return STATUSES[ended.status], ended


def run(firmware: Firmware, operator: str, args: Sequence[Any], outs: Sequence[Spec]) -> tuple[str, Ended]:
    """Run one call in the firmware's runtime."""
    return run_steps(firmware, [make_step(operator, args, outs)], args)


class Comparison:
    """Calls that run as one program in both runtimes."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._args: list[Any] = []
        self._expected: list[list[Array]] = []

    def add(
        self,
        operator: str,
        *args: Any,
        outs: Sequence[torch.dtype] = (torch.float32,),
        order: tuple[int, ...] = (),
    ) -> None:
        """Add a call whose results have these types; those of the rank of `order` have it."""
        results = compute(operator, args, outs)
        specs = [
            Spec(result.shape, dtype, order=order if result.ndim == len(order) else ())
            for result, dtype in zip(results, outs, strict=True)
        ]
        self._steps.append(make_step(operator, args, specs))
        self._args.append(list(args))
        self._expected.append(results)

    def check(self, firmware: Firmware, *, against_torch: bool = False) -> None:
        """Compare with ExecuTorch's results, or with torch's where ExecuTorch's kernel fails."""
        arrays = [item.array if isinstance(item, Ordered) else item for item in list_arrays(self._args)]
        expected = [result for results in self._expected for result in results]
        if not against_torch:
            expected = executorch.run(make_program(*self._steps), arrays)
        status, ended = run_steps(firmware, self._steps, self._args)
        assert status == "OK", (status, ended, self._args[ended.instruction : ended.instruction + 1])
        places = [(step.name, args) for step, args in zip(self._steps, self._args, strict=True) for _ in step.outs]
        for ours, theirs, where in zip(ended.outputs, expected, places, strict=True):
            assert ours.shape == theirs.shape, where
            check(ours, theirs, where)


def check(ours: Array, theirs: Array, where: Any) -> None:
    assert ours.dtype == theirs.dtype
    if ours.dtype != np.float32:
        assert np.array_equal(ours, theirs), (where, ours, theirs)
        return
    finite = np.isfinite(theirs)
    assert np.array_equal(ours[~finite], theirs[~finite], equal_nan=True), (where, ours, theirs)
    limit = 1e-5 * max(1.0, np.abs(theirs[finite]).max(initial=0.0))
    assert np.all(np.abs(np.subtract(ours[finite], theirs[finite])) <= limit), (where, ours, theirs)
