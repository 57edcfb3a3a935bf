"""The CPU kernels of a .pte file by name: torch's operators, and the few that only ExecuTorch has."""

from __future__ import annotations

import importlib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from tosaic.core.errors import Invalid
from tosaic.engines.kernel_names import ALLOWED, PLAIN, QUANTIZED
from tosaic.formats.pte import Operator

if TYPE_CHECKING:
    import torch

#: A value while the program runs; None may also be a tensor that has not been written.
Live: TypeAlias = "torch.Tensor | int | float | bool | str | list[Any] | None"

_FIX = "run the file with engine `executorch` (`--engine executorch`), if its runtime has the kernel"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A callable for one operator; its name omits the overload.

    It takes `inputs` values, called `labels`; those in `names` are passed by name. An out variant fills the values in
    `outs`; the results of others go into the values that follow the inputs.
    """

    name: str
    call: Callable[..., Any]
    inputs: int
    labels: tuple[str, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict[int, str])
    outs: Mapping[int, str] = field(default_factory=dict[int, str])
    #: For a kernel that copies a view: the function that makes only the view. Not all out variants resize a copy.
    view: Callable[..., Any] | None = None

    def apply(self, values: Sequence[Live], outs: Mapping[int, Live]) -> list[Any]:
        """Compute the results; those of an out variant are its outs."""
        positional = [value for i, value in enumerate(values) if i not in self.names]
        named = {label: values[i] for i, label in self.names.items()}
        if self.view is not None:
            return [_check_types(self.view(*positional, **named), *outs.values())]
        result: Any = self.call(*positional, **named, **{self.outs[i]: out for i, out in outs.items()})
        if outs:
            return list(outs.values())
        return list(result) if type(result) in (tuple, list) else [result]


def _check_types(result: Any, out: Any) -> Any:
    """Check that a view, or each view in a list, has the type of the value that it is copied to."""
    several = type(result) in (tuple, list)
    for view, place in zip(result, out, strict=True) if several else [(result, out)]:
        if view.dtype != place.dtype:
            raise Invalid(f"the kernel returns {view.dtype}, but the program takes {place.dtype}")
    return list(result) if several else result


def _view(source: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return source.reshape(list(size))


def _convert(source: torch.Tensor, _blocking: bool, _order: Sequence[int]) -> torch.Tensor:
    # Type and memory order are those of the value that receives the result.
    return source


def _empty(size: Sequence[int], _order: Sequence[int]) -> torch.Tensor:
    import torch

    return torch.zeros(list(size))


def _quantize(source: torch.Tensor, scale: float, zero: int, low: int, high: int, _dtype: int) -> torch.Tensor:
    import torch

    # ExecuTorch inverts the scale as a float, torch as a double: they differ at ties.
    inverse = 1.0 / torch.tensor(scale, dtype=torch.float32)
    return torch.clamp(torch.round(source.to(torch.float32) * inverse) + zero, low, high)


def _as_strided(
    source: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> torch.Tensor:
    # The offset counts from the tensor's own first element, and the view must stay inside the tensor.
    return source.clone().as_strided(list(size), list(stride), offset or 0)


def _divide(a: float, b: float) -> float:
    return a / b


def _floor_divide(a: float, b: float) -> float:
    return a // b


def _round(number: float) -> int:
    return round(number)


def _choose(condition: bool, a: float, b: float) -> float:
    return a if condition else b


def _on_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict a function to numbers; Python's operators would also repeat and format strings of any length."""

    def call(*numbers: Live) -> Any:
        if not all(isinstance(number, int | float) for number in numbers):
            raise Invalid("the kernel takes numbers", why=f"it is given {', '.join(type(x).__name__ for x in numbers)}")
        result = function(*numbers)
        if isinstance(result, int) and not -(1 << 63) <= result < 1 << 63:
            raise Invalid("the result does not fit in 64 bits")
        return result

    return call


def _sort(x: Any, dim: int, descending: bool) -> Any:
    from tosaic.fx.execution import sort

    return sort(x, dim, descending)


def _find_top(x: Any, k: int, dim: int, largest: bool, sorted: bool) -> Any:
    from tosaic.fx.execution import find_top

    return find_top(x, k, dim, largest, sorted)


