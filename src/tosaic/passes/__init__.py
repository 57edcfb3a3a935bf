"""Whole-graph rewrites: each a small pure function Graph -> Graph, in one list with the reason for its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tosaic.core.targets import Target
from tosaic.ir.graph import Graph
from tosaic.passes.copy_outputs import copy_outputs
from tosaic.passes.cse import merge_equal
from tosaic.passes.dce import drop_dead
from tosaic.passes.fold_conv_scale import fold_channels
from tosaic.passes.separate_vela_pairs import settle
from tosaic.passes.transpose_to_conv import convolve_transposes

Rewrite: TypeAlias = Callable[[Graph, Target], Graph]

PIPELINE: tuple[tuple[Rewrite, str], ...] = (
    (lambda g, t: fold_channels(g), "first: two convolutions that only differ after them are then not equal"),
    (lambda g, t: merge_equal(g), "before what is dead goes: what is computed twice is dead once it is merged"),
    (lambda g, t: drop_dead(g), "before costs are weighed: a transpose that nobody reads costs nothing"),
    (
        lambda g, t: settle(g) if t.is_npu else g,
        "after what is dead is gone: it counts who reads a rescale",
    ),
    (
        lambda g, t: convolve_transposes(g, t.family),
        "after costs are known: nothing later would know these convolutions for transposes",
    ),
    (
        lambda g, t: copy_outputs(g) if t.family == "vgf" else g,
        "last: an operator that changes nothing would be merged",
    ),
)


def rewrite(graph: Graph, target: Target) -> Graph:
    """The graph after all rewrites."""
    for step, _ in PIPELINE:
        graph = step(graph, target)
    return graph
