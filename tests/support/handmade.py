"""Programs made by hand, as no compiler writes them: one kernel or a few, with any arguments and any plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from executorch.exir import schema
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.scalar_type import ScalarType

TYPES = {
    torch.float32: (ScalarType.FLOAT, 4),
    torch.float64: (ScalarType.DOUBLE, 8),
    torch.float16: (ScalarType.HALF, 2),
    torch.int64: (ScalarType.LONG, 8),
    torch.int32: (ScalarType.INT, 4),
    torch.int16: (ScalarType.SHORT, 2),
    torch.int8: (ScalarType.CHAR, 1),
    torch.uint8: (ScalarType.BYTE, 1),
    torch.bool: (ScalarType.BOOL, 1),
    torch.complex64: (ScalarType.COMPLEX64, 8),
}


@dataclass(frozen=True)
class Spec:
    """A tensor of the program; without `planned` it has no place in the planned memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    planned: bool = True
    unbound: bool = False
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class Same:
    """A value that the program has already, by its number."""

    number: int


class Optionals(list[Any]):
    """A list of tensors, some of which may be missing, even if none is."""


@dataclass(frozen=True)
class Step:
    """A call of a kernel. Tensors among `args` are inputs of the program, `outs` its outputs."""

    name: str
    overload: str
    args: tuple[Any, ...]
    outs: tuple[Any, ...]


class _Plan:
    def __init__(self) -> None:
        self.values: list[schema.EValue] = []
        self.inputs: list[int] = []
        self.size = 64

    def add(self, item: Any, *, given: bool) -> int:
        """The index of a value; a list of numbers or tensors becomes several values."""
        value: Any = None
        if isinstance(item, Same):
            return item.number
        if isinstance(item, Spec):
            value = self._make_tensor(item)
        elif isinstance(item, list) and any(isinstance(x, Spec) for x in item):
            value = schema.OptionalTensorList([-1 if x is None else self.add(x, given=given) for x in item])
            if None not in item and not isinstance(item, Optionals):
                value = schema.TensorList(value.items)
        elif isinstance(item, list) and item and isinstance(item[0], float):
            value = schema.DoubleList(item)
        elif isinstance(item, list):
            value = schema.IntList([self.add(x, given=False) for x in item])
        elif item is None:
            value = schema.Null()
        else:
            kinds = {bool: schema.Bool, int: schema.Int, float: schema.Double, str: schema.String}
            value = kinds[type(item)](item)
        self.values.append(schema.EValue(value))
        if given and isinstance(item, Spec):
            self.inputs.append(len(self.values) - 1)
        return len(self.values) - 1

    def _make_tensor(self, item: Spec) -> schema.Tensor:
        kind, width = TYPES[item.dtype]
        place = None
        if item.planned:
            place = schema.AllocationDetails(1, self.size & 0xFFFFFFFF, self.size >> 32)
            self.size += (math.prod(item.shape) * width + 15) // 16 * 16
        dynamism = schema.TensorShapeDynamism.DYNAMIC_UNBOUND if item.unbound else schema.TensorShapeDynamism.STATIC
        order = list(item.order or range(len(item.shape)))
        return schema.Tensor(kind, 0, list(item.shape), order, False, 0, 0, place, dynamism)


def make_program(
    *steps: Step,
    planned: int | None = None,
    moves: Sequence[tuple[int, int]] = (),
    jumps: Sequence[tuple[int, int]] = (),
    first: Sequence[tuple[int, int]] = (),
) -> bytes:
    """A .pte with these calls, then moves, then jumps: (value, instruction to go on with where it is false).

    `first` are jumps before the calls. `planned` is the memory it asks for, as much as it needs unless given.
    """
    plan, outputs, operators = _Plan(), [], []
    instructions = [schema.Instruction(schema.JumpFalseCall(*jump)) for jump in first]
    for number, step in enumerate(steps):
        args = [plan.add(item, given=True) for item in step.args]
        outs = [plan.add(item, given=False) for item in step.outs]
        for index in outs:
            held = plan.values[index].val
            outputs += held.items if isinstance(held, schema.TensorList) else [index]
        # A kernel's result comes after what it fills, and is the same; several are one list.
        result = outs if "out" in step.overload else []
        if len(outs) > 1 and all(isinstance(item, Spec) for item in step.outs):
            plan.values.append(schema.EValue(schema.TensorList(outs)))
            result = [len(plan.values) - 1]
        instructions.append(schema.Instruction(schema.KernelCall(number, [*args, *outs, *result])))
        operators.append(schema.Operator(step.name, step.overload))
    instructions += [schema.Instruction(schema.MoveCall(*move)) for move in moves]
    instructions += [schema.Instruction(schema.JumpFalseCall(*jump)) for jump in jumps]
    made = schema.ExecutionPlan(
        "forward",
        schema.ContainerMetadata("", ""),
        plan.values,
        plan.inputs,
        outputs,
        [schema.Chain([], [], instructions, None)],
        operators,
        [],
        [0, plan.size if planned is None else planned],
    )
    program = schema.Program(0, [made], [schema.Buffer(b"")], [], [], schema.SubsegmentOffsets(0, []))
    return bytes(serialize_pte_binary(PTEFile(program)))


def call(name: str, overload: str, args: Sequence[Any], *outs: Any) -> bytes:
    """A .pte with one call."""
    return make_program(Step(name, overload, tuple(args), outs))


def loop(step: Step) -> bytes:
    """A .pte that calls this kernel again and again."""
    never = Step("executorch_prim::eq", "Scalar", (1, 2), (False,))
    return make_program(never, step, jumps=[(2, 1)])
