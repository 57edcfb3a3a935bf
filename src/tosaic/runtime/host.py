"""Runs a .pte file here: CPU kernels by torch, delegates by the executors it is given, memory as the file plans it.

The plan is followed, and not only for its sizes: exir leaves a reshape out of the program altogether and gives its
result the place of its input.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tosaic import npu
from tosaic.errors import Invalid, TosaicError
from tosaic.ethosu import blob as ethosu_blob
from tosaic.npu.machine import Trace
from tosaic.npu.weights import WeightCache
from tosaic.runtime import pte as model
from tosaic.runtime.kernels import Kernel, Live, find_kernel
from tosaic.runtime.npy import Array
from tosaic.runtime.pte import Plan, Pte, Tensor
from tosaic.runtime.tensors import Memory, TensorType, from_array, lay_out, order_in_memory, to_array, type_of
from tosaic.tools.vela import IO
from tosaic.tosa.reader import read as read_tosa
from tosaic.vgf import reader as vgf_reader

if TYPE_CHECKING:
    import torch

#: A bound for files that loop; a network has a few thousand instructions.
MAX_STEPS = 1_000_000
#: What a program may ask for: an Ethos-U addresses 4 GiB.
MAX_PLANNED = 4 << 30
BACKEND = "EthosUBackend"
#: The memory mode in a compile spec. Without a size it means what the official runtime reserves.
_DEDICATED = re.compile(rb"Dedicated_Sram(?:_(\d{1,6})(KB|MB))?")
_DEDICATED_DEFAULT = 0x60000
#: How many inputs a blob says that it has, by the backend that it is for.
_COUNT_INPUTS: Mapping[str, Callable[[bytes], int]] = {
    "TOSABackend": lambda blob: len(read_tosa(blob).inputs),
    "VgfBackend": lambda blob: len(vgf_reader.read(blob).inputs),
}


#: Computes one delegate: (blob, compile specs, inputs, types of the outputs) -> outputs. Arrays are in memory order.
Executor: TypeAlias = Callable[[bytes, Sequence[tuple[str, bytes]], list[Array], list[TensorType]], list[Array]]


@dataclass(frozen=True, slots=True)
class Call:
    """One thing that the program did: a kernel or a delegate, by name; `index` counts the plan's delegates."""

    kind: Literal["kernel", "delegate"]
    name: str
    index: int


def list_calls(plan: Plan) -> list[Call]:
    """What a program does if it takes no jump: the calls of an engine that does not tell."""
    calls: list[Call] = []
    for step in (step for chain in plan.chains for step in chain.instructions):
        match step:
            case model.KernelCall(index):
                calls.append(Call("kernel", str(plan.operators[index]), index))
            case model.DelegateCall(index):
                calls.append(Call("delegate", plan.delegates[index].id, index))
            case _:
                pass
    return calls


def find_fast_scratch(specs: Sequence[tuple[str, bytes]]) -> int:
    """The bytes of SRAM that the NPU has for itself, by the memory mode that a blob was compiled for."""
    found = _DEDICATED.search(b" ".join(value for _, value in specs))
    if found is None:
        return 0
    return int(found[1]) * (1024 if found[2] == b"KB" else 1 << 20) if found[1] else _DEDICATED_DEFAULT


@dataclass(frozen=True, slots=True)
class Npu:
    """The executor for `EthosUBackend`: the built-in simulator. Keeps the weights it has decoded for the next run.

    The checks stop where a real NPU would go on with a wrong result: at memory that nothing has written, and at a wait
    that the command stream lacks.
    """

    check_uninitialised: bool = False
    check_waits: bool = False
    trace: Trace | None = None
    _cache: WeightCache = field(default_factory=WeightCache)

    def __call__(
        self, blob: bytes, specs: Sequence[tuple[str, bytes]], inputs: list[Array], outputs: list[TensorType]
    ) -> list[Array]:
        results = npu.run_blob(
            blob,
            inputs,
            [output.dtype for output in outputs],
            fast_scratch_size=find_fast_scratch(specs),
            trace=self.trace,
            check_uninitialised=self.check_uninitialised,
            check_waits=self.check_waits,
            cache=self._cache,
        )
        # The blob's shapes have six dimensions.
        return [array.reshape(output.shape) for array, output in zip(results, outputs, strict=True)]


