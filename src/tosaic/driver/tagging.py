"""Tags the nodes of delegates for exir, and finds delegates that exir cannot extract from a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx import Node

from tosaic.core.errors import Unsupported
from tosaic.driver.partition import Plan
from tosaic.fx.source import Source

TAG = "delegation_tag"
_PREFIX = "tosaic_"


def tag_partitions(program: ExportedProgram, source: Source, plan: Plan) -> list[str]:
    """Tag the nodes of every partition and the constants they read; return the tags."""
    tags = [f"{_PREFIX}{index}" for index in range(len(plan.partitions))]
    for tag, partition in zip(tags, plan.partitions, strict=True):
        for node in partition.nodes:
            node.meta[TAG] = tag
    for constant in source.constants:
        # Exir gives every reader but the first a copy, and does not look for the constant inside a list or tuple.
        users = sorted(constant.users, key=lambda user: not _reads_nested(user, constant))
        constant.users = dict.fromkeys(users)
    tag_constant_data(program)
    # Exir takes a state for a constant unless what is written to it is the result of one of its own readers.
    for state in source.states:
        state.meta.pop(TAG, None)
    return tags


def find_number(nodes: Sequence[Node]) -> int:
    """Find the number of the partition that nodes were tagged for; 0 if they have no tag of ours."""
    tag = next((str(node.meta[TAG]) for node in nodes if TAG in node.meta), "")
    number = tag.removeprefix(_PREFIX)
    return int(number) if number.isdecimal() else 0


def find_clashes(source: Source, plan: Plan) -> dict[Node, Unsupported]:
    """Find the nodes of a plan that have to stay on the CPU because exir would fail on their delegate."""
    home = {node: index for index, partition in enumerate(plan.partitions) for node in partition.nodes}
    found: dict[Node, Unsupported] = {}
    for constant in source.constants:
        nested = [user for user in constant.users if _reads_nested(user, constant)]
        if len({home.get(user) for user in nested}) > 1:
            why = f"it reads the constant `{constant.name}` from a list that nodes outside its delegate use too"
            fix = f"give it a separate copy: register a clone of `{constant.name}` as another buffer"
            found |= {user: Unsupported(why, fix) for user in nested if user in home}
    return found or _find_late(source, plan)


def _find_late(source: Source, plan: Plan) -> dict[Node, Unsupported]:
    """Find the nodes of the first partition after which exir's sort puts a node without users after the output.

    It sorts the graph by distance from the inputs whenever it has extracted a delegate, and the output must be last.
    """
    lonely = [n for n in source.calls() if not n.users]
    home: dict[Node, int] = {}
    for index, partition in enumerate(plan.partitions if lonely else ()):
        home.update(dict.fromkeys(partition.nodes, index))
        depth = _measure_depths(source, home)
        last = depth[source.output()]
        late = next((n for n in lonely if n not in home and depth[n] >= last), None)
        if late is not None:
            why = (
                f"ExecuTorch's to_backend cannot partition a graph in which `{late.name}` follows the end of the model"
            )
            fix = "use to_edge_transform_and_lower instead of to_edge and to_backend"
            return dict.fromkeys(partition.nodes, Unsupported(why, fix))
    return {}


def _measure_depths(source: Source, home: Mapping[Node, int]) -> dict[Node, int]:
    """Measure the longest path from an input to every node; a partition counts as one node, and so does its getitem."""
    waiting: dict[int, set[Node]] = {}
    for node, index in home.items():
        outside = {n for n in node.all_input_nodes if n not in home or home[n] != index}
        waiting.setdefault(index, set()).update(outside - set(source.constants))
    depth: dict[Node, int] = {}
    inside: dict[int, int] = {}

    def find(node: Node) -> int:
        if node in depth:
            return depth[node]
        if node in home:
            index = home[node]
            if index not in inside:
                inside[index] = 2 + max(map(find, waiting[index]), default=0)
            depth[node] = inside[index]
        else:
            depth[node] = 1 + max(map(find, node.all_input_nodes), default=-1)
        return depth[node]

    for node in source.graph.nodes:
        find(node)
    return depth


def _reads_nested(user: Node, constant: Node) -> bool:
    """Tell whether a node reads a constant from within a list, a tuple or a keyword."""
    return not any(argument is constant for argument in user.args)
