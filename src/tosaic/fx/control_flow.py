"""Turns control flow into plain operators, which every target has.

cond              both branches are computed, and `where` chooses between their results
map, scan         one copy of the body for each step
while_loop        the same, if the number of steps does not depend on the inputs

A `cond` stays as it is if a branch has an operator that is not defined for all numbers: its operands may only make
sense if the branch is taken.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from tosaic.fx.source import is_overload, overload, torch_op
from tosaic.fx.splice import get_inner, insert, name_results, rebuild, replace_call, splice

_COND, _MAP, _SCAN = torch.ops.higher_order.cond, torch.ops.higher_order.map_impl, torch.ops.higher_order.scan
_WHILE = torch.ops.higher_order.while_loop
#: the most copies of a body
MOST_STEPS = 1000
#: operators that have no result, or an infinite one, for some numbers
_PARTIAL = frozenset(
    (
        *("acos", "acosh", "asin", "atanh", "div", "div_", "erfinv", "floor_divide", "fmod", "log", "log10", "log1p"),
        *("log2", "logit", "pow", "reciprocal", "remainder", "rsqrt", "sqrt", "tan", "true_divide", "xlogy"),
    )
)
#: the value of a node that is known before the program runs; None for any other one
Read: TypeAlias = Callable[[Node], torch.Tensor | None]


def unroll_program(program: ExportedProgram) -> ExportedProgram:
    """Return the program without the control flow that can be turned into plain operators."""
    if not any(map(_is_control_flow, program.graph.nodes)):
        return program
    module = GraphModule(program.graph_module, copy.deepcopy(program.graph))
    return rebuild(program, module) if unroll(module, _make_reader(program)) else program


def unroll_in_place(program: ExportedProgram) -> bool:
    """Do the same in a program's own graph; tell whether anything was changed."""
    graph, specs = program.graph, program.graph_signature.output_specs
    if not any(map(_is_control_flow, graph.nodes)) or not unroll(program.graph_module, _make_reader(program)):
        return False
    program.graph_module.delete_all_unused_submodules()
    name_results(graph, specs)
    return True


def unroll_module(module: GraphModule) -> None:
    """Remove the control flow of an exported module that can be turned into plain operators."""

    def read(node: Node) -> torch.Tensor | None:
        written = any(user.op == "call_function" and _mutates(user) for user in node.users)
        return None if node.op != "get_attr" or written else _find_tensor(module, node)

    unroll(module, read)


def _make_reader(program: ExportedProgram) -> Read:
    """Return what reads the constants of a program, which are its inputs."""
    names = program.graph_signature.inputs_to_lifted_tensor_constants

    def read(node: Node) -> torch.Tensor | None:
        found = program.constants.get(names.get(node.name, "")) if node.op == "placeholder" else None
        return found if isinstance(found, torch.Tensor) else None

    return read


def unroll(module: GraphModule, read: Read) -> bool:
    """Turn the control flow of a module into plain operators; tell whether anything was changed."""
    kept: set[Node] = set()
    changed = False
    # What is inserted may have control flow of its own.
    while calls := [n for n in module.graph.nodes if _is_control_flow(n) and n not in kept]:
        for call in calls:
            with module.graph.inserting_before(call):
                results = _LOWERINGS[call.target](module, call, read)
            if results is None:
                kept.add(call)
            else:
                replace_call(call, results)
                changed = True
    if changed:
        _erase_dead_code(module)
        module.graph.lint()
        module.recompile()
    return changed


def _erase_dead_code(module: GraphModule) -> None:
    """Erase what has no readers, also the `detach_` of constants, which torch counts as a write."""
    module.graph.eliminate_dead_code()
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.detach_.default):
        if not node.users:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()


