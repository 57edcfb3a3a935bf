"""A random model as data: leaves, calls of aten operators, outputs. It runs in torch and prints as a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: what a leaf can be; a piece is a slice of a parameter that is larger by one
KINDS = ("input", "parameter", "buffer", "piece")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that is not computed: an input or a constant, with all that its numbers follow from.

    Floats are uniform in [low, high], integers are drawn from low to high, both included. A mask is a float tensor of
    zeros and minus infinities that never hides a whole row.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    low: float = -2.0
    high: float = 2.0
    seed: int = 0
    channels_last: bool = False
    mask: bool = False


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the graph: leaf or step `number`; `item` where the step gives several tensors."""

    kind: str
    number: int
    item: int | None = None

    def __repr__(self) -> str:
        return f"{self.kind}{self.number}" + ("" if self.item is None else f"[{self.item}]")


@dataclass(frozen=True, slots=True)
class Step:
    """One call of an operator, `aten.add.Tensor`; tensors among the arguments are `Ref`."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def refs(self) -> list[Ref]:
        return [r for a in (*self.args, *(v for _, v in self.kwargs)) for r in _leaves(a)]


@dataclass(frozen=True, slots=True)
class Graph:
    """A model: leaves, steps in order of execution, and what is returned."""

    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Ref, ...]

    def inputs(self) -> list[int]:
        return [i for i, leaf in enumerate(self.leaves) if leaf.kind == "input"]


def _leaves(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one)


def map_refs(value: Any, function: Callable[[Ref], Any]) -> Any:
    """An argument with every `Ref` in it replaced."""
    if isinstance(value, Ref):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_refs(v, function) for v in value)
    return value


def rewire(step: Step, function: Callable[[Ref], Any]) -> Step:
    kwargs = tuple((k, map_refs(v, function)) for k, v in step.kwargs)
    return Step(step.op, map_refs(step.args, function), kwargs)


def find_op(name: str) -> Any:
    """The torch overload of `aten.add.Tensor`."""
    value: Any = torch.ops
    for part in name.split("."):
        value = getattr(value, part)
    return value


def draw(leaf: Leaf) -> torch.Tensor:
    """The numbers of a leaf. A piece is drawn whole: one more along its first dimension."""
    shape = leaf.shape
    if leaf.kind == "piece":
        shape = (shape[0] + 1, *shape[1:])
    generator = torch.Generator().manual_seed(leaf.seed)
    if leaf.mask:
        hidden = torch.rand(shape, generator=generator) < 0.4
        hidden[..., 0] = False
        out = torch.zeros(shape).masked_fill(hidden, -math.inf)
    elif leaf.dtype is torch.bool:
        out = torch.rand(shape, generator=generator) < 0.6
    elif leaf.dtype.is_floating_point:
        out = (torch.rand(shape, generator=generator) * (leaf.high - leaf.low) + leaf.low).to(leaf.dtype)
    else:
        out = torch.randint(int(leaf.low), int(leaf.high) + 1, shape, generator=generator, dtype=leaf.dtype)
    return out.contiguous(memory_format=torch.channels_last) if leaf.channels_last else out


def call(step: Step, look_up: Callable[[Ref], Any]) -> Any:
    ready = rewire(step, look_up)
    return find_op(step.op)(*ready.args, **dict(ready.kwargs))


class Model(torch.nn.Module):
    """The graph as a module; constants are parameters and buffers `p0`, `p1` ... by the number of their leaf."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        for i, leaf in enumerate(graph.leaves):
            if leaf.kind == "buffer":
                self.register_buffer(f"p{i}", draw(leaf))
            elif leaf.kind != "input":
                self.register_parameter(f"p{i}", torch.nn.Parameter(draw(leaf), requires_grad=False))

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: dict[tuple[str, int], Any] = {}
        given = iter(inputs)
        for i, leaf in enumerate(self.graph.leaves):
            if leaf.kind == "input":
                values["x", i] = next(given)
            else:
                values["x", i] = getattr(self, f"p{i}")[1:] if leaf.kind == "piece" else getattr(self, f"p{i}")

        def look_up(ref: Ref) -> Any:
            value = values[ref.kind, ref.number]
            return value if ref.item is None else value[ref.item]

        for i, step in enumerate(self.graph.steps):
            values["v", i] = call(step, look_up)
        return tuple(look_up(ref) for ref in self.graph.outputs)


