"""Results of types that a target does not have: they leave a delegate in another type, and the CPU casts them.

Indices are int64 in torch and int32 in a delegate. A target without boolean tensors has ones and zeros in int8.
"""

from __future__ import annotations

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from tosaic.core.targets import Target
from tosaic.driver.partition import CARRIERS, partition
from tosaic.fx.source import ASSERTIONS, Source, overload
from tosaic.quantization.prepare import KEPT_META


def carry_results(source: Source, target: Target, program: ExportedProgram | None = None) -> bool:
    """Insert two casts after every result that would leave a delegate in such a type; tell whether there was one.

    The first one is for the delegate, the second one for the CPU. `program` is what the graph belongs to, if any.
    """
    carriers = {k: v for k, v in CARRIERS.items() if k is not torch.bool or not target.has_booleans}
    if not any(_find_dtype(source, node) in carriers for node in source.calls()):
        return False
    found = False
    for part in partition(source, target, carries=True).partitions:
        inside = {*part.nodes}
        for node in part.outputs:
            dtype = _find_dtype(source, node)
            if dtype in carriers:
                outside = [u for u in node.users if u not in inside and overload(u) not in ASSERTIONS]
                _insert_casts(source, node, outside, carriers[dtype], program)
                found = True
    return found


def _find_dtype(source: Source, node: Node) -> torch.dtype | None:
    val = source.val(node)
    return val.dtype if isinstance(val, torch.Tensor) else None


def _insert_casts(
    source: Source, node: Node, users: list[Node], carrier: torch.dtype, program: ExportedProgram | None
) -> None:
    val, last = source.tensor(node), node
    for dtype in (carrier, val.dtype):
        with source.graph.inserting_after(last):
            last = source.graph.call_function(torch.ops.aten._to_copy.default, (last,), {"dtype": dtype})
        last.meta = {key: node.meta[key] for key in KEPT_META if key in node.meta} | {"val": val.to(dtype)}
    for user in users:
        user.replace_input_with(node, last)
        if user.op == "output" and program is not None:
            _rename_outputs(program, node.name, last.name)


def _rename_outputs(program: ExportedProgram, old: str, new: str) -> None:
    for spec in program.graph_signature.output_specs:
        if getattr(spec.arg, "name", None) == old:
            spec.arg.name = new
