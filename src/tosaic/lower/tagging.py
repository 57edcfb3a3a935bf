"""How the nodes of delegates are marked for exir, and which delegates exir cannot cut out of a graph."""

from __future__ import annotations

from executorch.exir.backend.utils import tag_constant_data
from torch.export import ExportedProgram
from torch.fx import Node

from tosaic.errors import Unsupported
from tosaic.lower.partition import Plan
from tosaic.lower.source import Source

TAG = "delegation_tag"


def tag_regions(program: ExportedProgram, source: Source, plan: Plan) -> list[str]:
    """Tag the nodes of every region and the constants they read; returns the tags."""
    tags = [f"tosaic_{index}" for index in range(len(plan.regions))]
    for tag, region in zip(tags, plan.regions, strict=True):
        for node in region.nodes:
            node.meta[TAG] = tag
    for constant in source.constants:
        # Exir gives every reader but the first a copy, and does not look for the constant inside a list or tuple.
        users = sorted(constant.users, key=lambda user: not _reads_nested(user, constant))
        constant.users = dict.fromkeys(users)
    tag_constant_data(program)
    return tags


def find_clashes(source: Source, plan: Plan) -> dict[Node, Unsupported]:
    """The nodes of a plan that have to stay on the CPU because exir would fail on their delegate."""
    home = {node: index for index, region in enumerate(plan.regions) for node in region.nodes}
    found: dict[Node, Unsupported] = {}
    for constant in source.constants:
        nested = [user for user in constant.users if _reads_nested(user, constant)]
        if len({home.get(user) for user in nested}) > 1:
            why = f"it reads the constant `{constant.name}` from a list, and others outside its delegate do so too"
            fix = f"give it a copy of its own: register a clone of `{constant.name}` as another buffer"
            found |= {user: Unsupported(why, fix) for user in nested if user in home}
    return found


def _reads_nested(user: Node, constant: Node) -> bool:
    """Whether a node reads a constant from within a list, a tuple or a keyword."""
    return not any(argument is constant for argument in user.args)
