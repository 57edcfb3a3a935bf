"""The CPU kernels of a .pte file by name: torch's operators, and the few that only ExecuTorch has."""

from __future__ import annotations

import importlib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from tosaic.errors import Invalid
from tosaic.runtime.pte import Operator

if TYPE_CHECKING:
    import torch

#: A value while the program runs; None may also be a tensor that has not been written.
Live: TypeAlias = "torch.Tensor | int | float | bool | str | list[Any] | None"

#: Operators that a program from a stranger must not reach: this one maps any file into memory.
_FORBIDDEN = frozenset({"aten::from_file"})
_NAMESPACES = ("aten", "quantized_decomposed")
_NAME = re.compile(r"(\w+)::(\w+)")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A callable for one operator.

    It takes `inputs` values, those in `names` by name. An out variant fills the values in `outs`; the results of others
    go into the values that follow the inputs.
    """

    call: Callable[..., Any]
    inputs: int
    names: Mapping[int, str]
    outs: Mapping[int, str]


def _view(source: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return source.reshape(list(size))


def _convert(source: torch.Tensor, _blocking: bool, _order: Sequence[int]) -> torch.Tensor:
    # Type and order are those of the value that the result goes into.
    return source


def _empty(size: Sequence[int], _order: Sequence[int]) -> torch.Tensor:
    import torch

    return torch.zeros(list(size))


def _quantize(source: torch.Tensor, scale: float, zero: int, low: int, high: int, _dtype: int) -> torch.Tensor:
    import torch

    # ExecuTorch inverts the scale as a float, torch as a double: they differ at ties.
    inverse = 1.0 / torch.tensor(scale, dtype=torch.float32)
    return torch.clamp(torch.round(source.to(torch.float32) * inverse) + zero, low, high)


def _divide(a: float, b: float) -> float:
    return a / b


def _floor_divide(a: float, b: float) -> float:
    return a // b


def _round(number: float) -> int:
    return round(number)


#: Kernels that only ExecuTorch has or computes this way: how many values each takes, and what it gives.
_OWN: Mapping[str, tuple[int, Callable[..., Any]]] = MappingProxyType(
    {
        "executorch_prim::et_view.default": (2, _view),
        "dim_order_ops::_to_dim_order_copy.out": (3, _convert),
        "dim_order_ops::_clone_dim_order.out": (3, _convert),
        "dim_order_ops::_empty_dim_order.out": (2, _empty),
        "quantized_decomposed::quantize_per_tensor.out": (6, _quantize),
        "executorch_prim::add.Scalar": (2, operator.add),
        "executorch_prim::sub.Scalar": (2, operator.sub),
        "executorch_prim::mul.Scalar": (2, operator.mul),
        "executorch_prim::floordiv.Scalar": (2, _floor_divide),
        "executorch_prim::truediv.Scalar": (2, _divide),
        "executorch_prim::mod.Scalar": (2, operator.mod),
        "executorch_prim::mod.int": (2, operator.mod),
        "executorch_prim::neg.Scalar": (1, operator.neg),
        "executorch_prim::eq.Scalar": (2, operator.eq),
        "executorch_prim::gt.Scalar": (2, operator.gt),
        "executorch_prim::lt.Scalar": (2, operator.lt),
        "executorch_prim::ge.Scalar": (2, operator.ge),
        "executorch_prim::le.Scalar": (2, operator.le),
        "executorch_prim::sym_float.Scalar": (1, float),
        "executorch_prim::sym_max.Scalar": (2, max),
        "executorch_prim::sym_min.Scalar": (2, min),
        "executorch_prim::ceil.Scalar": (1, math.ceil),
        "executorch_prim::trunc.Scalar": (1, math.trunc),
        "executorch_prim::round.Scalar": (1, _round),
    }
)


def find_kernel(name: Operator) -> Kernel:
    """The kernel of an operator; Invalid if there is none."""
    own = _OWN.get(str(name))
    if own is not None:
        return Kernel(own[1], own[0], {}, {})
    found = _NAME.fullmatch(name.name)
    if found is None or found[1] not in _NAMESPACES or name.name in _FORBIDDEN:
        raise Invalid(
            f"there is no kernel for `{name}` on this machine",
            why=f"kernels come from {', '.join(_NAMESPACES)} and ExecuTorch's own few",
            fix="run the file with engine `executorch` if its runtime has the kernel",
        )
    return _bind(name, _find_overload(name, found[1], found[2]))


def _find_overload(name: Operator, space: str, short: str) -> Any:
    import torch

    # Registers quantized_decomposed, without its out variants; those are in ExecuTorch's kernel library.
    importlib.import_module("torch.ao.quantization.fx._decomposed")
    packet: Any = getattr(getattr(torch.ops, space), short, None)
    # A namespace also has Python's own attributes.
    overloads: list[str] = packet.overloads() if hasattr(packet, "overloads") else []
    wanted = name.overload or "default"
    # `out` is the out variant of the default overload, `tensor_out` that of `tensor`.
    plain = re.sub(r"(^|_)out$", "", wanted) or "default"
    for overload in (wanted, plain):
        if overload in overloads:
            return getattr(packet, overload)
    raise Invalid(f"there is no kernel for `{name}` on this machine", why=f"torch has the overloads {overloads}")


def _bind(name: Operator, overload: Any) -> Kernel:
    arguments: list[Any] = list(overload._schema.arguments)
    outs = {i: str(argument.name) for i, argument in enumerate(arguments) if argument.is_out}
    names = {i: str(a.name) for i, a in enumerate(arguments) if a.kwarg_only and not a.is_out}
    inputs = len(arguments) - len(outs)
    if outs and min(outs) < inputs:
        raise Invalid(f"the arguments of `{name}` are in an order that no .pte file has")
    return Kernel(overload, inputs, names, outs)