def find_loop(module: GraphModule) -> Node | None:
    """Find a while_loop, also in an inner graph."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is _WHILE:
            return node
        inner = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        found = find_loop(inner) if isinstance(inner, GraphModule) else None
        if found is not None:
            return found
    return None


def can_choose(module: GraphModule, call: Node) -> bool:
    """Tell whether both branches of a cond can be computed: all their operators are defined for all numbers."""
    names = [str(branch.target) for branch in call.args[1:3] if isinstance(branch, Node)]
    return not any(_is_partial(get_inner(module, name)) for name in names)


def _is_control_flow(node: Node) -> bool:
    return node.op == "call_function" and node.target in _LOWERINGS


def _choose(module: GraphModule, call: Node, read: Read) -> list[Any] | None:
    """Compute both branches of a cond, and choose between their results."""
    condition, *branches, operands = call.args
    names = [str(branch.target) for branch in branches if isinstance(branch, Node)]
    if not isinstance(condition, Node) or not can_choose(module, call):
        return None
    yes, no = (splice(module, name, _as_list(operands)) for name in names)
    return [insert(call, torch.ops.aten.where.self, condition, a, b) for a, b in zip(yes, no, strict=True)]


def _is_partial(module: GraphModule) -> bool:
    """Tell whether a graph, or one inside it, has operators that are not defined for all numbers, or that write."""
    inner = [child for child in module.children() if isinstance(child, GraphModule)]
    calls = [n for n in module.graph.nodes if n.op == "call_function" and is_overload(n.target)]
    return any(overload(n).split(".")[1] in _PARTIAL or _mutates(n) for n in calls) or any(map(_is_partial, inner))


def _mutates(node: Node) -> bool:
    found: Any = getattr(torch_op(node), "_schema", None)
    return found is not None and bool(found.is_mutable)


def _map(module: GraphModule, call: Node, read: Read) -> list[Any] | None:
    """Apply the body of a map to each row of its operands."""
    body, rows, others = call.args
    return _run_steps(module, call, body, [], _as_list(rows), _as_list(others))


def _scan(module: GraphModule, call: Node, read: Read) -> list[Any] | None:
    """Apply the body of a scan to the state so far and each row of its operands."""
    body, state, rows, others = call.args
    return _run_steps(module, call, body, _as_list(state), _as_list(rows), _as_list(others))


def _run_steps(
    module: GraphModule, call: Node, body: Any, state: list[Any], rows: list[Any], others: list[Any]
) -> list[Any] | None:
    """Copy a body for each row; return the last state and the results of all steps, stacked."""
    count = int(rows[0].meta["val"].shape[0])
    if not 0 < count <= MOST_STEPS:
        return None
    found: list[list[Any]] = []
    for step in range(count):
        taken = [insert(call, torch.ops.aten.select.int, row, 0, step) for row in rows]
        results = splice(module, str(body.target), [*state, *taken, *others])
        state, kept = results[: len(state)], results[len(state) :]
        found.append(kept)
    return [*state, *(insert(call, torch.ops.aten.stack.default, list(column)) for column in zip(*found, strict=True))]


def _repeat(module: GraphModule, call: Node, read: Read) -> list[Any] | None:
    """Repeat the body of a while_loop, if it is known how often."""
    condition, body, state, others = call.args
    assert isinstance(condition, Node) and isinstance(body, Node)
    carried, fixed = _as_list(state), _as_list(others)
    graphs = [get_inner(module, str(node.target)) for node in (condition, body)]
    count = _count_steps(graphs[0], graphs[1], *([_evaluate(n, read) for n in side] for side in (carried, fixed)))
    if count is None:
        return None
    for _ in range(count):
        carried = splice(module, str(body.target), [*carried, *fixed])
    return carried


def _count_steps(
    condition: GraphModule, body: GraphModule, state: list[torch.Tensor | None], fixed: list[torch.Tensor | None]
) -> int | None:
    """Count the steps of a loop whose condition depends on known numbers alone; None for any other loop."""
    for count in range(MOST_STEPS + 1):
        goes_on = _compute(condition, [*state, *fixed])[0]
        if goes_on is None:
            return None
        if not bool(goes_on):
            return count
        state = _compute(body, [*state, *fixed])
    return None


def _compute(module: GraphModule, given: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Compute what a graph returns as far as it depends on known numbers alone."""
    inputs = dict(zip(module.graph.find_nodes(op="placeholder"), given, strict=True))

    def read(node: Node) -> torch.Tensor | None:
        return inputs[node] if node in inputs else _find_tensor(module, node)

    results: Any = module.graph.output_node().args[0]
    return [_evaluate(node, read) for node in _as_list(results)]


def _evaluate(value: Any, read: Read) -> torch.Tensor | None:
    """Compute a value if it depends on known numbers alone."""
    known: dict[Node, torch.Tensor | None] = {}

    def find(node: Node) -> torch.Tensor | None:
        if node in known:
            return known[node]
        if node.op != "call_function":
            known[node] = read(node)
        elif not is_overload(node.target) or any(find(n) is None for n in node.all_input_nodes):
            known[node] = None
        else:
            args: Any = map_arg(node.args, find)
            kwargs: Any = map_arg(node.kwargs, find)
            found = torch_op(node)(*args, **kwargs)
            known[node] = found if isinstance(found, torch.Tensor) else None
        return known[node]

    if isinstance(value, Node):
        return find(value)
    return torch.as_tensor(value) if isinstance(value, (bool, int, float)) else None


def _find_tensor(module: GraphModule, node: Node) -> torch.Tensor | None:
    if node.op != "get_attr":
        return None
    owner, _, leaf = str(node.target).rpartition(".")
    found = getattr(module.get_submodule(owner), leaf)
    return found.detach().clone() if isinstance(found, torch.Tensor) else None


def _as_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


_LOWERINGS: dict[Any, Callable[[GraphModule, Node, Read], list[Any] | None]] = {
    _COND: _choose,
    _MAP: _map,
    _SCAN: _scan,
    _WHILE: _repeat,
}
