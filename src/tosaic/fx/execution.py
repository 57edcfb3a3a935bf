"""Runs a graph node by node: to generate and compile its Python code takes longer than a few runs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from tosaic.fx.source import overload


class Execution:
    """A module that is run: it computes what its generated code does, and returns the outputs of its graph in a list.

    The graph must not change any more; what the module's attributes are is looked up in each run.
    """

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        last: dict[Node, Node] = {}
        for node in module.graph.nodes:
            for used in node.all_input_nodes:
                last[used] = node
        freed: dict[Node, list[Node]] = {}
        for used, node in last.items():
            freed.setdefault(node, []).append(used)
        self.inputs: list[Node] = module.graph.find_nodes(op="placeholder")
        self.steps = [
            _Step(n, _make_call(module, n), tuple(freed.get(n, ())), bool(n.users))
            for n in module.graph.nodes
            if n.op not in ("placeholder", "output")
        ]
        self.output: Any = module.graph.output_node().args[0]

    def __call__(self, *inputs: Any) -> list[Any]:
        given: Any = self.module.graph.process_inputs(*inputs)
        if len(given) != len(self.inputs):
            raise TypeError(f"the model takes {len(self.inputs)} inputs, not {len(given)}")
        values: dict[Node, Any] = dict(zip(self.inputs, given, strict=True))
        del given
        for step in self.steps:
            result = step.call(values)
            if step.is_read:
                values[step.node] = result
            for node in step.freed:
                del values[node]
        outputs: list[Any] = []
        map_arg(self.output, lambda node: outputs.append(values[node]))
        return outputs


@dataclass(frozen=True, slots=True)
class _Step:
    """A call of a graph.

    freed    what no later call reads
    is_read  whether a later call or the output of the graph reads the result
    """

    node: Node
    call: Callable[[dict[Node, Any]], Any]
    freed: tuple[Node, ...]
    is_read: bool


def _make_call(module: GraphModule, node: Node) -> Callable[[dict[Node, Any]], Any]:
    """Make a function that computes a node from the values of the ones before it."""
    target: Any = node.target
    if node.op == "get_attr":
        get = operator.attrgetter(target)
        return lambda _: get(module)
    function: Any = module.get_submodule(target) if node.op == "call_module" else target
    args, kwargs = node.args, node.kwargs
    function = _IN_ORDER.get(overload(node), function)
    if not kwargs and overload(node) in _FASTER:
        function = _FASTER[overload(node)](function)
    if kwargs or any(isinstance(a, (list, tuple, dict, slice)) for a in args):

        def call(values: dict[Node, Any]) -> Any:
            return function(*map_arg(args, values.__getitem__), **map_arg(kwargs, values.__getitem__))

        return call
    return lambda values: function(*[values[a] if isinstance(a, Node) else a for a in args])


def sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `sort` with the first of equal numbers first, as on an NPU: torch's kernel leaves their order open."""
    values, places = torch.sort(x, dim=dim, descending=descending, stable=True)
    return values, places


def find_top(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `topk` with the first of equal numbers first, as on an NPU: torch's kernel leaves their order open."""
    values, places = sort(x, dim, largest)
    if not x.dim():
        return values, places
    return values.narrow(dim, 0, k).contiguous(), places.narrow(dim, 0, k).contiguous()


def _dequantize_channels(original: Any) -> Callable[..., torch.Tensor]:
    """Make what computes the numbers of torch's own function, which takes 64-bit integers to do so.

    The codes of 8 and 16 bits and their differences are exact in float32 too.
    """

    def dequantize(
        codes: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None, axis: int, *limits: Any
    ) -> torch.Tensor:
        if codes.dtype not in (torch.int8, torch.uint8, torch.int16) or scales.dtype is not torch.float32:
            return original(codes, scales, zero_points, axis, *limits)
        shape = [1] * codes.dim()
        shape[axis] = -1
        numbers = codes.to(torch.float32)
        if zero_points is not None:
            numbers.sub_(zero_points.view(shape))
        return numbers.mul_(scales.view(shape))

    return dequantize


#: operators whose results have an order that torch leaves open
_IN_ORDER: dict[str, Callable[..., Any]] = {"aten.sort.default": sort, "aten.topk.default": find_top}
#: operators with a function that computes the same in less time
_FASTER = {"quantized_decomposed.dequantize_per_channel.default": _dequantize_channels}