#: Kernels on tensors that only ExecuTorch has or computes this way, or whose order torch leaves open.
_OWN: Mapping[str, tuple[tuple[str, ...], Callable[..., Any]]] = MappingProxyType(
    {
        "executorch_prim::et_view.default": (("self", "size"), _view),
        "dim_order_ops::_to_dim_order_copy.out": (("self", "non_blocking", "dim_order"), _convert),
        "dim_order_ops::_clone_dim_order.out": (("self", "non_blocking", "dim_order"), _convert),
        "dim_order_ops::_empty_dim_order.out": (("size", "dim_order"), _empty),
        "aten::empty.out": (("size", "memory_format"), _empty),
        "aten::sort.values": (("self", "dim", "descending"), _sort),
        "aten::topk.values": (("self", "k", "dim", "largest", "sorted"), _find_top),
        "aten::as_strided_copy.out": (("self", "size", "stride", "storage_offset"), _as_strided),
        "quantized_decomposed::quantize_per_tensor.out": (
            ("input", "scale", "zero_point", "quant_min", "quant_max", "dtype"),
            _quantize,
        ),
    }
)
#: Kernels on numbers: parameter count and function.
_PRIMS: Mapping[str, tuple[int, Callable[..., Any]]] = MappingProxyType(
    {
        "add.Scalar": (2, operator.add),
        "sub.Scalar": (2, operator.sub),
        "mul.Scalar": (2, operator.mul),
        "floordiv.Scalar": (2, _floor_divide),
        "floordiv.int": (2, _floor_divide),
        "truediv.Scalar": (2, _divide),
        "mod.Scalar": (2, operator.mod),
        "mod.int": (2, operator.mod),
        "neg.Scalar": (1, operator.neg),
        "eq.Scalar": (2, operator.eq),
        "gt.Scalar": (2, operator.gt),
        "lt.Scalar": (2, operator.lt),
        "ge.Scalar": (2, operator.ge),
        "le.Scalar": (2, operator.le),
        "sym_float.Scalar": (1, float),
        "sym_int.Scalar": (1, int),
        "sym_not.Scalar": (1, operator.not_),
        "sym_ite.Scalar": (3, _choose),
        "sym_max.Scalar": (2, max),
        "sym_min.Scalar": (2, min),
        "ceil.Scalar": (1, math.ceil),
        "trunc.Scalar": (1, math.trunc),
        "round.Scalar": (1, _round),
    }
)


def find_kernel(name: Operator) -> Kernel:
    """Find the kernel of an operator; raise Invalid if a program may not call it here."""
    own = _OWN.get(str(name))
    if own is not None:
        return Kernel(name.name, own[1], len(own[0]), own[0])
    space, _, short = name.name.partition("::")
    prim = _PRIMS.get(f"{short}.{name.overload}") if space == "executorch_prim" else None
    if prim is not None:
        return Kernel(name.name, _on_numbers(prim[1]), prim[0])
    if name.name not in ALLOWED:
        raise Invalid(
            f"this machine has no kernel for `{name}`",
            why="the interpreter runs only kernels that cannot reach memory outside their arguments",
            fix=_FIX,
        )
    return _bind(name, _find_overload(name, space, short))


def _find_overload(name: Operator, space: str, short: str) -> Any:
    import torch

    # Registers quantized_decomposed. Its out variants, which other packages may have loaded, are native code.
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    packet: Any = getattr(getattr(torch.ops, space), short)
    overloads: list[str] = packet.overloads()
    wanted = name.overload or "default"
    if name.name in QUANTIZED:
        # `out` is the out variant of the default overload, `tensor_out` that of `tensor`.
        wanted = re.sub(r"(^|_)out$", "", wanted).lower() or "default"
    if wanted not in overloads:
        raise Invalid(f"this machine has no kernel for `{name}`", why=f"torch has the overloads {overloads}", fix=_FIX)
    return getattr(packet, wanted)


def _bind(name: Operator, overload: Any) -> Kernel:
    arguments: list[Any] = list(overload._schema.arguments)
    outs = {i: str(argument.name) for i, argument in enumerate(arguments) if argument.is_out}
    names = {i: str(a.name) for i, a in enumerate(arguments) if a.kwarg_only and not a.is_out}
    inputs = len(arguments) - len(outs)
    if outs and min(outs) < inputs:
        raise Invalid(f"the arguments of `{name}` are in an order that no .pte file uses")
    if not outs and name.name not in PLAIN | QUANTIZED:
        raise Invalid(f"`{name}` is not an out variant, the only kind of kernel in a .pte file", fix=_FIX)
    labels = tuple(str(a.name) for a in arguments[:inputs])
    return Kernel(name.name, overload, inputs, labels, names, outs, _find_view(name))


def _find_view(name: Operator) -> Callable[..., Any] | None:
    import torch

    short = name.name.removeprefix("aten::")
    if not short.endswith("_copy"):
        return None
    packet: Any = getattr(torch.ops.aten, short.removesuffix("_copy"), None)
    return getattr(packet, re.sub(r"(^|_)out$", "", name.overload) or "default", None)
