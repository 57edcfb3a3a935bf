"""Replaces int64 by int32 in a graph of the ATen or the edge dialect."""

from __future__ import annotations

import logging
from typing import Any, Literal

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from tosaic.core.errors import Invalid
from tosaic.fx.retype import make_cast, retype
from tosaic.fx.source import bind, overload, source_line, torch_op

_LOG = logging.getLogger(__name__)
_LIMITS = torch.iinfo(torch.int32)

#: operators that make a tensor from numbers alone, and take its dtype as a keyword
_MAKERS = frozenset(
    f"aten.{name}"
    for name in (
        *("arange.default", "arange.start", "arange.start_step", "eye.default", "eye.m", "full.default"),
        *("linspace.default", "ones.default", "scalar_tensor.default", "zeros.default"),
    )
)
_CASTS = frozenset(
    (
        *("aten.to.dtype", "aten.to.dtype_layout", "aten._to_copy.default"),
        "dim_order_ops._to_dim_order_copy.default",
    )
)
_INDICES = frozenset(("aten.argmax.default", "aten.argmin.default"))


class ConvertInt64ConstOpsToInt32Pass:
    """Makes int32 of constants such as `torch.arange(4)`, if their values fit."""

    def __call__(self, graph_module: GraphModule) -> PassResult:
        changed = False
        for node in _list_int64(graph_module.graph, _MAKERS):
            arguments = {**bind(node), "dtype": torch.int64, "device": "cpu"}
            if not _fits(torch_op(node)(**arguments)):
                _LOG.warning("%s: `%s` does not fit in int32 and stays int64", source_line(node), node.name)
                continue
            node.update_kwarg("dtype", torch.int32)
            changed = True
        return _finish(graph_module, changed)


class ConvertInt64OutputOpsToInt32Pass:
    """Makes int32 of int64 results: a cast to int64 becomes one to int32, or disappears if its input is int32.

    The indices of argmax and argmin are cast to int32. on_overflow: what happens to one that may not fit, since it
    counts more than 2**31 - 1 numbers: "raise" Invalid, leave it with a "warn"ing, or "skip" it.
    """

    def __init__(self, *, on_overflow: Literal["raise", "warn", "skip"] = "raise") -> None:
        if on_overflow not in ("raise", "warn", "skip"):
            raise Invalid(f"on_overflow is {on_overflow!r}", fix="use 'raise', 'warn' or 'skip'")
        self.on_overflow = on_overflow

    def __call__(self, graph_module: GraphModule) -> PassResult:
        graph = graph_module.graph
        changed = False
        for node in _list_int64(graph, _CASTS):
            self._convert_cast(node)
            changed = True
        for node in _list_int64(graph, _INDICES):
            if self._may_overflow(node):
                continue
            _cast_result(node)
            changed = True
        return _finish(graph_module, changed)

    def _convert_cast(self, node: Node) -> None:
        (source,) = node.all_input_nodes
        if source.meta["val"].dtype is torch.int32:
            node.replace_all_uses_with(source)
        elif "dtype" in node.kwargs:
            node.update_kwarg("dtype", torch.int32)
        else:
            node.update_arg(1, torch.int32)

    def _may_overflow(self, node: Node) -> bool:
        arguments = bind(node)
        shape, dim = arguments["self"].meta["val"].shape, arguments["dim"]
        count = shape.numel() if dim is None else shape[dim]
        if count <= _LIMITS.max:
            return False
        what = f"`{node.name}` is an index into {count} numbers, which may not fit in int32"
        if self.on_overflow == "raise":
            raise Invalid(what, where=source_line(node), fix='pass on_overflow="warn" to leave it in int64')
        if self.on_overflow == "warn":
            _LOG.warning("%s: %s", source_line(node), what)
        return True


class InsertInt32CastsAfterInt64PlaceholdersPass:
    """Casts int64 inputs, parameters and buffers to int32 where they enter the graph.

    An operator that takes int64 only, such as one_hot, gets a cast back, and so does an output of the model. The caller
    of the model makes sure that values of inputs fit; buffers are checked. Run this pass after the other two.
    """

    def __call__(self, graph_module: GraphModule) -> PassResult:
        changed = False
        for node in list(graph_module.graph.nodes):
            value = node.meta.get("val")
            if node.op not in ("placeholder", "get_attr") or not _is_int64(value) or not node.users:
                continue
            if node.op == "get_attr" and not _fits(_find_attribute(graph_module, node)):
                _LOG.warning("`%s` does not fit in int32 and stays int64", node.target)
                continue
            _cast_result(node)
            changed = True
        return _finish(graph_module, changed)


def _list_int64(graph: Graph, names: frozenset[str]) -> list[Node]:
    """List the calls of some operators with a result in int64."""
    return [n for n in graph.nodes if overload(n) in names and _is_int64(n.meta.get("val"))]


def _is_int64(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.int64


def _fits(tensor: torch.Tensor) -> bool:
    """Tell whether all numbers of an int64 tensor are in the range of int32."""
    return not tensor.numel() or bool(_LIMITS.min <= tensor.min() and tensor.max() <= _LIMITS.max)


def _find_attribute(module: GraphModule, node: Node) -> torch.Tensor:
    owner, _, leaf = str(node.target).rpartition(".")
    return getattr(module.get_submodule(owner), leaf)


def _cast_result(node: Node) -> None:
    """Cast the result of a node to int32 for all who use it."""
    with node.graph.inserting_after(node):
        cast = make_cast(node.graph, node, torch.int32)
    node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)


def _finish(module: GraphModule, changed: bool) -> PassResult:
    """Compute the types that follow from a change."""
    if changed:
        module.graph.eliminate_dead_code()
        retype(module.graph)
        module.graph.lint()
        module.recompile()
    return PassResult(module, changed)
