"""Rolled recurrent layers: their state is quantized alike before and after a step, and they are unrolled at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torchao.quantization.pt2e.quantizer import SharedQuantizationSpec

from tosaic.fx.source import DEQUANTIZE, QUANTIZE, aten, find_reachable, input_node, overload, torch_op
from tosaic.lower.arguments import is_sequence
from tosaic.quantization.prepare import ANNOTATION_KEY, KEPT_META
from tosaic.quantization.recurrent import LOOP, run_steps


def share_states(graph: Graph) -> None:
    """Let the state before a step have the range of the state after it: they are one tensor when it is unrolled."""
    for loop in _find_loops(graph):
        ends = _find_ends(graph, loop)
        for before in loop.users:
            after = ends[int(str(before.args[1]))].meta.get(ANNOTATION_KEY)
            inputs = [(before, u) for u in before.users if before in u.meta[ANNOTATION_KEY].input_qspec_map]
            if after is None or after.output_qspec is None or not inputs:
                continue
            # A tensor can only share the range of an earlier one.
            shared = SharedQuantizationSpec(inputs[0])
            for index, (_, user) in enumerate(inputs):
                user.meta[ANNOTATION_KEY].input_qspec_map[before] = shared if index else after.output_qspec
            after.output_qspec = shared


def has_loops(module: GraphModule) -> bool:
    """Tell whether a module has rolled layers."""
    return any(True for _ in _find_loops(module.graph))


def unroll_loops(module: GraphModule) -> GraphModule:
    """Unroll all rolled layers of a quantized module: each gets one copy of its cell per step."""
    if not has_loops(module):
        return module
    for loop in list(_find_loops(module.graph)):
        _Unrolling(module.graph, loop).run()
        module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    return module


def _find_loops(graph: Graph) -> Iterable[Node]:
    return graph.find_nodes(op="call_function", target=run_steps)


def _find_ends(graph: Graph, loop: Node) -> list[Node]:
    """Find the parts of the state after all steps."""
    name = loop.meta[LOOP]
    found = {n.meta[LOOP][1]: n for n in graph.nodes if LOOP in n.meta and n.meta[LOOP][0] == name and n is not loop}
    return [found[part] for part in range(len(found))]


@dataclass
class _Unrolling:
    """One loop while it is unrolled."""

    graph: Graph
    loop: Node
    #: the copies of each node of the cell, by step
    copies: dict[Node, dict[int, Node]] = field(default_factory=dict)
    #: what the shape of one step is, for each node of the cell
    vals: dict[Node, object] = field(default_factory=dict)

    def run(self) -> None:
        _, products, start, _, _, _, axis, back = self.loop.args
        assert isinstance(products, Node) and is_sequence(start)
        self.axis = int(str(axis))
        ends = _find_ends(self.graph, self.loop)
        after = find_reachable([self.loop], lambda n: n.users)
        before = find_reachable(ends, lambda n: n.all_input_nodes)
        cell = [n for n in self.graph.nodes if n is not self.loop and n in after and (n in before or _stores(n, ends))]
        rolled = find_reachable([_behind(products)], lambda n: n.users) - set(cell)
        count = int(_behind(products).meta["val"].shape[self.axis])
        state = [part for part in start if isinstance(part, Node)]
        with self.graph.inserting_before(self._find_first_reader(cell)):
            for at in range(count)[:: -1 if back else 1]:
                made: dict[Node, Node] = {}
                for node in cell:
                    made[node] = self._copy(node, made, state, rolled, at)
                    self.copies.setdefault(node, {})[at] = made[node]
                state = [_last_reader(end, made) for end in ends]
            for node in cell:
                self._connect(node, set(cell), count)

    def _find_first_reader(self, cell: list[Node]) -> Node:
        inside = set(cell)
        readers = {user for node in cell for user in node.users if user not in inside}
        return next(n for n in self.graph.nodes if n in readers)

    def _copy(self, node: Node, made: dict[Node, Node], state: list[Node], rolled: set[Node], at: int) -> Node:
        """Copy a node of the cell for one step."""
        if self.loop in node.all_input_nodes:
            return state[int(str(node.args[1]))]

        def find(n: Node) -> Node:
            return made[n] if n in made else self._select(n, at) if n in rolled else n

        args, kwargs = map_arg(node.args, find), map_arg(node.kwargs, find)
        stored = args[0]
        if (
            isinstance(stored, Node)
            and (overload(node), overload(stored)) == (QUANTIZE, DEQUANTIZE)
            and args[1:] == stored.args[1:]
        ):
            return input_node(stored)
        new = self.graph.call_function(torch_op(node), args, kwargs)
        new.meta = {key: node.meta[key] for key in KEPT_META if key in node.meta}
        if "val" in node.meta:
            new.meta["val"] = self._val(node)
        return new

    def _val(self, node: Node) -> object:
        if node not in self.vals:
            self.vals[node] = _drop(node.meta["val"], self.axis)
        return self.vals[node]

    def _select(self, node: Node, at: int) -> Node:
        """Select one step of a tensor that all steps read."""
        known = self.copies.setdefault(node, {})
        if at not in known:
            known[at] = self._emit(node, self._val(_behind(node)), "select.int", node, self.axis, at)
        return known[at]

    def _emit(self, like: Node, val: object, name: str, value: Node | list[Node], *args: int) -> Node:
        """Emit a data movement of dequantized numbers, quantized like what it reads."""
        moved = self.graph.call_function(aten(name), (value, *args))
        moved.meta = {key: _behind(like).meta[key] for key in KEPT_META if key in _behind(like).meta} | {"val": val}
        if overload(like) != DEQUANTIZE:
            return moved
        quantize = input_node(like)
        stored = self.graph.call_function(torch_op(quantize), (moved, *quantize.args[1:]))
        return self.graph.call_function(torch_op(like), (stored, *like.args[1:]))

    def _connect(self, node: Node, cell: set[Node], count: int) -> None:
        """Let what reads all steps of a node of the cell read the copies instead."""
        readers = [user for user in node.users if user not in cell]
        for user in list(readers):
            if user.target == aten("select.int") and user.args[1] == self.axis:
                user.replace_all_uses_with(self.copies[node][int(str(user.args[2])) % count])
                readers.remove(user)
        if readers:
            steps = [self.copies[node][at] for at in range(count)]
            stacked = self._emit(node, _behind(node).meta["val"], "stack.default", steps, self.axis)
            for user in readers:
                user.replace_input_with(node, stacked)


def _behind(node: Node) -> Node:
    """Return what a dequantized value is made of."""
    while overload(node) in (QUANTIZE, DEQUANTIZE):
        node = node.all_input_nodes[0]
    return node


def _stores(node: Node, ends: list[Node]) -> bool:
    """Tell whether a node quantizes or dequantizes one of the ends."""
    return overload(node) in (QUANTIZE, DEQUANTIZE) and _behind(node) in ends


def _last_reader(end: Node, made: dict[Node, Node]) -> Node:
    """Return what the next step reads of the state: dequantized, if it is quantized."""
    stored = [user for user in end.users if overload(user) == QUANTIZE]
    return made[next(iter(stored[0].users))] if stored else made[end]


def _drop(val: object, axis: int) -> object:
    """Return the type of one step."""
    if is_sequence(val):
        return tuple(_drop(one, axis) for one in val)
    return val.select(axis, 0) if isinstance(val, torch.Tensor) else val
