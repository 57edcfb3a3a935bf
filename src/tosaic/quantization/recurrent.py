"""Writes recurrent layers and cells in operators that can be lowered.

Torch computes its cells in place, in slices: a trace of them contains nothing that can be lowered. Here the inputs of
all steps are multiplied at once, and a step is reduced to one product with the state and the gates.

A layer is written in one of two forms. Unrolled, it has a copy of its cell per step. Rolled, it has one cell, whose
operands are the tensors of all steps: a call of `run_steps` computes the state before each of them. So observers see
all steps at once, and quantization takes the same time for any number of steps; `unroll_loops` unrolls the layer after
it (`quantization/loops.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.node import map_arg
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.fx.proxy import GraphAppendingTracer

from tosaic.fx.source import overload
from tosaic.fx.torch_compat import FakeTensor, FakeTensorMode
from tosaic.quantization.widen_accumulated import STATE

_aten = torch.ops.aten
#: from here on a tanh in 8 bits saturates to 1
_TANH_SATURATION = 4.0
#: what a step computes with: a tensor, or its place in a graph
T = TypeVar("T", torch.Tensor, Proxy)


class Step(Protocol):
    """One step of a cell."""

    def __call__(self, of_x: T, state: Sequence[T], of_h: T) -> tuple[T, ...]:
        """Take the product of the input, the state, and its product; return the next state, output first."""
        ...


#: what a call returns
_Results: TypeAlias = Proxy | tuple[Proxy, ...]
#: Marks a rolled layer: its name on the call of `run_steps`, name and part on each part of the state after all steps.
LOOP = "tosaic_loop"
#: more steps would fill the memory of an NPU's program
_MOST_STEPS = 1000


def _step_lstm(of_x: T, state: Sequence[T], of_h: T) -> tuple[T, ...]:
    begin, keep, new, show = _chunk(_aten.add.Tensor(of_x, of_h), 4)
    kept = _aten.mul.Tensor(_aten.sigmoid.default(keep), state[1])
    c = _aten.add.Tensor(kept, _aten.mul.Tensor(_aten.sigmoid.default(begin), _aten.tanh.default(new)))
    # It grows far beyond the saturation of its tanh, and is accumulated over many steps.
    _mark(c, STATE, True)
    seen = _aten.hardtanh.default(c, -_TANH_SATURATION, _TANH_SATURATION)
    return _aten.mul.Tensor(_aten.sigmoid.default(show), _aten.tanh.default(seen)), c


def _step_gru(of_x: T, state: Sequence[T], of_h: T) -> tuple[T, ...]:
    (reset_x, keep_x, new_x), (reset_h, keep_h, new_h) = _chunk(of_x, 3), _chunk(of_h, 3)
    reset, keep = (_aten.sigmoid.default(_aten.add.Tensor(*pair)) for pair in ((reset_x, reset_h), (keep_x, keep_h)))
    new = _aten.tanh.default(_aten.add.Tensor(new_x, _aten.mul.Tensor(reset, new_h)))
    return (_aten.add.Tensor(new, _aten.mul.Tensor(keep, _aten.sub.Tensor(state[0], new))),)


def _step_tanh(of_x: T, state: Sequence[T], of_h: T) -> tuple[T, ...]:
    return (_aten.tanh.default(_aten.add.Tensor(of_x, of_h)),)


def _step_relu(of_x: T, state: Sequence[T], of_h: T) -> tuple[T, ...]:
    return (_aten.relu.default(_aten.add.Tensor(of_x, of_h)),)


_CELLS: dict[str, Step] = {
    "aten.lstm_cell.default": _step_lstm,
    "aten.gru_cell.default": _step_gru,
    "aten.rnn_tanh_cell.default": _step_tanh,
    "aten.rnn_relu_cell.default": _step_relu,
}
_LAYERS: dict[str, Step] = {
    "aten.lstm.input": _step_lstm,
    "aten.gru.input": _step_gru,
    "aten.rnn_tanh.input": _step_tanh,
    "aten.rnn_relu.input": _step_relu,
}


def write(node: Node, mode: FakeTensorMode, *, rolled: bool) -> GraphModule | None:
    """Write a recurrent call as a graph whose inputs are those of the node; None if it is something else."""
    name, graph = overload(node), Graph()
    tracer = GraphAppendingTracer(graph)
    given: dict[Node, Any] = {n: Proxy(graph.placeholder(n.name), tracer) for n in node.all_input_nodes}
    arguments: Any = map_arg(node.args, lambda n: given[n])
    if name in _CELLS:
        x, state, *weights = arguments
        result = _run_cell(_CELLS[name], x, state, weights)
    elif name in _LAYERS:
        shape = node.all_input_nodes[0].meta["val"].shape
        result = _run_layers(name, node.name if rolled else None, shape, *arguments)
    else:
        return None
    if result is None:
        return None
    graph.output(result.node if isinstance(result, Proxy) else tuple(part.node for part in result))
    module = GraphModule({}, graph)
    with torch.no_grad():
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*(n.meta["val"] for n in given))
    return module


def run_steps(
    layer: str,
    products: torch.Tensor,
    start: Sequence[torch.Tensor],
    w_h: torch.Tensor,
    b_h: torch.Tensor | None,
    w_r: torch.Tensor | None,
    axis: int,
    back: bool,
) -> tuple[torch.Tensor, ...]:
    """Compute the state before each step of a rolled layer, from the products of all inputs; only its shape if fake."""
    count = products.shape[axis]
    if isinstance(products, FakeTensor):
        return tuple(part.new_empty((*part.shape[:axis], count, *part.shape[axis:])) for part in start)
    state = tuple(start)
    seen: list[tuple[torch.Tensor, ...]] = [()] * count
    for at in range(count)[:: -1 if back else 1]:
        seen[at] = state
        state = _advance(_LAYERS[layer], products.select(axis, at), state, w_h, b_h, w_r)
    return tuple(torch.stack(parts, axis) for parts in zip(*seen, strict=True))


def _advance(step: Step, of_x: T, state: Sequence[T], w_h: T, b_h: T | None, w_r: T | None) -> tuple[T, ...]:
    """Compute the next state; a projection makes the output of a step smaller."""
    output, *others = step(of_x, state, _aten.linear.default(state[0], w_h, b_h))
    return output if w_r is None else _aten.linear.default(output, w_r), *others


def _run_cell(step: Step, x: Proxy, state: Proxy | Sequence[Proxy], weights: Sequence[Proxy | None]) -> _Results:
    w_x, w_h, b_x, b_h = [*weights, None, None][:4]
    before = (state,) if isinstance(state, Proxy) else tuple(state)
    after = step(_aten.linear.default(x, w_x, b_x), before, _aten.linear.default(before[0], w_h, b_h))
    return after[0] if isinstance(state, Proxy) else after


@dataclass(frozen=True)
class _Walk:
    """One layer in one direction."""

    layer: str
    weights: Sequence[Proxy]
    biases: bool
    axis: int
    count: int
    back: bool
    #: the name of the loop, if it is rolled
    loop: str | None

    def run(self, x: Proxy, state: tuple[Proxy, ...]) -> tuple[Proxy, tuple[Proxy, ...]]:
        """Return the outputs of all steps, and the last state."""
        w_x, w_h, *others = self.weights
        b_x, b_h = others[:2] if self.biases else (None, None)
        w_r = others[-1] if len(others) % 2 else None
        products = _aten.linear.default(x, w_x, b_x)
        order, step = range(self.count)[:: -1 if self.back else 1], _LAYERS[self.layer]
        if self.loop is None:
            outputs: dict[int, Proxy] = {}
            for at in order:
                state = _advance(step, _aten.select.int(products, self.axis, at), state, w_h, b_h, w_r)
                outputs[at] = state[0]
            return _aten.stack.default([outputs[at] for at in range(self.count)], self.axis), state
        arguments = (self.layer, products, state, w_h, b_h, w_r, self.axis, self.back)
        before = products.tracer.create_proxy("call_function", run_steps, arguments, {})
        before.node.meta[LOOP] = self.loop
        after = _advance(step, products, [before[part] for part in range(len(state))], w_h, b_h, w_r)
        for part, value in enumerate(after):
            value.node.meta[LOOP] = self.loop, part
        return after[0], tuple(_aten.select.int(value, self.axis, order[-1]) for value in after)


def _run_layers(
    layer: str,
    name: str | None,
    shape: Sequence[int],
    x: Proxy,
    states: Proxy | Sequence[Proxy],
    weights: Sequence[Proxy],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> _Results | None:
    """Run all layers of a module: return the output of every step, then each part of the last state."""
    walks = layers * (1 + bidirectional)
    each, rest = divmod(len(weights), walks)
    axis = 1 if batch_first else 0
    # A batch is needed to distinguish steps from the rest.
    if rest or len(shape) != 3 or (train and dropout) or (name is not None and shape[axis] > _MOST_STEPS):
        return None
    parts = (states,) if isinstance(states, Proxy) else tuple(states)
    last: list[tuple[Proxy, ...]] = []
    for first in range(0, walks, 1 + bidirectional):
        found: list[Proxy] = []
        for number in range(first, first + 1 + bidirectional):
            own = weights[number * each : (number + 1) * each]
            loop = None if name is None else f"{name}_{number}"
            walk = _Walk(layer, own, biases, axis, shape[axis], number > first, loop)
            outputs, state = walk.run(x, tuple(_aten.select.int(part, 0, number) for part in parts))
            found.append(outputs)
            last.append(state)
        x = found[0] if len(found) == 1 else _aten.cat.default(found, -1)
    return x, *(_aten.stack.default([state[part] for state in last], 0) for part in range(len(parts)))


def _mark(value: torch.Tensor | Proxy, key: str, mark: object) -> None:
    """Mark the node of a value in a graph; the steps also run on tensors."""
    if isinstance(value, Proxy):
        value.node.meta[key] = mark


def _chunk(gates: T, count: int) -> Iterator[T]:
    chunks = _aten.chunk.default(gates, count, -1)
    return (chunks[index] for index in range(count))
