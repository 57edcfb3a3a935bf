"""Makes a .pte of a kernel call, and compares what two runtimes give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from support.handmade import Spec, Step, make_program
from support.kernel_calls import Ordered, list_arrays, specify, to_torch
from support.kernel_cases import Case
from tosaic.formats.npy import Array

#: "How we compare".
TOLERANCE = 1e-5


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
    positional = [to_torch(item) for item in case.args]
    count = sum(not arg.kwarg_only for arg in schema.arguments)
    named = {arg.name: value for arg, value in zip(schema.arguments[count:], positional[count:], strict=False)}
    result = function(*positional[:count], **named)
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _make_outs(case: Case) -> tuple[Any, ...]:
    results = compute(case)
    order = next((item.order for item in list_arrays(list(case.args)) if isinstance(item, Ordered)), ())
    specs = [Spec(tuple(result.shape), result.dtype, order=order) for result in results]
    returns = _find_function(case.operator)[1].returns
    return (specs,) if "List" in str(returns[0].type) else (specs[0],)


def make_pte(cases: Sequence[Case]) -> bytes:
    """Write a program that makes these calls, each with its own inputs and outputs."""
    steps: list[Step] = []
    for case in cases:
        name, _, overload = case.operator.partition(".")
        steps.append(Step(name, overload, tuple(map(specify, case.args)), case.outs or _make_outs(case)))
    return make_program(*steps)


def list_inputs(cases: Sequence[Case], *, in_memory: bool) -> list[Array]:
    """The inputs of a program; in the order that they have in memory if asked for."""
    arrays: list[Array] = []
    for item in (item for case in cases for item in list_arrays(list(case.args))):
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
