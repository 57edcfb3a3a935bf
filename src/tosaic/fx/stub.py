"""Exported programs without content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch.export import ExportedProgram
from torch.export import graph_signature as specs
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.fx import Graph, GraphModule

from tosaic.fx.torch_compat import pytree


def stub(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> ExportedProgram:
    """Make a program with the delegate's types and no content: exir only queries its shapes."""
    graph, arguments, results = Graph(), [], []
    for i, fake in enumerate(inputs):
        node = graph.placeholder(f"x{i}")
        node.meta["val"] = fake
        arguments.append(specs.InputSpec(specs.InputKind.USER_INPUT, specs.TensorArgument(f"x{i}"), None))
    nodes = []
    for fake in outputs:
        full = torch.ops.aten.full.default
        node = graph.call_function(full, (list(fake.shape), 0), {"dtype": fake.dtype})
        node.meta["val"] = fake
        nodes.append(node)
        results.append(specs.OutputSpec(specs.OutputKind.USER_OUTPUT, specs.TensorArgument(node.name), None))
    graph.output(tuple(nodes))
    root = GraphModule(torch.nn.Module(), graph)
    spec = pytree.tree_flatten
    ins, outs = spec((tuple(range(len(inputs))), {}))[1], spec(tuple(range(len(outputs))))[1]
    config = EdgeCompileConfig(_check_ir_validity=False)
    verifier: Any = EXIREdgeDialectVerifier(edge_compile_config=config, class_only=True)
    return ExportedProgram(
        root=root,
        graph=graph,
        graph_signature=specs.ExportGraphSignature(arguments, results),
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", ModuleCallSignature([], [], ins, outs))],
        verifiers=[verifier],
    )
