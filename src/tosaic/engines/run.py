"""One run of a method: the current values, the calls of kernels and delegates, and their limits."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tosaic.core.errors import Invalid, TosaicError
from tosaic.core.hints import Hint
from tosaic.engines.forecast import Shape, depends_on_numbers, foresee
from tosaic.engines.kernels import Kernel, Live, find_kernel
from tosaic.engines.work import Meter, estimate_work
from tosaic.formats import pte as model
from tosaic.formats.npy import Array
from tosaic.formats.pte import Tensor
from tosaic.formats.tensors import Memory, TensorType, from_array, lay_out, order_in_memory, to_array, type_of

if TYPE_CHECKING:
    import torch

    from tosaic.engines.interpreter import Method

#: A program that changes its shapes makes new forecasts of its calls; this many are kept.
MAX_FORECASTS = 10_000


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a kernel or a delegate, by name; `index` counts the plan's delegates, `instruction` the chain's."""

    kind: Literal["kernel", "delegate"]
    name: str
    index: int
    instruction: int = -1


class Run:
    """One run: the current values, by index."""

    def __init__(self, method: Method, memory: Memory) -> None:
        self.method, self.plan, self.memory = method, method.plan, memory
        self.live: dict[int, Live] = {}
        self.calls: list[Call] = []
        #: The bytes of values that have no planned memory.
        self._held: dict[int, int] = {}
        self._steps = 0
        self._meter = Meter(method.pte.size + method.pte.data_size)

    def _hold(self, index: int, size: int) -> None:
        """Count the memory of a value without a plan, replacing its previous memory."""
        self.method.budget.give_back(self._held.pop(index, 0))
        if size:
            self.method.budget.take(size, f"value {index} of the program")
            self._held[index] = size

    def free_all(self) -> None:
        """Count all values without a plan as free."""
        for index in list(self._held):
            self._hold(index, 0)

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
                    self._call_delegate(step, at - 1)
                case model.MoveCall(source, target):
                    self._move(source, target)
                case model.JumpFalseCall(condition, destination):
                    at = at if self._is_true(condition) else destination
                case model.FreeCall(value):
                    self.live.pop(value, None)
                    self._hold(value, 0)

    def _move(self, source: int, target: int) -> None:
        """Make a value the same as another of the same type."""
        import torch

        value, spec = self.read(source), self.plan.values[target]
        if isinstance(value, torch.Tensor) and isinstance(spec, Tensor):
            self._check_shape(target, tuple(value.shape), "a move")
            same = str(value.dtype) == f"torch.{spec.dtype}"
        else:
            same = not isinstance(value, torch.Tensor) and not isinstance(spec, Tensor)
        if not same:
            raise Invalid(f"value {source} of the program is moved to value {target}, which has a different type")
        self.live[target] = value

    def _is_true(self, index: int) -> bool:
        value = self.read(index)
        if isinstance(value, bool | int):
            return bool(value)
        tensor = self._read_tensor(index)
        self._meter.take(tensor.numel(), f"a jump on value {index}")
        return bool(tensor.all())

    def read(self, index: int) -> Live:
        """Read a value as a kernel takes it."""
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
        why = f"its data is outside the file, under the name `{spec.name}`" if spec.external else "nothing sets it"
        raise Invalid(f"the program reads value {index}, which does not exist", why=why)

    def _read_tensor(self, index: int) -> torch.Tensor:
        import torch

        value = self.read(index)
        if not isinstance(value, torch.Tensor):
            raise Invalid(f"value {index} of the program is {value!r} where a tensor is needed")
        return value

    def write(self, index: int, result: Live, what: str) -> None:
        """Write a result into a value, which must have its type and be large enough."""
        import torch

        spec = self.plan.values[index]
        if not isinstance(spec, Tensor) or not isinstance(result, torch.Tensor):
            if isinstance(spec, Tensor) or isinstance(result, torch.Tensor):
                raise Invalid(f"{what} returns {type(result).__name__} for value {index}, which is {spec!r}")
            self.live[index] = result
            return
        shape = tuple(result.shape)
        self._check_shape(index, shape, what)
        if spec.allocation is None:
            self._hold(index, result.numel() * type_of(spec).dtype.itemsize)
            self.live[index] = lay_out(result, spec)
            return
        place = self.memory.place(spec, shape)
        # The result may share the memory, with another shape.
        shared = result.untyped_storage().data_ptr() == place.untyped_storage().data_ptr()
        self.live[index] = place.copy_(result.clone() if shared else result)

    def _check_shape(self, index: int, shape: Shape, what: str) -> None:
        """Check that a value accepts a result of this shape."""
        spec = self.plan.values[index]
        if not isinstance(spec, Tensor) or shape == spec.shape:
            return
        within = spec.dynamism == "unbound" or (spec.dynamism == "bound" and all(map(int.__le__, shape, spec.shape)))
        if not within or len(shape) != len(spec.shape):
            raise Invalid(f"{what} returns shape {list(shape)} for value {index}, which has {list(spec.shape)}")

    def _call_kernel(self, call: model.KernelCall, at: int) -> None:
        name = self.plan.operators[call.operator]
        where = f"instruction {at} of method `{self.plan.name}`"
        kernel = self.method.kernels.get(call.operator)
        if kernel is None:
            kernel = self.method.kernels[call.operator] = find_kernel(name)
        if len(call.args) < kernel.inputs + len(kernel.outs):
            raise Invalid(f"`{name}` is called with {len(call.args)} values, which is too few", where=where)
        self.calls.append(Call("kernel", str(name), call.operator, at))
        values = [self.read(index) for index in call.args[: kernel.inputs]]
        outs = {i: self._make_out(call.args[i]) for i in kernel.outs}
        targets = [call.args[i] for i in outs] or call.args[kernel.inputs :]
        try:
            size, work = self._size_call(call, kernel, values, outs, targets)
            self.method.budget.take(size, f"`{name}`")
            try:
                self._meter.take(work, f"`{name}`")
                results = kernel.apply(values, outs)
                for index, result in zip(targets, results, strict=False):
                    self._write_all(index, result, f"`{name}`")
            finally:
                self.method.budget.give_back(size)
        except Invalid as error:
            raise Invalid(error.what, where=error.where or where, why=error.why, fix=error.fix) from error
        except TosaicError:
            raise
        except Exception as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise Invalid(f"the kernel `{name}` failed", where=where, why=why) from error

    def _size_call(
        self,
        call: model.KernelCall,
        kernel: Kernel,
        values: Sequence[Live],
        outs: Mapping[int, Live],
        targets: Sequence[int],
    ) -> tuple[int, int]:
        """Return the bytes that a call takes while it computes, and its work; check its results against the plan."""
        cached = self.method.sizes
        key = None if depends_on_numbers(kernel, values) else (call, *map(_get_type, values))
        if key in cached:
            return cached[key]
        name = f"`{self.plan.operators[call.operator]}`"
        forecast = foresee(kernel, values, outs)
        size, width = forecast.scratch, _find_width(values)
        for index, result in zip(targets, forecast.results, strict=False):
            spec = self.plan.values[index]
            items = spec.items if isinstance(spec, model.TensorList) and isinstance(result, list) else (index,)
            for item, shape in zip(items, result if isinstance(result, list) else [result], strict=True):
                self._check_shape(item, shape, name)
                size += math.prod(shape) * max(width, self._get_item_size(item))
        named = dict(zip(kernel.labels, values, strict=False))
        work = estimate_work(kernel.name, named, values, forecast.results)
        if key is not None:
            if len(cached) >= MAX_FORECASTS:
                cached.clear()
            cached[key] = (size, work)
        return size, work

    def _get_item_size(self, index: int) -> int:
        spec = self.plan.values[index]
        return type_of(spec).dtype.itemsize if isinstance(spec, Tensor) else 0

    def _make_out(self, index: int) -> Live:
        """Make an empty tensor for a kernel to fill: torch resizes it to the result."""
        import torch

        spec = self.plan.values[index]
        if isinstance(spec, model.TensorList):
            return [self._make_out(item) for item in spec.items]
        if not isinstance(spec, Tensor):
            raise Invalid(f"value {index} of the program is {spec!r} where a kernel writes a tensor")
        type_of(spec)
        return torch.empty(0, dtype=getattr(torch, spec.dtype))

    def _write_all(self, index: int, result: Live, what: str) -> None:
        spec = self.plan.values[index]
        if isinstance(spec, model.TensorList) and isinstance(result, list):
            for item, part in zip(spec.items, result, strict=True):
                self.write(item, part, what)
        else:
            self.write(index, result, what)

    def _call_delegate(self, call: model.DelegateCall, at: int) -> None:
        delegate = self.plan.delegates[call.delegate]
        executor = self.method.executors.get(delegate.id)
        if executor is None:
            known = ", ".join(f"`{name}`" for name in self.method.executors) or "none"
            raise Invalid(
                f"delegate {call.delegate} is for `{delegate.id}`",
                why=f"the available backends are: {known}",
                fix=Hint(
                    'use engine="executorch", which has the backends of the installed ExecuTorch',
                    "use `--engine executorch`, which has the backends of the installed ExecuTorch",
                ),
            )
        inputs, outputs = self.method.split(call)
        self.calls.append(Call("delegate", delegate.id, call.delegate, at))
        specs = [self._tensor_spec(index) for index in outputs]
        wanted = [order_in_memory(spec) for spec in specs]
        arrays = [self.read_array(index, in_memory_order=True) for index in inputs]
        # Executors bound each of their calls, but not how often they are called.
        begin = time.process_time_ns()
        results = executor(delegate.blob, delegate.compile_specs, arrays, wanted)
        self._meter.take(time.process_time_ns() - begin, f"delegate {call.delegate}")
        given = [TensorType(array.dtype, array.shape) for array in results]
        if given != wanted:
            expected, found = (", ".join(map(str, types)) for types in (wanted, given))
            raise Invalid(f"delegate {call.delegate} returns {found}, but the program takes {expected}")
        for index, spec, array in zip(outputs, specs, results, strict=True):
            back = [spec.dim_order.index(dim) for dim in range(len(spec.shape))]
            self.write(index, from_array(array, spec.dtype).permute(back), f"delegate {call.delegate}")

    def _tensor_spec(self, index: int) -> Tensor:
        spec = self.plan.values[index]
        if not isinstance(spec, Tensor):
            raise Invalid(f"value {index} of the program is {spec!r} where a delegate writes a tensor")
        return spec

    def read_array(self, index: int, *, in_memory_order: bool = False) -> Array:
        """Read a value as a new array; in memory order, the dimensions are those that a delegate sees."""
        import torch

        value, spec = self.read(index), self.plan.values[index]
        if not isinstance(value, torch.Tensor) or not isinstance(spec, Tensor):
            if isinstance(value, list | torch.Tensor):
                raise Invalid(f"value {index} of the program is a list where a tensor or a number is needed")
            return np.asarray(value)
        return to_array(value.permute(spec.dim_order) if in_memory_order else value, type_of(spec).dtype)


def _get_type(value: Live) -> object:
    """Return what a kernel's checks depend on: the type of a tensor, or a plain value itself."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride()
    return tuple(map(_get_type, value)) if isinstance(value, list) else (type(value), value)


def _find_width(values: Sequence[Live]) -> int:
    """Find the bytes of the widest type among tensors: a result may first be computed in it."""
    import torch

    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return max((item.element_size() for item in flat if isinstance(item, torch.Tensor)), default=1)
