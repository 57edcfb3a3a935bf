"""Inlines code under `with torch.no_grad()` or `with torch.autocast()`, which export puts into separate graphs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from tosaic.fx.splice import rebuild, replace_call, splice

_GRAD = torch.ops.higher_order.wrap_with_set_grad_enabled
_AUTOCAST = torch.ops.higher_order.wrap_with_autocast


def inline_modes(program: ExportedProgram) -> ExportedProgram:
    """Return the program as one graph: the casts of autocast become explicit, and gradients do not matter here."""
    if not any(_is_mode(n) for n in program.graph.nodes):
        return program
    module = GraphModule(program.graph_module, copy.deepcopy(program.graph))
    inline(module)
    inlined = rebuild(program, module)
    # Only torch knows which operators autocast changes.
    return inlined.run_decompositions({}) if any(_is_mode(n) for n in module.graph.nodes) else inlined


def inline(module: GraphModule) -> None:
    """Inline the graphs under `no_grad` and similar modes; those that autocast changes stay."""
    changed = False
    while calls := [n for n in module.graph.nodes if _is_mode(n) and not (n.target is _AUTOCAST and n.args[2])]:
        for call in calls:
            at = 1 if call.target is _GRAD else 4
            name: Any = call.args[at]
            with module.graph.inserting_before(call):
                replace_call(call, splice(module, str(name.target), call.args[at + 1 :]))
        changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def _is_mode(node: Node) -> bool:
    return node.op == "call_function" and node.target in (_GRAD, _AUTOCAST)
