"""Copies inner graphs, which export makes of modes, branches and loops, into the graph that calls them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import OutputSpec
from torch.fx import Graph, GraphModule, Node

#: metadata that new nodes have from the call that they replace
_KEPT_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")


def splice(module: GraphModule, name: str, operands: Sequence[Any]) -> list[Any]:
    """Copy the nodes of an inner graph to where nodes are inserted, and return its results.

    The copies keep their locations in the user's code.
    """
    inner = get_inner(module, name)
    given, made = iter(operands), dict[Node, Any]()
    for node in inner.graph.nodes:
        if node.op == "placeholder":
            made[node] = next(given)
        elif node.op == "get_attr":
            made[node] = module.graph.get_attr(f"{name}.{node.target}")
            made[node].meta = dict(node.meta)
        elif node.op != "output":
            made[node] = module.graph.node_copy(node, lambda n: made[n])
    results: Any = inner.graph.output_node().args[0]
    listed = list(results) if isinstance(results, (list, tuple)) else [results]
    return [made.get(result) if isinstance(result, Node) else result for result in listed]


def get_inner(module: GraphModule, name: str) -> GraphModule:
    """Return an inner graph by its name."""
    inner = module.get_submodule(name)
    assert isinstance(inner, GraphModule)
    return inner


def replace_call(call: Node, results: Sequence[Any]) -> None:
    """Replace a call with several results by what computes them."""
    for user in list(call.users):
        position: Any = user.args[1]
        user.replace_all_uses_with(results[position])
        call.graph.erase_node(user)
    call.graph.erase_node(call)


def insert(call: Node, target: Any, *args: Any) -> Node:
    """Insert a call with the location and the mode of another one, whose values are known by their types."""
    node = call.graph.call_function(target, args)
    node.meta |= {key: call.meta[key] for key in _KEPT_META if key in call.meta}
    values = [_get_val(arg) for arg in args]
    mode = next(value.fake_mode for value in _flatten(values) if hasattr(value, "fake_mode"))
    with mode:
        node.meta["val"] = target(*values)
    return node


def _get_val(arg: Any) -> Any:
    if isinstance(arg, list):
        return [_get_val(one) for one in arg]
    return arg.meta["val"] if isinstance(arg, Node) else arg


def _flatten(values: Sequence[Any]) -> list[Any]:
    return [one for value in values for one in (value if isinstance(value, list) else [value])]


def name_results(graph: Graph, specs: Sequence[OutputSpec]) -> None:
    """Give the results of a graph their names in the signature of its program."""
    results: Any = graph.output_node().args[0]
    for spec, node in zip(specs, results, strict=True):
        if isinstance(node, Node):
            spec.arg.name = node.name


def rebuild(program: ExportedProgram, module: GraphModule) -> ExportedProgram:
    """Return a program with a changed graph of the same inputs and results."""
    signature = copy.deepcopy(program.graph_signature)
    name_results(module.graph, signature.output_specs)
    return ExportedProgram(
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