class Method:
    """A method of a program, ready to run. What it keeps between runs is the memory, for models with a state."""

    def __init__(
        self,
        pte: Pte,
        name: str = "forward",
        *,
        executors: Mapping[str, Executor] | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.pte, self.plan, self.max_steps = pte, pte.find(name), max_steps
        #: The backends by their id: the simulated NPU, unless the caller has others.
        self.executors: Mapping[str, Executor] = {BACKEND: Npu()} if executors is None else executors
        #: What the last run did, in order.
        self.calls: list[Call] = []
        planned = sum(self.plan.planned_sizes)
        if planned > MAX_PLANNED:
            raise Invalid(f"method `{name}` plans {planned} bytes of memory", why=f"at most {MAX_PLANNED} are given")
        self._splits = _split_delegate_args(pte, self.plan)
        self._memory: Memory | None = None

    @property
    def inputs(self) -> list[TensorType]:
        """The types of the inputs; where the program takes several shapes, the largest."""
        return [self._border(index) for index in self.plan.inputs]

    @property
    def outputs(self) -> list[TensorType]:
        return [self._border(index) for index in self.plan.outputs]

    def _border(self, index: int) -> TensorType:
        value = self.plan.values[index]
        return type_of(value) if isinstance(value, Tensor) else TensorType(np.asarray(value).dtype, ())

    def check_inputs(self, arrays: Sequence[Array]) -> None:
        """Refuse inputs that the program does not take."""
        if len(arrays) != len(self.plan.inputs):
            raise Invalid(f"{len(arrays)} inputs were given, but the program takes {len(self.plan.inputs)}")
        for position, (index, array) in enumerate(zip(self.plan.inputs, arrays, strict=True)):
            spec = self.plan.values[index]
            if isinstance(spec, Tensor):
                _check_input(position, array, spec)
            elif array.size != 1 or array.item() != spec:
                raise Invalid(f"input {position} of the program is fixed to {spec!r}, but {array!r} was given")

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for these inputs."""
        import torch

        self.check_inputs(inputs)
        if self._memory is None:
            self._memory = Memory(self.pte, self.plan)
        with torch.no_grad():
            run = _Run(self, self._memory)
            run.set_inputs(inputs)
            self.calls = run.calls
            for chain in self.plan.chains:
                run.execute(chain.instructions)
            return [run.read_array(index) for index in self.plan.outputs]

    def split(self, call: model.DelegateCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The arguments of a delegate that go in, and those that come out."""
        count = self._splits[call]
        return call.args[:count], call.args[count:]


def _split_delegate_args(pte: Pte, plan: Plan) -> dict[model.DelegateCall, int]:
    """How many arguments of each delegate are inputs, which its blob says; else those that come from somewhere."""
    known = {*plan.inputs, *(i for i, v in enumerate(plan.values) if not isinstance(v, Tensor) or v.data is not None)}
    splits: dict[model.DelegateCall, int] = {}
    for chain in plan.chains:
        for step in chain.instructions:
            match step:
                case model.DelegateCall(delegate, args):
                    count = max((i + 1 for i, arg in enumerate(args) if arg in known), default=0)
                    if plan.delegates[delegate].id == BACKEND:
                        count = _check_borders(pte, plan, step)
                    elif plan.delegates[delegate].id in _COUNT_INPUTS:
                        # A view has memory of another value and no instruction that writes it.
                        count = _COUNT_INPUTS[plan.delegates[delegate].id](plan.delegates[delegate].blob)
                    splits.setdefault(step, count)
                    known |= set(args)
                case model.KernelCall(_, args):
                    known |= set(args)
                case model.MoveCall(_, target):
                    known.add(target)
                case _:
                    pass
    return splits


def _check_borders(pte: Pte, plan: Plan, call: model.DelegateCall) -> int:
    """Compare the tensors at an Ethos-U delegate's border with the table in its blob; gives the number of inputs."""
    blob = ethosu_blob.unpack(plan.delegates[call.delegate].blob, named=pte.named_data)
    ios = [*blob.inputs, *blob.outputs]
    if len(call.args) != len(ios):
        raise Invalid(
            f"delegate {call.delegate} is called with {len(call.args)} values",
            why=f"its blob has {len(blob.inputs)} inputs and {len(blob.outputs)} outputs",
        )
    for position, (index, io) in enumerate(zip(call.args, ios, strict=True)):
        side, number = ("input", position) if position < len(blob.inputs) else ("output", position - len(blob.inputs))
        _check_border(plan.values[index], io, f"{side} {number} of delegate {call.delegate}")
    return len(blob.inputs)


def _check_border(value: model.Value, io: IO, what: str) -> None:
    if not isinstance(value, Tensor):
        raise Invalid(f"{what} is no tensor but {value!r}")
    found = order_in_memory(value)
    # Vela folds a reshape at the border into the blob's shape, so only the number of elements is sure to be the same.
    same = math.prod(found.shape) == math.prod(io.shape)
    if not same or found.dtype.itemsize != io.elem_size or found.dtype.kind not in "iub" or io.elem_size > 4:
        raise Invalid(
            f"{what} does not fit its blob",
            why=f"the program has {found}, the blob {io.elem_size}-byte integers of shape {list(io.shape)}",
        )


def _check_input(index: int, array: Array, spec: Tensor) -> None:
    """Refuse an array that does not fit an input of the program."""
    wanted, given = type_of(spec), TensorType(array.dtype, array.shape)
    within = spec.dynamism != "static" and len(given.shape) == len(wanted.shape)
    fits = given.shape == wanted.shape or (within and all(map(int.__le__, given.shape, wanted.shape)))
    if given.dtype != wanted.dtype or not fits:
        raise Invalid(
            f"input {index} is {given}, but the program takes {wanted}" + (" at most" if within else ""),
            fix=f"convert it to {wanted.dtype} with shape {list(wanted.shape)}",
        )


class _Run:
    """One run: the values as they are now, by index."""

    def __init__(self, method: Method, memory: Memory) -> None:
        self.method, self.plan, self.memory = method, method.plan, memory
        self.live: dict[int, Live] = {}
        self.calls: list[Call] = []
        self._kernels: dict[int, Kernel] = {}
        self._steps = 0

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        for index, array in zip(self.plan.inputs, arrays, strict=True):
            spec = self.plan.values[index]
            if isinstance(spec, Tensor):
                self.write(index, from_array(array, spec.dtype), "the input")

    def execute(self, instructions: Sequence[model.Instruction]) -> None:
        at = 0
        while at < len(instructions):
            self._steps += 1
            if self._steps > self.method.max_steps:
                raise Invalid(f"the program does not end within {self.method.max_steps} instructions")
            step, at = instructions[at], at + 1
            match step:
                case model.KernelCall():
                    self._call_kernel(step, at - 1)
                case model.DelegateCall():
                    self._call_delegate(step)
                case model.MoveCall(source, target):
                    self.live[target] = self.read(source)
                case model.JumpFalseCall(condition, destination):
                    at = at if self._is_true(condition) else destination
                case model.FreeCall(value):
                    self.live.pop(value, None)

    def _is_true(self, index: int) -> bool:
        value = self.read(index)
        return bool(value) if isinstance(value, bool | int) else bool(self._read_tensor(index).all())

    def read(self, index: int) -> Live:
        """A value as a kernel takes it."""
        if index in self.live:
            return self.live[index]
        match self.plan.values[index]:
            case Tensor() as spec:
                value = self._first(index, spec)
                self.live[index] = value
                return value
            case model.IntList(items) | model.TensorList(items):
                return [self.read(item) for item in items]
            case model.OptionalTensorList(items):
                return [None if item < 0 else self.read(item) for item in items]
            case model.DoubleList(items) | model.BoolList(items):
                return list(items)
            case plain:
                return plain

    def _first(self, index: int, spec: Tensor) -> torch.Tensor:
        if spec.allocation is not None:
            return self.memory.place(spec, spec.shape)
        if spec.data is not None:
            return self.memory.read_constant(spec)
        why = f"its data are outside the file, under the name `{spec.name}`" if spec.external else "nothing has set it"
        raise Invalid(f"the program reads value {index}, which is not there", why=why)

    def _read_tensor(self, index: int) -> torch.Tensor:
        import torch

        value = self.read(index)
        if not isinstance(value, torch.Tensor):
            raise Invalid(f"value {index} of the program is {value!r} where a tensor is needed")
        return value

    def write(self, index: int, result: Live, what: str) -> None:
        """Put a result into a value, which must have its type and be large enough."""
        import torch

        spec = self.plan.values[index]
        if not isinstance(spec, Tensor) or not isinstance(result, torch.Tensor):
            if isinstance(spec, Tensor) or isinstance(result, torch.Tensor):
                raise Invalid(f"{what} gives {type(result).__name__} for value {index}, which is {spec!r}")
            self.live[index] = result
            return
        shape = tuple(result.shape)
        bound = spec.dynamism == "bound" and len(shape) == len(spec.shape) and all(map(int.__le__, shape, spec.shape))
        if shape != spec.shape and not bound and spec.dynamism != "unbound":
            raise Invalid(f"{what} gives shape {list(shape)} for value {index}, which has {list(spec.shape)}")
        if spec.allocation is None:
            self.live[index] = lay_out(result, spec)
        else:
            # The result may lie in the same memory, with another shape.
            self.live[index] = self.memory.place(spec, shape).copy_(result.clone())

    def _call_kernel(self, call: model.KernelCall, at: int) -> None:
        name = self.plan.operators[call.operator]
        where = f"instruction {at} of method `{self.plan.name}`"
        kernel = self._kernels.get(call.operator)
        if kernel is None:
            kernel = self._kernels[call.operator] = find_kernel(name)
        if len(call.args) < kernel.inputs + len(kernel.outs):
            raise Invalid(f"`{name}` is called with {len(call.args)} values, which are too few", where=where)
        self.calls.append(Call("kernel", str(name), call.operator))
        values = [self.read(index) for index in call.args[: kernel.inputs]]
        positional = [value for i, value in enumerate(values) if i not in kernel.names]
        named: dict[str, Live] = {label: values[i] for i, label in kernel.names.items()}
        outs = {label: self._make_out(call.args[i]) for i, label in kernel.outs.items()}
        try:
            result: Any = kernel.call(*positional, **named, **outs)
        except TosaicError:
            raise
        except Exception as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise Invalid(f"the kernel `{name}` failed", where=where, why=why) from error
        if kernel.outs:
            for i, label in kernel.outs.items():
                self._write_all(call.args[i], outs[label], f"`{name}`")
        else:
            several: list[Live] = list(result) if type(result) in (tuple, list) else [result]
            for index, item in zip(call.args[kernel.inputs :], several, strict=False):
                self._write_all(index, item, f"`{name}`")

    def _make_out(self, index: int) -> Live:
        """An empty tensor for a kernel to fill: torch gives it the shape of the result."""
        import torch

        spec = self.plan.values[index]
        if isinstance(spec, model.TensorList):
            return [self._make_out(item) for item in spec.items]
        if not isinstance(spec, Tensor):
            raise Invalid(f"value {index} of the program is {spec!r} where a kernel puts a tensor")
        return torch.empty(0, dtype=getattr(torch, spec.dtype))

    def _write_all(self, index: int, result: Live, what: str) -> None:
        spec = self.plan.values[index]
        if isinstance(spec, model.TensorList) and isinstance(result, list):
            for item, part in zip(spec.items, result, strict=True):
                self.write(item, part, what)
        else:
            self.write(index, result, what)

    def _call_delegate(self, call: model.DelegateCall) -> None:
        delegate = self.plan.delegates[call.delegate]
        executor = self.method.executors.get(delegate.id)
        if executor is None:
            known = ", ".join(f"`{name}`" for name in self.method.executors) or "none"
            raise Invalid(f"delegate {call.delegate} is for `{delegate.id}`", why=f"the backends here are: {known}")
        inputs, outputs = self.method.split(call)
        self.calls.append(Call("delegate", delegate.id, call.delegate))
        specs = [self._tensor_spec(index) for index in outputs]
        wanted = [order_in_memory(spec) for spec in specs]
        arrays = [self.read_array(index, in_memory_order=True) for index in inputs]
        results = executor(delegate.blob, delegate.compile_specs, arrays, wanted)
        given = [TensorType(array.dtype, array.shape) for array in results]
        if given != wanted:
            expected, found = (", ".join(map(str, types)) for types in (wanted, given))
            raise Invalid(f"delegate {call.delegate} gives {found}, but the program takes {expected}")
        for index, spec, array in zip(outputs, specs, results, strict=True):
            back = [spec.dim_order.index(dim) for dim in range(len(spec.shape))]
            self.write(index, from_array(array, spec.dtype).permute(back), f"delegate {call.delegate}")

    def _tensor_spec(self, index: int) -> Tensor:
        spec = self.plan.values[index]
        if not isinstance(spec, Tensor):
            raise Invalid(f"value {index} of the program is {spec!r} where a delegate puts a tensor")
        return spec

    def read_array(self, index: int, *, in_memory_order: bool = False) -> Array:
        """A value as an array of its own; in memory order, the dimensions are those a delegate sees."""
        import torch

        value, spec = self.read(index), self.plan.values[index]
        if not isinstance(value, torch.Tensor) or not isinstance(spec, Tensor):
            return np.asarray(value)
        return to_array(value.permute(spec.dim_order) if in_memory_order else value, type_of(spec).dtype)
