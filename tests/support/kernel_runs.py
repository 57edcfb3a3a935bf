"""Makes a .pte of a kernel call, and compares what two runtimes give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from support.handmade import Spec, Step, make_program
from support.kernel_cases import Case, Ordered
from tosaic.formats.npy import Array

#: "How we compare".
TOLERANCE = 1e-5


def _make_spec(item: Any) -> Any:
    if isinstance(item, list):
        return [_make_spec(part) for part in item]
    array = item.array if isinstance(item, Ordered) else item
    if not isinstance(array, np.ndarray):
        return item
    return Spec(array.shape, torch.from_numpy(array).dtype, order=item.order if isinstance(item, Ordered) else ())


def _to_torch(item: Any) -> Any:
    if isinstance(item, list):
        return [_to_torch(part) for part in item]
    array = item.array if isinstance(item, Ordered) else item
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else item


def list_inputs(case: Case) -> list[np.ndarray[Any, Any] | Ordered]:
    flat = [part for item in case.args for part in (item if isinstance(item, list) else [item])]
    return [item for item in flat if isinstance(item, np.ndarray | Ordered)]


def _find_function(operator: str) -> Any:
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


def compute(case: Case) -> list[torch.Tensor]:
    """The results of torch."""
    function, schema = _find_function(case.operator)
    positional = [_to_torch(item) for item in case.args]
    count = sum(not arg.kwarg_only for arg in schema.arguments)
    named = {arg.name: value for arg, value in zip(schema.arguments[count:], positional[count:], strict=False)}
    result = function(*positional[:count], **named)
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _make_outs(case: Case) -> tuple[Any, ...]:
    results = compute(case)
    order = next((item.order for item in list_inputs(case) if isinstance(item, Ordered)), ())
    specs = [Spec(tuple(result.shape), result.dtype, order=order) for result in results]
    returns = _find_function(case.operator)[1].returns
    return (specs,) if "List" in str(returns[0].type) else (specs[0],)


def make_pte(cases: Sequence[Case]) -> bytes:
    """Write a program that makes these calls, each with its own inputs and outputs."""
    steps: list[Step] = []
    for case in cases:
        name, _, overload = case.operator.partition(".")
        steps.append(Step(name, overload, tuple(map(_make_spec, case.args)), case.outs or _make_outs(case)))
    return make_program(*steps)


def list_arrays(cases: Sequence[Case], *, in_memory: bool) -> list[Array]:
    """The inputs of a program; in the order that they have in memory if asked for."""
    arrays: list[Array] = []
    for item in (item for case in cases for item in list_inputs(case)):
        array = item.array if isinstance(item, Ordered) else item
        arrays.append(array.transpose(item.order) if in_memory and isinstance(item, Ordered) else array)
    return arrays


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
