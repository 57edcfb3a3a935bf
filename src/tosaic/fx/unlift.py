"""Turns an exported program into a module with its parameters, as `program.module()` does, in a third of its time.

Torch generates the Python code of the module three times, copies the origin of every node, and adds a check of the
inputs, which rejects other batch sizes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx import graph as fx_graph
from torch.fx.traceback import NodeSource, NodeSourceAction

from tosaic.fx.torch_compat import LazyGraphModule

_LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def unlift(program: ExportedProgram) -> GraphModule:
    """Return a module that computes what a program does; it has the tensors of the program, and a graph of its own."""
    if not _is_simple(program):
        return program.module(check_guards=False)
    targets = {s.arg.name: str(s.target) for s in program.graph_signature.input_specs if s.kind in _LIFTED}
    graph: Any = Graph()
    made: dict[Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in targets:
            made[node] = graph.create_node("get_attr", targets[node.name], name=node.name)
            made[node].meta = {**node.meta}
        else:
            made[node] = graph.node_copy(node, lambda n: made[n])
        made[node].meta["from_node"] = [NodeSource(node, "unlift", NodeSourceAction.CREATE)]
    # They are named after the attributes, where no other node has that name.
    for node in graph.find_nodes(op="get_attr"):
        node._rename(graph._target_to_str(node.target))
    graph.set_codegen(_make_codegen(program))
    module = LazyGraphModule({name: _get_tensor(program, name) for name in targets.values()}, graph)
    module.training = program.graph_module.training
    module.meta.update(program.graph_module.meta)
    return module


def _is_simple(program: ExportedProgram) -> bool:
    """Tell whether a program only computes: it writes to no buffer and no input, and has no inner graphs."""
    signature = program.graph_signature
    inputs = all(s.kind in (*_LIFTED, InputKind.USER_INPUT) for s in signature.input_specs)
    outputs = all(s.kind is OutputKind.USER_OUTPUT for s in signature.output_specs)
    return inputs and outputs and not any(n.op in ("get_attr", "call_module") for n in program.graph.nodes)


def _get_tensor(program: ExportedProgram, name: str) -> torch.Tensor:
    found: Any = program.state_dict[name] if name in program.state_dict else program.constants[name]
    # Only parameters are trained.
    return found.detach() if found.requires_grad and not isinstance(found, torch.nn.Parameter) else found


def _make_codegen(program: ExportedProgram) -> Any:
    """Make what generates the code of a module that takes and returns what the program does."""
    spec: Any = program.call_spec.in_spec
    signature = program.module_call_graph[0].signature
    names = signature.forward_arg_names if signature is not None else None
    if not names:
        positional, named = spec.children()
        names = [*(f"arg_{index}" for index in range(positional.num_children)), *named.context]
    torch_graph: Any = fx_graph
    return torch_graph._PyTreeCodeGen(torch_graph._PyTreeInfo(names, spec, program.call_spec.out_spec))
