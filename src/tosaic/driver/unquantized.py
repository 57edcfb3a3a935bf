"""Why the quantizer has left an operator in float: what its record says about these arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.fx import Node

from tosaic.core.errors import InputRefused, Unsupported
from tosaic.core.internal import InternalError, contained
from tosaic.core.targets import Target
from tosaic.fx.arrays import to_numpy, to_torch
from tosaic.fx.source import Source, aten, bind, overload
from tosaic.ir.graph import Array, DType, Type
from tosaic.ir.qparams import QParams
from tosaic.lower.arguments import is_sequence
from tosaic.lower.aten import Aten
from tosaic.lower.registry import Record
from tosaic.lower.tensor import Const, Stored
from tosaic.lower.walk import GraphLowering
from tosaic.ops import registry

#: any parameters: only the form of an operator is tried
_CODES = QParams((1.0,), (0,), DType.I8, -128, 127)


def explain_float(source: Source, target: Target, node: Node) -> Unsupported | None:
    """Find why an operator with a float input was not quantized; None if its record has nothing against it."""
    record = registry().find(overload(node))
    if record is None or not any(_is_float(source, n) for n in node.all_input_nodes):
        return None
    try:
        with contained(f"explaining `{node.name}` ({overload(node)})"):
            # A decomposition of data movement only narrows its indices.
            if record.decompose is not None and not (record.moves or record.looks_up):
                _try_decomposition(source, node, record)
            elif record.quant == "weight" or isinstance(source.val(node), (tuple, list)):
                _try_lowering(source, target, node)
    except InternalError:
        return None
    except Unsupported as error:
        return InputRefused(error.what, error.fix, kind="float")
    return None


def _is_float(source: Source, node: Node) -> bool:
    val = source.val(node)
    return isinstance(val, torch.Tensor) and val.is_floating_point()


class _ShapeAten:
    """Runs a `decompose` function on tensors without data."""

    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}
        self._kept: list[torch.Tensor] = []

    def __call__(self, name: str, /, *args: Any, **kwargs: Any) -> torch.Tensor:
        return aten(name)(*args, **kwargs)

    def constant(self, array: Array, /) -> torch.Tensor:
        made = torch.empty_like(to_torch(np.asarray(array, order="C")), device="meta")
        self._kept.append(made)
        self.arrays[id(made)] = array
        return made

    def shape(self, value: torch.Tensor, /) -> tuple[int, ...]:
        return tuple(int(d) for d in value.shape)

    def data(self, value: torch.Tensor, /) -> Array | None:
        return self.arrays.get(id(value))

    def is_bool(self, value: torch.Tensor, /) -> bool:
        return value.dtype is torch.bool

    def same_dtype(self, value: torch.Tensor, other: torch.Tensor, /) -> bool:
        return value.dtype is other.dtype

    def as_indices(self, value: torch.Tensor, /) -> torch.Tensor:
        return value

    def as_numbers(self, value: torch.Tensor, /) -> torch.Tensor:
        return value

    def made_by(self, value: torch.Tensor, /) -> tuple[str, tuple[torch.Tensor | float, ...]]:
        return "", ()


def _try_decomposition(source: Source, node: Node, record: Record) -> None:
    """Decompose a call without computing anything; raises Unsupported if that is not possible."""
    shapes = _ShapeAten()

    def convert(value: object) -> object:
        if isinstance(value, Node):
            if value in source.constants:
                return shapes.constant(to_numpy(source.constants[value]))
            val = source.tensor(value)
            return torch.empty(val.shape, dtype=val.dtype, device="meta")
        return [convert(item) for item in value] if is_sequence(value) else value

    operators: Aten[torch.Tensor] = shapes
    assert record.decompose is not None
    with torch.no_grad():
        made = record.decompose(operators, **{name: convert(value) for name, value in bind(node).items()})
    if made is None and record.lower is None:
        raise Unsupported(f"`{record.name}` cannot be lowered with these arguments", "leave it on the CPU")


def _try_lowering(source: Source, target: Target, node: Node) -> None:
    """Lower a call as if its operands were quantized; raises Unsupported if that is not possible."""
    walk = GraphLowering(source, target)
    for one in node.all_input_nodes:
        got = walk.get(one)
        if isinstance(got, Const) and got.is_float:
            walk.results[one] = Const(np.zeros(got.shape, np.int8), DType.I8, _CODES)
        elif isinstance(got, Stored) and got.is_float:
            walk.results[one] = Stored(got.shape, walk.lo.b.input(Type(DType.I8, got.value.shape)), got.perm, _CODES)
    result = walk.run(node)
    for user in node.users if isinstance(result, tuple) else ():
        # Taking a result that the target does not have raises the reason.
        walk.run(user)
