"""Every node on torch's own inputs: regions lowered with all inner tensors cut, one run of the reference model each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from tosaic.core.errors import Unsupported
from tosaic.core.specification import Specification
from tosaic.core.targets import Target
from tosaic.driver.partition import Partition
from tosaic.engines import reference
from tosaic.formats.tosa_writer import serialize
from tosaic.fx.source import QDQ, QUANTIZE, Source, bind, overload, torch_op
from tosaic.ir.verifier import verify
from tosaic.lower.tensor import Tensor
from tosaic.lower.walk import GraphLowering, exists_only_inside
from tosaic.ops import registry
from tosaic.passes import run_passes
from tosaic.quantization.prepare import mutates


@dataclass(frozen=True, slots=True)
class Wrong:
    """A node whose result is not what torch computes from the same inputs."""

    op: str
    detail: str


def run_torch(source: Source, inputs: Sequence[torch.Tensor]) -> dict[Node, Any]:
    """Every node's result when torch runs the graph."""
    seen: dict[Node, Any] = {}
    given = {n: x.clone() for n, x in zip(source.inputs, inputs, strict=True)}
    with torch.no_grad():
        for node in source.graph.nodes:
            if node in source.constants:
                seen[node] = source.constants[node].detach()
            elif node in source.states:
                seen[node] = source.states[node][0].clone()
            elif node in given:
                seen[node] = given[node]
            elif node.op == "call_function":
                seen[node] = call(node, lambda n: seen[n])
    return seen


def call(node: Node, look_up: Callable[[Node], Any]) -> Any:
    """What torch makes of a node; what it would change in place stays as it was."""
    args: Any = torch.fx.map_arg(node.args, look_up)
    kwargs: Any = torch.fx.map_arg(node.kwargs, look_up)
    if overload(node) == "getitem":
        return operator.getitem(*args)
    if mutates(node):
        args = (args[0].clone(), *args[1:])
    if overload(node) == "aten.view.default":
        # What comes from a delegate has other strides than in torch's own run.
        return args[0].reshape(args[1])
    return torch_op(node)(*args, **kwargs)


def check_region(source: Source, region: Partition, target: Target, seen: dict[Node, Any]) -> tuple[int, list[Wrong]]:
    """How many nodes were compared, and those that are wrong."""
    walk = GraphLowering(source, target)
    for node in region.inputs:
        walk.receive(node)
    given, computed = list(region.inputs), {}
    for node in region.nodes:
        result = walk.run(node)
        if (
            not isinstance(result, Tensor)
            or result.is_const
            or exists_only_inside(result)
            or not _can_be_given(seen[node])
        ):
            continue
        computed[node] = result
        given.append(node)
        walk.receive(node)
    if not computed:
        return 0, []
    walk.results.update(computed)
    try:
        graph = run_passes(walk.finish(list(computed)), target)
    except Unsupported as error:
        return 0, [Wrong("finish", f"a region that was found to be supported cannot be cut: {error.what}")]
    verify(graph, Specification.parse(target.tosa_spec))
    outputs = reference.run(serialize(graph), [_array(seen[n]) for n in given])
    wrong = [w for node, got in zip(computed, outputs, strict=True) for w in _compare(node, got, seen)]
    return len(computed), wrong


