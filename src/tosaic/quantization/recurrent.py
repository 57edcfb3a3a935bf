"""Unrolls recurrent layers and cells into single steps.

Torch computes its cells in place, in slices: a trace of them contains nothing that can be lowered. Here the inputs of
all steps are multiplied at once, and a step is reduced to one product with the state and the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.node import map_aggregate, map_arg
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.fx.proxy import GraphAppendingTracer

from tosaic.fx.source import overload
from tosaic.quantization.widen_accumulated import STATE

_aten = torch.ops.aten
#: from here on a tanh in 8 bits saturates to 1
_TANH_SATURATION = 4.0
#: One step: takes the product of its input, the state, and the product of the state; returns the next state, output
#: first.
Step: TypeAlias = Callable[[Proxy, Sequence[Proxy], Proxy], tuple[Proxy, ...]]


def _step_lstm(of_x: Proxy, state: Sequence[Proxy], of_h: Proxy) -> tuple[Proxy, ...]:
    begin, keep, new, show = _chunk(_aten.add.Tensor(of_x, of_h), 4)
    kept = _aten.mul.Tensor(_aten.sigmoid.default(keep), state[1])
    c = _aten.add.Tensor(kept, _aten.mul.Tensor(_aten.sigmoid.default(begin), _aten.tanh.default(new)))
    # It grows far beyond the saturation of its tanh, and is accumulated over many steps.
    c.node.meta[STATE] = True
    seen = _aten.hardtanh.default(c, -_TANH_SATURATION, _TANH_SATURATION)
    return _aten.mul.Tensor(_aten.sigmoid.default(show), _aten.tanh.default(seen)), c


def _step_gru(of_x: Proxy, state: Sequence[Proxy], of_h: Proxy) -> tuple[Proxy, ...]:
    (reset_x, keep_x, new_x), (reset_h, keep_h, new_h) = _chunk(of_x, 3), _chunk(of_h, 3)
    reset, keep = (_aten.sigmoid.default(_aten.add.Tensor(*pair)) for pair in ((reset_x, reset_h), (keep_x, keep_h)))
    new = _aten.tanh.default(_aten.add.Tensor(new_x, _aten.mul.Tensor(reset, new_h)))
    return (_aten.add.Tensor(new, _aten.mul.Tensor(keep, _aten.sub.Tensor(state[0], new))),)


def _step_tanh(of_x: Proxy, state: Sequence[Proxy], of_h: Proxy) -> tuple[Proxy, ...]:
    return (_aten.tanh.default(_aten.add.Tensor(of_x, of_h)),)


def _step_relu(of_x: Proxy, state: Sequence[Proxy], of_h: Proxy) -> tuple[Proxy, ...]:
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


def unroll(node: Node, mode: Any) -> GraphModule | None:
    """Unroll a recurrent call into a graph whose inputs are those of the node; None if it is something else."""
    name, graph = overload(node), Graph()
    tracer = GraphAppendingTracer(graph)
    given: dict[Node, Any] = {n: Proxy(graph.placeholder(n.name), tracer) for n in node.all_input_nodes}
    arguments: Any = map_arg(node.args, lambda n: given[n])
    if name in _CELLS:
        x, state, *weights = arguments
        result = _run_cell(_CELLS[name], x, state, weights)
    elif name in _LAYERS:
        shape = node.all_input_nodes[0].meta["val"].shape
        result = _run_layers(_LAYERS[name], shape, *arguments)
    else:
        return None
    if result is None:
        return None
    graph.output(map_aggregate(result, lambda a: a.node if isinstance(a, Proxy) else a))
    module = GraphModule({}, graph)
    with torch.no_grad():
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*(n.meta["val"] for n in given))
    return module


def _run_cell(step: Step, x: Proxy, state: Proxy | Sequence[Proxy], weights: Sequence[Proxy | None]) -> Any:
    w_x, w_h, b_x, b_h = [*weights, None, None][:4]
    before = (state,) if isinstance(state, Proxy) else tuple(state)
    after = step(_aten.linear.default(x, w_x, b_x), before, _aten.linear.default(before[0], w_h, b_h))
    return after[0] if isinstance(state, Proxy) else after


@dataclass(frozen=True)
class _Walk:
    """One layer in one direction."""

    step: Step
    weights: Sequence[Proxy]
    axis: int
    steps: Sequence[int]

    def run(self, x: Proxy, state: tuple[Proxy, ...]) -> tuple[dict[int, Proxy], tuple[Proxy, ...]]:
        w_x, w_h, b_x, b_h = (*self.weights, None, None)[:4]
        products = _aten.linear.default(x, w_x, b_x)
        outputs: dict[int, Proxy] = {}
        for at in self.steps:
            of_x = _aten.select.int(products, self.axis, at)
            state = self.step(of_x, state, _aten.linear.default(state[0], w_h, b_h))
            outputs[at] = state[0]
        return outputs, state


def _run_layers(
    step: Step,
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
) -> Any:
    """Run all layers of a module: return the output of every step, then each part of the last state."""
    directions, each = 1 + bidirectional, 4 if biases else 2
    # A projection has more weights; a batch is needed to distinguish steps from the rest.
    if len(weights) != layers * directions * each or len(shape) != 3 or (train and dropout):
        return None
    parts = (states,) if isinstance(states, Proxy) else tuple(states)
    axis = 1 if batch_first else 0
    last: list[tuple[Proxy, ...]] = []
    for layer in range(layers):
        found: list[dict[int, Proxy]] = []
        for direction in range(directions):
            number = layer * directions + direction
            steps = range(shape[axis])[:: -1 if direction else 1]
            walk = _Walk(step, weights[number * each : (number + 1) * each], axis, steps)
            outputs, state = walk.run(x, tuple(_aten.select.int(part, 0, number) for part in parts))
            found.append(outputs)
            last.append(state)
        x = _aten.stack.default([_join([outputs[at] for outputs in found]) for at in range(shape[axis])], axis)
    return x, *(_aten.stack.default([state[part] for state in last], 0) for part in range(len(parts)))


def _join(outputs: list[Proxy]) -> Proxy:
    return outputs[0] if len(outputs) == 1 else _aten.cat.default(outputs, -1)


def _chunk(gates: Proxy, count: int) -> Iterator[Proxy]:
    chunks = _aten.chunk.default(gates, count, -1)
    return (chunks[index] for index in range(count))
