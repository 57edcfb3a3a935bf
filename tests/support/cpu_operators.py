"""The operators that the records' samples call on the CPU of a .pte file when no delegate takes them."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.operator.convert import to_out_variant

from support.samples import exported
from tosaic.driver.exported import fill_scalars
from tosaic.ops import registry

#: An operator and the types of its tensors, one line each; `tests/rewrite_cpu_operators.py` writes it.
PATH = Path(__file__).parents[1] / "board" / "cpu_operators.txt"


def _name(target: Any) -> str:
    """The kernel's name in a .pte file: the variant with `out`, if there is one."""
    try:
        called = target.to_out_variant() if isinstance(target, EdgeOpOverload) else to_out_variant(target)[0]
    except RuntimeError:
        called = target
    schema: Any = called._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _list_types(node: torch.fx.Node) -> set[str]:
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    return {str(value.dtype).removeprefix("torch.") for value in values if isinstance(value, torch.Tensor)}


def _describe(program: Any) -> frozenset[tuple[str, str]]:
    """Operators and types of a graph: one of several samples with the same is enough."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return frozenset((str(node.target), str(getattr(node.meta.get("val"), "dtype", ""))) for node in nodes)


def find_operators(records: Iterable[str]) -> dict[str, set[str]]:
    """Find the operators of these records' samples, with the types of their tensors."""
    importlib.import_module("executorch.kernels.quantized")  # the variants with `out`
    found: dict[str, set[str]] = {}
    seen: set[frozenset[tuple[str, str]]] = set()
    for record in records:
        for index in range(len(registry().records[record].samples())):
            program = exported(record, index)[2]
            described = _describe(program)
            if described in seen:
                continue
            seen.add(described)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                edge = to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False))
            fill_scalars(edge.exported_program())
            for node in edge.exported_program().graph.nodes:
                if node.op == "call_function" and hasattr(node.target, "_schema"):
                    found.setdefault(_name(node.target), set()).update(_list_types(node))
    return found


def read_list() -> dict[str, set[str]]:
    """Read the list that is kept."""
    rows = (line.split() for line in PATH.read_text("utf-8").splitlines())
    return {operator: set(types) for operator, *types in rows}


def write_list(found: dict[str, set[str]]) -> str:
    return "".join(f"{' '.join([operator, *sorted(types)])}\n" for operator, types in sorted(found.items()))