def _can_be_given(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is not torch.int64


def _array(value: torch.Tensor) -> Any:
    return value.detach().contiguous().numpy()


def depth_of(node: Node) -> int:
    """The most roundings to codes on a way to this node."""
    depths: dict[Node, int] = {}
    for one in node.graph.nodes:
        before = max((depths[n] for n in one.all_input_nodes), default=0)
        depths[one] = before + (overload_or(one) == QUANTIZE)
        if one is node:
            break
    return depths[node]


#: functions that turn a difference of one step into one of the whole range
_JUMPS = ("remainder", "fmod", "floor_divide", "floor_mod")


def jumps_after_rounding(node: Node) -> bool:
    """Whether a result depends on the remainder of a number that was rounded on the way, not only as an input."""
    found: set[Node] = set()
    for one in node.graph.nodes:
        is_jump = one.op == "call_function" and any(f".{name}" in overload_or(one) for name in _JUMPS)
        if not found.isdisjoint(one.all_input_nodes) or (is_jump and any(depth_of(n) > 1 for n in one.all_input_nodes)):
            found.add(one)
    return node in found


def stage_of(node: Node) -> list[Node]:
    """The calls between the tensors that were cut and this one, without quantize and dequantize."""
    found: list[Node] = []
    todo = [node]
    while todo:
        one = todo.pop()
        if one.op != "call_function" or one in found or (one is not node and overload(one) == QUANTIZE):
            continue
        if overload(one) not in QDQ:
            found.append(one)
            if overload(node) != QUANTIZE:
                break
        todo.extend(one.all_input_nodes)
    return found


def _compare(node: Node, got: Any, seen: dict[Node, Any]) -> Iterator[Wrong]:
    want = _array(seen[node])
    stage = stage_of(node)
    name = " ".join(dict.fromkeys(overload(n) for n in reversed(stage))) or overload(node)
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        yield Wrong(name, f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}")
        return
    if got.dtype.kind == "f":
        yield from _compare_floats(name, got, want)
        return
    defined = np.ones(want.shape, np.bool_)
    exact = True
    if overload(node) == QUANTIZE:
        # What becomes of no number in a cast to integers is not defined.
        defined = ~np.isnan(_array(seen[node.all_input_nodes[0]]))
        exact = _is_exact(node, stage)
    steps = np.abs(got.astype(np.int64) - want.astype(np.int64))[defined]
    if not steps.size or steps.max() == 0:
        return
    worst, many = int(steps.max()), bool(want.dtype == np.int16)
    share = float((steps <= (2 if many else 1)).mean())
    allowed = 0 if exact else 4 if many else 1
    if worst > allowed or (many and share < 0.999):
        where = np.unravel_index(int(np.abs(got.astype(np.int64) - want.astype(np.int64)).argmax()), want.shape)
        yield Wrong(
            name,
            f"off by {worst} steps in {want.dtype}{list(want.shape)}, {int((steps > 0).sum())} elements differ, "
            f"at {tuple(int(i) for i in where)} {got[where]} instead of {want[where]}",
        )


def quantizes_nan(source: Source, seen: Mapping[Node, Any]) -> bool:
    """Whether torch's graph casts NaN to integers anywhere, such as acos of a quantized number just above 1."""
    stored = [n for n in source.calls() if overload(n) == QUANTIZE]
    return any(bool(np.isnan(_array(seen[n.all_input_nodes[0]])).any()) for n in stored)


def _is_exact(node: Node, stage: Sequence[Node]) -> bool:
    """Whether a stage only moves codes: nothing but data movement between equal scales."""
    records = [registry().find(overload(n)) for n in stage]
    if not all(r is not None and r.moves for r in records):
        return False
    own = [bind(node)[k] for k in ("scale", "zero_point")]
    before = [n for one in (node, *stage) for n in one.all_input_nodes if overload_or(n) in QDQ]
    return bool(before) and all([bind(n)[k] for k in ("scale", "zero_point")] == own for n in before)


def overload_or(node: Node) -> str:
    return overload(node) if node.op == "call_function" else ""


def _compare_floats(name: str, got: Any, want: Any) -> Iterator[Wrong]:
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        gap = np.where(same, 0.0, np.abs(a - b))
    gap = np.where(np.isnan(gap), np.inf, gap)
    bound = 1e-5 * max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0.0)))
    if gap.size and gap.max() > bound:
        where = np.unravel_index(int(gap.argmax()), gap.shape)
        at = tuple(int(i) for i in where)
        yield Wrong(name, f"off by {gap.max():g} (allowed {bound:g}), at {at} {got[where]} instead of {want[where]}")
