"""Calls that the registry's samples make, as templates: every record, every argument it is tested with."""

from __future__ import annotations

import functools
import math
import warnings
import zlib
from dataclasses import dataclass
from typing import Any

import torch

from support.modules import Call
from tosaic.fx.source import Source, overload, torch_op
from tosaic.lower.samples import Input, Sample
from tosaic.ops import registry

DTYPES = (torch.float32, torch.int32, torch.int64, torch.bool, torch.int8)
#: larger tensors make a graph slow and show nothing new
MOST_ELEMENTS = 8192


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor argument of a template: what the sample has there."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    low: float
    high: float
    constant: bool
    mask: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """A call with slots for tensors."""

    record: str
    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]


def _draw(spec: Input, generator: torch.Generator) -> torch.Tensor:
    if spec.dtype == "float32":
        return torch.rand(spec.shape, generator=generator) * (spec.high - spec.low) + spec.low
    return torch.randint(int(spec.low), int(spec.high), spec.shape, generator=generator, dtype=torch.int32)


def _make(sample: Sample, name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    seed = zlib.crc32(name.encode())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = sample.call() if sample.module else Call(sample.call)
    generator = torch.Generator().manual_seed(seed)
    return model.eval(), tuple(_draw(i, generator) for i in sample.inputs)


@functools.cache
def list_samples(name: str) -> list[Sample]:
    """The samples that some target takes."""
    return [sample for sample in registry().records[name].samples() if sample.flavors]


@functools.cache
def names() -> list[str]:
    """The records that have samples."""
    return [name for name in registry().records if list_samples(name)]


@functools.cache
def count(name: str) -> int:
    return len(list_samples(name))


@functools.cache
def templates(name: str, index: int, decomposed: bool) -> tuple[Template, ...]:
    """The calls that a sample exports to; with `decomposed` those of core ATen, which the ExecuTorch API sees."""
    model, inputs = _make(list_samples(name)[index], f"{name}-{index}")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, inputs)
        if decomposed:
            program = program.run_decompositions()
        source = Source.of_program(program)
        given = iter(inputs)
        values = [source.constants[n] if n in source.constants else next(given) for n in _placeholders(program)]
        seen = _Recorder(program.graph_module).record(values)
    found: list[Template] = []
    for node in source.calls():
        record = registry().find(overload(node))
        if record is None or record.name == "assert_metadata" or not hasattr(torch_op(node), "_schema"):
            continue
        made = _template(record.name, node, seen, source)
        if made is not None:
            found.append(made)
    return tuple(found)


def _placeholders(program: Any) -> list[torch.fx.Node]:
    return [n for n in program.graph.nodes if n.op == "placeholder"]


class _Recorder(torch.fx.Interpreter):
    """Keeps every node's result."""

    def record(self, values: list[torch.Tensor]) -> dict[torch.fx.Node, Any]:
        self.seen: dict[torch.fx.Node, Any] = {}
        self.run(*[v.clone() for v in values])
        return self.seen

    def run_node(self, n: torch.fx.Node) -> Any:
        out = super().run_node(n)
        self.seen[n] = out
        return out


def _template(record: str, node: torch.fx.Node, seen: dict[torch.fx.Node, Any], source: Source) -> Template | None:
    slots = {n: _slot(seen[n], n in source.constants) for n in node.all_input_nodes}
    if any(s is None for s in slots.values()):
        return None

    def put(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return slots[value]
        return [put(v) for v in value] if isinstance(value, (list, tuple)) else value

    kwargs = tuple((k, put(v)) for k, v in node.kwargs.items())
    return Template(record, overload(node), tuple(put(a) for a in node.args), kwargs)


def _slot(value: Any, constant: bool) -> Slot | None:
    if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES or value.numel() > MOST_ELEMENTS:
        return None
    mask = value.is_floating_point() and bool(torch.isinf(value).any())
    low, high = -2.0, 2.0
    if value.numel() and value.dtype is not torch.bool and not mask:
        low, high = float(value.min()), float(value.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    if low == high:
        # A bias of zeros: any number does.
        low, high = (low - 0.5, high + 0.5) if value.is_floating_point() else (low, high)
    return Slot(tuple(value.shape), value.dtype, round(low, 3), round(high, 3), constant, mask and value.dim() > 0)
