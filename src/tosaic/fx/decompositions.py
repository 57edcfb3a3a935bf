"""Torch's decompositions of operators, with types: torch's own tables have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.export import ExportedProgram

from tosaic.fx.torch_compat import OperatorBase, core_aten_decompositions, decomposition_table


def functionalize(program: ExportedProgram) -> ExportedProgram:
    """Return a program without in-place operators; composite operators stay whole."""
    return program.run_decompositions({})


def run_torch_decompositions(program: ExportedProgram, table: Any, custom_triton: bool) -> ExportedProgram:
    """Decompose a program as torch does, also one of a class that overrides `run_decompositions`."""
    return ExportedProgram.run_decompositions(program, table, custom_triton)


def core_decompositions() -> Mapping[OperatorBase, Callable[..., Any]]:
    """Return the decompositions to the core operators of ATen."""
    return core_aten_decompositions()


def find_registered(op: OperatorBase) -> Callable[..., Any] | None:
    """Find the decomposition that torch has registered for an operator, in any of its sets."""
    return decomposition_table.get(op)
