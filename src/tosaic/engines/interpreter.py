"""Interprets a .pte file: CPU kernels by torch, delegates by the given executors, memory as the file plans it.

The memory plan is followed for more than its sizes: exir omits a reshape from the program and places its result in the
memory of its input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tosaic import npu
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.engines.kernels import Kernel
from tosaic.engines.run import Call, Run
from tosaic.formats import blob as ethosu_blob
from tosaic.formats import pte as model
from tosaic.formats import vgf as vgf_reader
from tosaic.formats.blob import BACKEND, find_fast_scratch
from tosaic.formats.npy import Array
from tosaic.formats.pte import Plan, Pte, Tensor
from tosaic.formats.tensors import Memory, TensorType, order_in_memory, type_of
from tosaic.formats.tosa_reader import read as read_tosa
from tosaic.npu.machine import Trace
from tosaic.npu.weights import WeightCache
from tosaic.tools.vela import Slot

#: A bound for files that loop; a network has a few thousand instructions.
MAX_STEPS = 1_000_000
#: The number of inputs that a blob declares, by the backend that it is for.
_COUNT_INPUTS: Mapping[str, Callable[[bytes, Budget], int]] = {
    "TOSABackend": lambda blob, budget: len(read_tosa(blob, budget).inputs),
    "VgfBackend": lambda blob, budget: len(vgf_reader.read(blob, budget).inputs),
}


#: Computes one delegate: (blob, compile specs, inputs, types of the outputs) -> outputs. Arrays are in memory order.
Executor: TypeAlias = Callable[[bytes, Sequence[tuple[str, bytes]], list[Array], list[TensorType]], list[Array]]


def list_calls(plan: Plan) -> list[Call]:
    """List the calls of a program without jumps, for an engine that does not report them."""
    calls: list[Call] = []
    for at, step in (pair for chain in plan.chains for pair in enumerate(chain.instructions)):
        match step:
            case model.KernelCall(index):
                calls.append(Call("kernel", str(plan.operators[index]), index, at))
            case model.DelegateCall(index):
                calls.append(Call("delegate", plan.delegates[index].id, index, at))
            case _:
                pass
    return calls


@dataclass(frozen=True, slots=True)
class Npu:
    """The executor for `EthosUBackend`: the built-in simulator. It keeps decoded weights for the next run.

    The checks stop where a real NPU would continue with a wrong result: at a read of unwritten memory, and at a
    missing wait in the command stream.
    """

    check_uninitialized: bool = False
    check_waits: bool = False
    trace: Trace | None = None
    budget: Budget | None = None
    weights: WeightCache | None = None

    def __post_init__(self) -> None:
        if self.weights is None:
            object.__setattr__(self, "weights", WeightCache(budget=self.budget))

    def __call__(
        self, blob: bytes, specs: Sequence[tuple[str, bytes]], inputs: list[Array], outputs: list[TensorType]
    ) -> list[Array]:
        results = npu.run_blob(
            blob,
            inputs,
            [output.dtype for output in outputs],
            fast_scratch_size=find_fast_scratch(specs),
            trace=self.trace,
            check_uninitialized=self.check_uninitialized,
            check_waits=self.check_waits,
            cache=self.weights,
            budget=self.budget,
        )
        # The blob's shapes have six dimensions.
        return [array.reshape(output.shape) for array, output in zip(results, outputs, strict=True)]


class Method:
    """A method of a program, ready to run. Its memory persists between runs, for models with state."""

    def __init__(
        self,
        pte: Pte,
        name: str = "forward",
        *,
        executors: Mapping[str, Executor] | None = None,
        max_steps: int = MAX_STEPS,
        max_memory: int | None = None,
        weights: WeightCache | None = None,
    ) -> None:
        self.pte, self.plan, self.max_steps = pte, pte.find(name), max_steps
        #: What a run may still take: the planned memory, inputs and outputs are already counted.
        self.budget = take_plan(pte, self.plan, max_memory)
        #: The executors by backend id: the simulated NPU, unless the caller provides others.
        self.executors: Mapping[str, Executor] = (
            {BACKEND: Npu(budget=self.budget, weights=weights)} if executors is None else executors
        )
        #: The calls of the last run, in order.
        self.calls: list[Call] = []
        #: The kernels by operator, and the bytes and work of calls, by call and the types of its arguments.
        self.kernels: dict[int, Kernel] = {}
        self.sizes: dict[object, tuple[int, int]] = {}
        self._splits = _split_delegate_args(self.plan, self.budget)
        self._memory: Memory | None = None

    @property
    def inputs(self) -> list[TensorType]:
        """The types of the inputs; the largest where the program accepts several shapes."""
        return [self._get_type(index) for index in self.plan.inputs]

    @property
    def outputs(self) -> list[TensorType]:
        return [self._get_type(index) for index in self.plan.outputs]

    def _get_type(self, index: int) -> TensorType:
        value = self.plan.values[index]
        return type_of(value) if isinstance(value, Tensor) else TensorType(np.asarray(value).dtype, ())

    def check_inputs(self, arrays: Sequence[Array]) -> None:
        """Check that the program accepts these inputs."""
        if len(arrays) != len(self.plan.inputs):
            raise Invalid(f"{len(arrays)} inputs were given, but the program takes {len(self.plan.inputs)}")
        for position, (index, array) in enumerate(zip(self.plan.inputs, arrays, strict=True)):
            spec = self.plan.values[index]
            if isinstance(spec, Tensor):
                _check_input(position, array, spec)
            elif array.size != 1 or array.item() != _round(spec, array):
                raise Invalid(f"input {position} of the program is fixed to {spec!r}, but {array!r} was given")

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the method and return its outputs."""
        import torch

        self.check_inputs(inputs)
        if self._memory is None:
            self._memory = Memory(self.pte, self.plan, self.budget)
        run = Run(self, self._memory)
        self.calls = run.calls
        try:
            with torch.no_grad():
                run.set_inputs(inputs)
                for chain in self.plan.chains:
                    run.execute(chain.instructions)
                return [run.read_array(index) for index in self.plan.outputs]
        finally:
            run.free_all()

    def split(self, call: model.DelegateCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the arguments of a delegate into inputs and outputs."""
        count = self._splits[call]
        return call.args[:count], call.args[count:]


def take_plan(pte: Pte, plan: Plan, max_memory: int | None = None) -> Budget:
    """Make the budget of a program, less what it takes before it computes anything."""
    budget = pte.make_budget(max_memory)
    budget.take(sum(plan.planned_sizes), f"the planned memory of method `{plan.name}`")
    tensors = [value for index in (*plan.inputs, *plan.outputs) if isinstance(value := plan.values[index], Tensor)]
    budget.take(sum(tensor.nbytes for tensor in tensors), f"the inputs and outputs of method `{plan.name}`")
    return budget


def _split_delegate_args(plan: Plan, budget: Budget) -> dict[model.DelegateCall, int]:
    """Count the inputs among each delegate's arguments, from its blob or else from what is written before the call."""
    known = {*plan.inputs, *(i for i, v in enumerate(plan.values) if not isinstance(v, Tensor) or v.data is not None)}
    splits: dict[model.DelegateCall, int] = {}
    for step in plan.instructions:
        match step:
            case model.DelegateCall(delegate, args):
                count = max((i + 1 for i, arg in enumerate(args) if arg in known), default=0)
                if plan.delegates[delegate].id == BACKEND:
                    count = _check_io_tensors(plan, step)
                elif plan.delegates[delegate].id in _COUNT_INPUTS:
                    # A view shares the memory of another value, and no instruction writes it.
                    left = budget.left
                    count = _COUNT_INPUTS[plan.delegates[delegate].id](plan.delegates[delegate].blob, budget)
                    budget.give_back(left - budget.left)
                splits.setdefault(step, count)
                known |= set(args)
            case model.KernelCall(_, args):
                known |= set(args)
            case model.MoveCall(_, target):
                known.add(target)
            case _:
                pass
    return splits


def _check_io_tensors(plan: Plan, call: model.DelegateCall) -> int:
    """Check an Ethos-U delegate's I/O tensors against the table in its blob; return the number of inputs."""
    blob = ethosu_blob.unpack(plan.delegates[call.delegate].blob)
    ios = [*blob.inputs, *blob.outputs]
    if len(call.args) != len(ios):
        raise Invalid(
            f"delegate {call.delegate} is called with {len(call.args)} values",
            why=f"its blob has {len(blob.inputs)} inputs and {len(blob.outputs)} outputs",
        )
    for position, (index, io) in enumerate(zip(call.args, ios, strict=True)):
        side, number = ("input", position) if position < len(blob.inputs) else ("output", position - len(blob.inputs))
        _check_io_tensor(plan.values[index], io, f"{side} {number} of delegate {call.delegate}")
    return len(blob.inputs)


def _check_io_tensor(value: model.Value, io: Slot, what: str) -> None:
    if not isinstance(value, Tensor):
        raise Invalid(f"{what} is {value!r}, not a tensor")
    found = order_in_memory(value)
    # Vela folds a reshape at the boundary into the blob's shape, so only the number of elements must be the same.
    same = math.prod(found.shape) == math.prod(io.shape)
    if not same or found.dtype.itemsize != io.element_bytes or found.dtype.kind not in "iub" or io.element_bytes > 4:
        raise Invalid(
            f"{what} does not fit its blob",
            why=f"the program has {found}, the blob {io.element_bytes}-byte integers of shape {list(io.shape)}",
        )


def _round(number: object, array: Array) -> object:
    """Return a number of the program as an array of floats holds it."""
    return array.dtype.type(number).item() if isinstance(number, float) and array.dtype.kind == "f" else number


def _check_input(index: int, array: Array, spec: Tensor) -> None:
    """Check that an array fits an input of the program."""
    wanted, given = type_of(spec), TensorType(array.dtype, array.shape)
    within = spec.dynamism != "static" and len(given.shape) == len(wanted.shape)
    fits = given.shape == wanted.shape or (within and all(map(int.__le__, given.shape, wanted.shape)))
    if given.dtype != wanted.dtype or not fits:
        raise Invalid(
            f"input {index} is {given}, but the program takes {wanted}" + (" at most" if within else ""),
            fix=f"convert it to {wanted.dtype} with shape {list(wanted.shape)}",
        )
