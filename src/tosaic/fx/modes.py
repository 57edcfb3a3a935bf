"""Inlines code under `with torch.no_grad()` or `with torch.autocast()`, which export puts into separate graphs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast


def inline_modes(program: ExportedProgram) -> ExportedProgram:
    """Return the program as one graph: the casts of autocast become explicit, and gradients do not matter here."""
    if not any(_is_mode(n) for n in program.graph.nodes):
        return program
    module = GraphModule(program.graph_module, copy.deepcopy(program.graph))
    inline(module)
    signature = copy.deepcopy(program.graph_signature)
    results: Any = module.graph.output_node().args[0]
    for spec, node in zip(signature.output_specs, results, strict=True):
        if isinstance(node, Node):
            spec.arg.name = node.name
    inlined = ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )
    # Only torch knows which operators autocast changes.
    return inlined.run_decompositions({}) if any(_is_mode(n) for n in module.graph.nodes) else inlined


def inline(module: GraphModule) -> None:
    """Inline the graphs under `no_grad` and similar modes; those that autocast changes stay."""
    calls = [n for n in module.graph.nodes if _is_mode(n) and not (n.target is _AUTOCAST and n.args[2])]
    for call in calls:
        _inline_call(module, call)
    if calls:
        module.graph.eliminate_dead_code()
        module.recompile()


def _is_mode(node: Node) -> bool:
    return node.op == "call_function" and node.target in (_GRAD, _AUTOCAST)


def _inline_call(module: GraphModule, call: Node) -> None:
    """Replace a call of an inner graph by a copy of its nodes, which keep their locations in the user's code."""
    at = 1 if call.target is _GRAD else 4
    name: Any = call.args[at]
    inner = module.get_submodule(str(name.target))
    assert isinstance(inner, GraphModule)
    # The inner graph may be the user's own.
    body = GraphModule(inner, copy.deepcopy(inner.graph))
    inline(body)
    operands = iter(call.args[at + 1 :])
    made: dict[Node, Any] = {}
    with module.graph.inserting_before(call):
        for node in body.graph.nodes:
            if node.op == "placeholder":
                made[node] = next(operands)
            elif node.op == "get_attr":
                path = f"{name.target}.{node.target}"
                made[node] = module.graph.get_attr(path)
                made[node].meta = dict(node.meta)
            elif node.op != "output":
                made[node] = module.graph.node_copy(node, lambda n: made[n])
    results: Any = body.graph.output_node().args[0]
    for user in list(call.users):
        position: Any = user.args[1]
        user.replace_all_uses_with(made[results[position]])
        module.graph.erase_node(user)
    module.graph.erase_node(call)
