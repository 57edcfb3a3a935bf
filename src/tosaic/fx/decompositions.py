"""Torch's decompositions of operators, with types: torch's own tables have none."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from tosaic.fx.source import bind, input_node
from tosaic.fx.splice import rebuild
from tosaic.fx.torch_compat import OperatorBase, core_aten_decompositions, decomposition_table


def functionalize(program: ExportedProgram) -> ExportedProgram:
    """Return a program without in-place operators; composite operators stay whole."""
    return _remove_dropouts(program).run_decompositions({_TRAINED: decomposition_table[_TRAINED]})


def updates_statistics(node: Node) -> bool:
    """Tell whether a call is a batch norm in train mode that also updates its running statistics."""
    if node.target is torch.ops.aten.batch_norm.default:
        arguments = bind(node)
        return bool(arguments["training"]) and arguments["running_mean"] is not None
    return node.target is _TRAINED


#: what a batch norm in train mode becomes in a functional program; ExecuTorch has no kernel for it
_TRAINED = torch.ops.aten._native_batch_norm_legit_functional.default


def _remove_dropouts(program: ExportedProgram) -> ExportedProgram:
    """Return a program without the dropouts that are off: they return their operand itself, and torch forgets that."""
    if not any(map(_is_off, program.graph.nodes)):
        return program
    module = GraphModule(program.graph_module, copy.deepcopy(program.graph))
    for node in [n for n in module.graph.nodes if _is_off(n)]:
        node.replace_all_uses_with(input_node(node))
        module.graph.erase_node(node)
    return rebuild(program, module)


def _is_off(node: Node) -> bool:
    return node.op == "call_function" and node.target in _DROPOUTS and node.args[2:] == (False,)


_DROPOUTS = tuple(
    getattr(torch.ops.aten, name).default
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)


def run_torch_decompositions(program: ExportedProgram, table: Any, custom_triton: bool) -> ExportedProgram:
    """Decompose a program as torch does, also one of a class that overrides `run_decompositions`."""
    return ExportedProgram.run_decompositions(program, table, custom_triton)


def core_decompositions() -> Mapping[OperatorBase, Callable[..., Any]]:
    """Return the decompositions to the core operators of ATen."""
    return core_aten_decompositions()


def find_registered(op: OperatorBase) -> Callable[..., Any] | None:
    """Find the decomposition that torch has registered for an operator, in any of its sets."""
    return decomposition_table.get(op)
