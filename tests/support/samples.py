"""Turns a registry sample into a module, inputs, and a quantized graph. Cached: all flavors of a sample share it."""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from support.modules import Call
from support.shortcuts import without_qat_patterns
from tosaic.fx.source import DEQUANTIZE, QDQ, QUANTIZE, overload
from tosaic.lower.samples import Input, Sample
from tosaic.ops import registry
from tosaic.quantization.precisions import PRECISIONS
from tosaic.quantization.quantizer import TosaQuantizer


def draw(spec: Input, generator: torch.Generator) -> torch.Tensor:
    if spec.dtype == "float32":
        return torch.rand(spec.shape, generator=generator) * (spec.high - spec.low) + spec.low
    drawn = torch.randint(int(spec.low), int(spec.high), spec.shape, generator=generator, dtype=torch.int32)
    return drawn.to(getattr(torch, spec.dtype))


def make(sample: Sample, name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The module of a sample, with weights and inputs that depend on the sample alone."""
    seed = zlib.crc32(name.encode())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = sample.call() if sample.module else Call(sample.call)
    generator = torch.Generator().manual_seed(seed)
    return model.eval(), tuple(draw(i, generator) for i in sample.inputs)


def sample_of(op: str, index: int) -> Sample:
    return registry().records[op].samples()[index]


@functools.lru_cache(maxsize=4)
def exported(op: str, index: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], Any]:
    model, inputs = make(sample_of(op, index), f"{op}-{index}")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, inputs, torch.export.export(model, tuple(x.clone() for x in inputs))


def has_floats(program: Any) -> bool:
    """Whether there is anything to quantize: an embedding takes integers and gives floats."""
    values = [n.meta.get("val") for n in program.graph.nodes]
    return any(isinstance(v, torch.Tensor) and v.is_floating_point() for v in values)


def quantized(op: str, index: int, precision: str = "int8") -> tuple[Any, tuple[torch.Tensor, ...]]:
    """The converted graph (plain integers are left as they are), the same object for the same sample."""
    return quantize_sample(op, index, precision)


@functools.lru_cache(maxsize=4)
def quantize_sample(op: str, index: int, precision: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    _, inputs, program = exported(op, index)
    if not has_floats(program):
        return program.module(), inputs
    quantizer = TosaQuantizer().set_global(PRECISIONS[precision]())
    with torch.no_grad(), warnings.catch_warnings(), without_qat_patterns():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(program.module(), quantizer)
        prepared(*inputs)
        return convert_pt2e(prepared), inputs


def full_range(op: str, index: int, nodes: Sequence[torch.fx.Node], seed: int, precision: str = "int8") -> list[Any]:
    """Numbers for the inputs of a region: all codes that the type has; plain integers as the sample draws them."""
    module, inputs = quantized(op, index, precision)
    seen = values_of(module, inputs)
    generator = torch.Generator().manual_seed(seed)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    drawn: list[Any] = []
    for node in nodes:
        kind, shape = seen[node].dtype, seen[node].shape
        if node in placeholders and kind is not torch.int8:
            drawn.append(draw(sample_of(op, index).inputs[placeholders.index(node)], generator).to(kind).numpy())
        else:
            low, high = torch.iinfo(kind).min, torch.iinfo(kind).max
            drawn.append(torch.randint(low, high + 1, shape, generator=generator, dtype=kind).numpy())
    return drawn


def values_of(module: Any, inputs: tuple[torch.Tensor, ...]) -> dict[torch.fx.Node, Any]:
    """Every node's result when torch runs the graph."""
    seen: dict[torch.fx.Node, Any] = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            seen[n] = super().run_node(n)
            return seen[n]

    with torch.no_grad():
        Recorder(module).run(*[x.clone() for x in inputs])
    return seen


def cut(module: Any, seen: dict[torch.fx.Node, Any]) -> tuple[Any, list[torch.fx.Node], list[torch.fx.Node]]:
    """Cut a converted graph, whose values were `seen`, at every quantized one: each stage has inputs of its own.

    Returns the cut module, and the nodes of the whole one whose values its inputs take and its outputs have.
    """
    found = [n for n in module.graph.nodes if n.op == "call_function" and overload(n) in QDQ]
    reads = {n.args[0] for n in found if overload(n) == DEQUANTIZE}
    made = [n for n in found if overload(n) == QUANTIZE and n.args[0].op != "placeholder"]
    inputs = [n for n in module.graph.nodes if n.op == "placeholder" or (n in reads and n.op != "get_attr")]
    graph = torch.fx.Graph()
    stored: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in inputs:
        stored[node] = graph.placeholder(node.name)
        stored[node].meta = {**node.meta, "val": seen[node]}
    copies = dict(stored)
    for node in module.graph.nodes:
        if node.op == "output" or (node in stored and node not in made):
            continue
        new = graph.node_copy(node, lambda n: stored.get(n, copies.get(n, n)))
        copies[node] = new
    left = [
        n for n in tree_leaves(module.graph.output_node().args) if n not in made and not seen[n].is_floating_point()
    ]
    outputs = [*made, *(n for n in left if n not in inputs)]
    graph.output(tuple(copies[n] for n in outputs))
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(module, graph), inputs, outputs
