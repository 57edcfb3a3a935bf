"""Whole-graph rewrites: each a small pure function Graph -> Graph, in one list with the reason for its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tosaic.rewrite.dead import drop_dead
from tosaic.rewrite.merge import merge_equal
from tosaic.tosa.ir import Graph

Rewrite: TypeAlias = Callable[[Graph], Graph]

PIPELINE: tuple[tuple[Rewrite, str], ...] = (
    (merge_equal, "first: what is computed twice is dead once it is merged"),
    (drop_dead, "last: everything before may leave ops that nobody reads"),
)


def rewrite(graph: Graph) -> Graph:
    """The graph after all rewrites."""
    for step, _ in PIPELINE:
        graph = step(graph)
    return graph
