"""Decomposes operators without a record as torch does: einsum, std, glu, an LSTM.

Those with a record are decomposed by `prepare.decompose_composites`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from tosaic.fx.decompositions import core_decompositions
from tosaic.fx.source import overload, torch_op
from tosaic.fx.torch_compat import OpOverload, detect_fake_mode, make_fx
from tosaic.ops import registry
from tosaic.quantization.prepare import (
    KEPT_META,
    attribute,
    buffer,
    decompose_composites,
    fold_constants,
    is_float,
    make_functional,
    mutates,
    replace_result,
    strip_guards,
)
from tosaic.quantization.recurrent import LOOP, run_steps, write
from tosaic.quantization.widen_accumulated import STATE

#: a larger graph would not help: an LSTM of hundreds of steps
_MOST = 4000


def decompose_unknown(module: GraphModule, wanted: Callable[[Node], bool], *, rolled: bool = False) -> None:
    """Decompose operators without a record, if everything in torch's decomposition has one.

    rolled  recurrent layers are unrolled later, by `loops.unroll_loops`
    """
    for node in list(module.graph.nodes):
        if not _is_unknown(node) or not wanted(node):
            continue
        traced = _trace(node, rolled)
        if traced is not None and _is_known(traced):
            _inline(module, node, traced)


def simplify(program: ExportedProgram, has_integers: bool) -> ExportedProgram | GraphModule:
    """Decompose a program that is not quantized: operators without a record, data movement, and int64 indices."""
    if not any(_is_unknown(n) or _can_rewrite(n) for n in program.graph.nodes):
        return program
    module: GraphModule = program.module()
    strip_guards(module)
    make_functional(module)
    decompose_unknown(module, lambda node: True)
    fold_constants(module)
    decompose_composites(module, _can_rewrite, has_integers)
    module.graph.lint()
    module.recompile()
    return module


def _can_rewrite(node: Node) -> bool:
    """Tell whether a call moves data or looks it up, and may have a simpler form."""
    record = registry().find(overload(node))
    return record is not None and record.decompose is not None and (record.moves or record.looks_up)


def _is_unknown(node: Node) -> bool:
    op = torch_op(node) if node.op == "call_function" else None
    if not isinstance(op, OpOverload) or op.namespace != "aten" or mutates(node) or not is_float(node):
        return False
    return bool(node.all_input_nodes) and registry().find(overload(node)) is None and torch.Tag.pointwise not in op.tags


def _is_known(traced: GraphModule) -> bool:
    """Tell whether all can be lowered. Operators with indices known only at run time are better left whole."""
    fixed: set[Node] = set()
    for node in traced.graph.nodes:
        if node.op == "get_attr" or (node.op == "call_function" and fixed >= set(node.all_input_nodes)):
            fixed.add(node)
        elif node.op == "call_function" and overload(node) != "getitem" and node.target is not run_steps:
            record = registry().find(overload(node))
            if record is None and torch.Tag.pointwise not in getattr(torch_op(node), "tags", ()):
                return False
            if record is not None and record.looks_up and not fixed >= set(node.all_input_nodes[1:]):
                return False
    return True


@functools.cache
def _table() -> dict[Any, Any]:
    """Return torch's decompositions, without those of operators that have a record."""
    return {op: how for op, how in core_decompositions().items() if registry().find(str(op)) is None}


def _trace(node: Node, rolled: bool) -> GraphModule | None:
    """Trace torch's decomposition of a call; None if it is not simpler."""
    inputs = node.all_input_nodes

    def call(*values: torch.Tensor) -> object:
        given = dict(zip(inputs, values, strict=True))
        args: Any = map_arg(node.args, lambda n: given[n])
        kwargs: Any = map_arg(node.kwargs, lambda n: given[n])
        return torch_op(node)(*args, **kwargs)

    values = [n.meta["val"] for n in inputs]
    mode = detect_fake_mode(values)
    assert mode is not None
    try:
        traced = write(node, mode, rolled=rolled)
        if traced is None:
            with torch.no_grad(), mode:
                traced = make_fx(call, decomposition_table=_table())(*values)
                traced = make_fx(torch.func.functionalize(traced))(*values)
    except Exception:  # whatever torch fails on, the operator stays whole and falls back to the CPU
        return None
    traced.graph.eliminate_dead_code()
    made = [overload(n) for n in traced.graph.nodes if n.op == "call_function"]
    return None if overload(node) in made or len(made) > _MOST else traced


def _inline(module: GraphModule, node: Node, traced: GraphModule) -> None:
    """Replace a call by its trace; users of one of several results get that result directly."""
    given = iter(node.all_input_nodes)
    made: dict[Node, Any] = {}
    result: Any = None
    with module.graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "placeholder":
                made[inner] = next(given)
            elif inner.op == "get_attr":
                made[inner] = buffer(module, attribute(traced, inner), node)
            elif inner.op == "call_function":
                made[inner] = module.graph.node_copy(inner, lambda n: made[n])
                kept = {key: node.meta[key] for key in KEPT_META if key in node.meta}
                own = {key: inner.meta[key] for key in ("val", STATE, LOOP) if key in inner.meta}
                made[inner].meta = own | kept
            else:
                result = map_arg(inner.args[0], lambda n: made[n])
    replace_result(module.graph, node, result)