def example(graph: Graph) -> tuple[torch.Tensor, ...]:
    return tuple(draw(leaf) for leaf in graph.leaves if leaf.kind == "input")


def prune(graph: Graph) -> Graph:
    """The graph without steps and leaves that nothing reads; numbers are given anew."""
    needed: set[tuple[str, int]] = {(r.kind, r.number) for r in graph.outputs}
    kept: list[int] = []
    for i in reversed(range(len(graph.steps))):
        step = graph.steps[i]
        in_place = step.op.split(".")[1].endswith("_")
        if ("v", i) in needed or in_place:
            kept.insert(0, i)
            needed |= {(r.kind, r.number) for r in step.refs()}
    leaves = [i for i in range(len(graph.leaves)) if ("x", i) in needed]
    place = {("v", old): new for new, old in enumerate(kept)} | {("x", old): new for new, old in enumerate(leaves)}

    def move(ref: Ref) -> Ref:
        return Ref(ref.kind, place[ref.kind, ref.number], ref.item)

    steps = tuple(rewire(graph.steps[i], move) for i in kept)
    return Graph(tuple(graph.leaves[i] for i in leaves), steps, tuple(move(r) for r in graph.outputs))


_DRAW = """\
def draw(shape, low, high, dtype, seed, last=False, mask=False):
    generator = torch.Generator().manual_seed(seed)
    if mask:
        hidden = torch.rand(shape, generator=generator) < 0.4
        hidden[..., 0] = False
        out = torch.zeros(shape).masked_fill(hidden, -math.inf)
    elif dtype is torch.bool:
        out = torch.rand(shape, generator=generator) < 0.6
    elif dtype.is_floating_point:
        out = (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)
    else:
        out = torch.randint(int(low), int(high) + 1, shape, generator=generator, dtype=dtype)
    return out.contiguous(memory_format=torch.channels_last) if last else out
"""


def write(graph: Graph, ending: Sequence[str] = ()) -> str:
    """The graph as a program of its own; `ending` is what it does with `Net`, `model` and `inputs`."""
    lines = ["import math", "", "import torch", "", "", *_DRAW.splitlines(), "", "", "class Net(torch.nn.Module):"]
    constants = [i for i, leaf in enumerate(graph.leaves) if leaf.kind != "input"]
    if constants:
        lines += ["    def __init__(self):", "        super().__init__()"]
    for i in constants:
        leaf, numbers = graph.leaves[i], _write_draw(graph.leaves[i])
        if leaf.kind == "buffer":
            lines.append(f'        self.register_buffer("p{i}", {numbers})')
        else:
            lines.append(f"        self.p{i} = torch.nn.Parameter({numbers}, requires_grad=False)")
    names = "".join(f", x{i}" for i in graph.inputs())
    lines += ["", f"    def forward(self{names}):"]
    for i in constants:
        lines.append(f"        x{i} = self.p{i}" + ("[1:]" if graph.leaves[i].kind == "piece" else ""))
    for i, step in enumerate(graph.steps):
        given = [_write_value(a) for a in step.args] + [f"{k}={_write_value(v)}" for k, v in step.kwargs]
        lines.append(f"        v{i} = torch.ops.{step.op}({', '.join(given)})")
    lines.append(f"        return ({''.join(f'{r!r}, ' for r in graph.outputs)})")
    inputs = "".join(f"{_write_draw(graph.leaves[i])}, " for i in graph.inputs())
    lines += ["", "", "model = Net().eval()", f"inputs = ({inputs})", *ending]
    return "\n".join(lines) + "\n"


def _write_draw(leaf: Leaf) -> str:
    shape = (leaf.shape[0] + 1, *leaf.shape[1:]) if leaf.kind == "piece" else leaf.shape
    extra = (", last=True" if leaf.channels_last else "") + (", mask=True" if leaf.mask else "")
    return f"draw({shape}, {leaf.low!r}, {leaf.high!r}, {leaf.dtype}, {leaf.seed}{extra})"


def _write_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_write_value(v) for v in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    return repr(value)
