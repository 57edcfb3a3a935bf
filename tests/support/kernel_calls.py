"""Calls of CPU kernels, in ExecuTorch's runtime and in the firmware's: the results must be the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from support.firmware import Ended, Firmware
from support.handmade import TYPES, Spec, call
from tosaic.board.kernels import FIRMWARE
from tosaic.engines import executorch
from tosaic.formats.npy import Array

LAST = (0, 2, 3, 1)
STATUSES = re.findall(
    r"^    TOSAIC_(\w+)(?: = 0)?,",
    (FIRMWARE / "tosaic.h").read_text().partition("TOSAIC_STATUS_COUNT")[0],
    re.MULTILINE,
)
_TORCH = {torch.empty(0, dtype=dtype).numpy().dtype: dtype for dtype in TYPES}


@dataclass(frozen=True)
class Ordered:
    """An array whose dimensions are in another order in memory."""

    array: Array
    order: tuple[int, ...] = LAST


def _specify(item: Any) -> Any:
    if isinstance(item, list):
        return [_specify(each) for each in item]
    if isinstance(item, Ordered):
        return Spec(item.array.shape, _TORCH[item.array.dtype], order=item.order)
    return Spec(item.shape, _TORCH[item.dtype]) if isinstance(item, np.ndarray) else item


def _list_arrays(item: Any) -> Iterator[Array | Ordered]:
    if isinstance(item, list):
        for each in item:
            yield from _list_arrays(each)
    elif isinstance(item, np.ndarray | Ordered):
        yield item


def _to_torch(item: Any) -> Any:
    if isinstance(item, list):
        return [_to_torch(each) for each in item]
    if isinstance(item, Ordered):
        return torch.from_numpy(item.array)
    return torch.from_numpy(item.copy()) if isinstance(item, np.ndarray) else item


def find_shapes(operator: str, args: Sequence[Any], dtypes: Sequence[torch.dtype]) -> list[tuple[int, ...]]:
    """The shapes of the results, from torch's kernel."""
    name, _, overload = operator.removeprefix("aten::").partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload)
    parameters = [each for each in function._schema.arguments if not each.is_out]
    values = [_to_torch(item) for item in args]
    # ScalarType is a number in a file.
    codes = {int(kind): dtype for dtype, (kind, _) in TYPES.items()}
    named = {
        each.name: codes.get(value, value) if each.name == "dtype" else value
        for each, value in zip(parameters, values, strict=True)
    }
    plain = [named.pop(each.name) for each in parameters if not each.kwarg_only]
    outs = [each.name for each in function._schema.arguments if each.is_out]
    results = {key: torch.empty(0, dtype=dtype) for key, dtype in zip(outs, dtypes, strict=True)}
    function(*plain, **named, **results)
    return [tuple(result.shape) for result in results.values()]


def make(operator: str, args: Sequence[Any], outs: Sequence[Spec]) -> bytes:
    """A .pte with one call."""
    name, _, overload = operator.partition(".")
    return call(name, overload, [_specify(item) for item in args], *outs)


def run(firmware: Firmware, operator: str, args: Sequence[Any], outs: Sequence[Spec]) -> tuple[str, Ended]:
    """Run a call in the firmware's runtime."""
    given = [
        item.array.transpose(item.order) if isinstance(item, Ordered) else item for item in _list_arrays(list(args))
    ]
    ended = firmware.run(make(operator, args, outs), given)
    return STATUSES[ended.status], ended


def compare(
    firmware: Firmware,
    operator: str,
    *args: Any,
    outs: Sequence[torch.dtype] = (torch.float32,),
    shapes: Sequence[tuple[int, ...]] = (),
    order: tuple[int, ...] = (),
) -> list[Array]:
    """Run a call in both runtimes and compare: integers exactly, floats within 1e-5 of the largest number."""
    shapes = shapes or find_shapes(operator, args, outs)
    specs = [
        Spec(shape, dtype, order=order if len(shape) == len(order) else ())
        for shape, dtype in zip(shapes, outs, strict=True)
    ]
    arrays = [item.array if isinstance(item, Ordered) else item for item in _list_arrays(list(args))]
    expected = executorch.run(make(operator, args, specs), arrays)
    status, ended = run(firmware, operator, args, specs)
    assert status == "OK", (operator, args, status)
    for ours, theirs in zip(ended.outputs, expected, strict=True):
        assert ours.shape == theirs.shape, operator
        check(ours, theirs, (operator, args))
    return ended.outputs


def check(ours: Array, theirs: Array, where: Any) -> None:
    assert ours.dtype == theirs.dtype
    if ours.dtype != np.float32:
        assert np.array_equal(ours, theirs), (where, ours, theirs)
        return
    finite = np.isfinite(theirs)
    assert np.array_equal(ours[~finite], theirs[~finite], equal_nan=True), (where, ours, theirs)
    limit = 1e-5 * max(1.0, np.abs(theirs[finite]).max(initial=0.0))
    assert np.all(np.abs(ours[finite] - theirs[finite]) <= limit), (where, ours, theirs)
