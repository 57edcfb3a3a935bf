"""Calls of CPU kernels, in ExecuTorch's runtime, in torch and in the firmware's: the results must be the same."""

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


#: "How we compare": floats relative to the larger of 1 and the expected number, each one.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Ordered:
    """An array whose dimensions are in another order in memory."""

    array: Array
    order: tuple[int, ...] = LAST


@dataclass(frozen=True)
class Case:
    """A call: arrays among the arguments are inputs; `outs` are given where torch's operator does not tell them.

    `by_torch` is for calls that ExecuTorch's kernel refuses, or computes in another way than torch.
    """

    operator: str
    args: tuple[Any, ...]
    outs: tuple[Any, ...] = ()
    by_torch: bool = False


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
    """The results of torch's kernel with `out`."""
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


def find_function(operator: str) -> Any:
    """The operator without `out`, which has the same arguments."""
    namespace, _, rest = operator.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    wanted = [(arg.name, str(arg.type)) for arg in getattr(packet, overload)._schema.arguments if not arg.is_out]
    for other in packet.overloads():
        schema = getattr(packet, other)._schema
        names = [(arg.name, str(arg.type)) for arg in schema.arguments]
        if names == wanted and not any(arg.is_out for arg in schema.arguments):
            return getattr(packet, other), schema
    raise LookupError(operator)


def compute_case(case: Case) -> list[torch.Tensor]:
    """The results of torch's operator without `out`."""
    function, schema = find_function(case.operator)
    positional = [to_torch(item) for item in case.args]
    count = sum(not arg.kwarg_only for arg in schema.arguments)
    named = {arg.name: value for arg, value in zip(schema.arguments[count:], positional[count:], strict=False)}
    result = function(*positional[:count], **named)
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _make_outs(case: Case) -> tuple[Any, ...]:
    results = compute_case(case)
    order = next((item.order for item in list_arrays(list(case.args)) if isinstance(item, Ordered)), ())
    specs = [Spec(tuple(result.shape), result.dtype, order=order) for result in results]
    returns = find_function(case.operator)[1].returns
    return (specs,) if "List" in str(returns[0].type) else (specs[0],)


def make_step(operator: str, args: Sequence[Any], outs: Sequence[Any]) -> Step:
    name, _, overload = operator.partition(".")
    return Step(name, overload, tuple(map(specify, args)), tuple(outs))


def make_pte(cases: Sequence[Case]) -> bytes:
    """Write a program that makes these calls, each with its own inputs and outputs."""
    return make_program(*(make_step(case.operator, case.args, case.outs or _make_outs(case)) for case in cases))


def list_inputs(cases: Sequence[Case], *, in_memory: bool) -> list[Array]:
    """The inputs of a program; in the order that they have in memory if asked for."""
    arrays: list[Array] = []
    for item in (item for case in cases for item in list_arrays(list(case.args))):
        array = item.array if isinstance(item, Ordered) else item
        arrays.append(array.transpose(item.order) if in_memory and isinstance(item, Ordered) else array)
    return arrays


def run(firmware: Firmware, operator: str, args: Sequence[Any], outs: Sequence[Spec]) -> tuple[str, Ended]:
    """Run one call in the firmware's runtime."""
    case = Case(operator, tuple(args), tuple(outs))
    ended = firmware.run(make_pte([case]), list_inputs([case], in_memory=True))
    return STATUSES[ended.status], ended


def compare(firmware: Firmware, cases: Sequence[Case], expected: Sequence[Array] | None = None) -> list[str]:
    """Run calls as one program; say where the results are not the expected ones, which by default are ExecuTorch's."""
    data = make_pte(cases)
    if expected is None:
        expected = executorch.run(data, list_inputs(cases, in_memory=False))
    ended = firmware.run(data, list_inputs(cases, in_memory=True))
    if ended.status:
        return [f"{STATUSES[ended.status]}: call {ended.instruction}, {cases[ended.instruction]}"]
    assert len(ended.outputs) == len(expected)
    found = map(find_difference, ended.outputs, expected)
    return [f"output {index}: {text}" for index, text in enumerate(found) if text]


def find_difference(ours: Array, theirs: Array) -> str:
    """Say where two results differ; nothing if they do not. Integers are equal, floats near each other, each one."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return f"{ours.dtype}{ours.shape} is not {theirs.dtype}{theirs.shape}"
    if ours.dtype.kind != "f":
        bad = ours != theirs
    else:
        tolerance = TOLERANCE if ours.dtype == np.float32 else 0
        with np.errstate(all="ignore"):
            near = np.abs(np.subtract(ours, theirs)) <= tolerance * np.maximum(1, np.abs(theirs))
        bad = ~(near | (ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
    if not bad.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(bad)) if bad.ndim else ()
    return f"{int(bad.sum())} of {bad.size} differ, first at {at}: {ours[at]} is not {theirs[at]}"


class Comparison:
    """Calls that run as one program in both runtimes, and whose results have given types."""

    def __init__(self) -> None:
        self._cases: list[Case] = []
        self._expected: list[Array] = []

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
        self._cases.append(Case(operator, args, tuple(specs)))
        self._expected += results

    def check(self, firmware: Firmware, *, against_torch: bool = False) -> None:
        """Compare with ExecuTorch's results, or with torch's where ExecuTorch's kernel fails."""
        assert compare(firmware, self._cases, self._expected if against_torch else None) == []
