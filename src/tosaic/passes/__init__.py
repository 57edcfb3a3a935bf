"""The passes: each a small pure function from graph to graph, in one list in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification
from tosaic.core.targets import Target
from tosaic.ir.graph import Graph
from tosaic.ir.verifier import verify
from tosaic.passes.copy_outputs import copy_outputs
from tosaic.passes.cse import merge_equal_ops
from tosaic.passes.dce import remove_dead_ops
from tosaic.passes.fold_conv_scale import fold_conv_scale
from tosaic.passes.pads_to_concat import concat_pads
from tosaic.passes.separate_all import separate_all
from tosaic.passes.separate_biases import separate_biases
from tosaic.passes.separate_vela_pairs import separate_vela_pairs
from tosaic.passes.transpose_to_conv import convert_transposes


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of the pipeline, in the module of its name.

    why   the reason for its position in the list
    when  whether it runs for a target
    """

    name: str
    run: Callable[[Graph, Target], Graph]
    why: str
    when: Callable[[Target], bool] = lambda _: True


PASSES: tuple[Pass, ...] = (
    Pass(
        "fold_conv_scale",
        lambda graph, _: fold_conv_scale(graph),
        why="first: two convolutions that differ only in what follows them are then not equal",
    ),
    Pass(
        "pads_to_concat",
        lambda graph, _: concat_pads(graph),
        why="before cse and dce: its constants may be equal, and those of the pad are dead",
        when=lambda target: target.family == "vgf",
    ),
    Pass(
        "cse",
        lambda graph, _: merge_equal_ops(graph),
        why="before dce: the second of two equal ops is dead once they are merged",
    ),
    Pass(
        "dce",
        lambda graph, _: remove_dead_ops(graph),
        why="before passes that count readers or weigh costs: dead ops would count",
    ),
    Pass(
        "separate_vela_pairs",
        lambda graph, _: separate_vela_pairs(graph),
        why="after dce: it counts the readers of a rescale",
        when=lambda target: target.is_npu,
    ),
    Pass(
        "transpose_to_conv",
        lambda graph, target: convert_transposes(graph, target.family),
        why="after all that looks for transposes: no pass recognizes these convolutions as such",
        when=lambda target: target.is_npu,
    ),
    Pass(
        "separate_biases",
        lambda graph, _: separate_biases(graph),
        why="after transpose_to_conv: its convolutions have weights too",
        when=lambda target: target.is_npu,
    ),
    Pass(
        "copy_outputs",
        lambda graph, _: copy_outputs(graph),
        why="last: cse would merge an operator that changes nothing",
        when=lambda target: target.family == "vgf",
    ),
)

#: Runs after all others for a graph whose compiled commands were found to be wrong.
SEPARATE_ALL = Pass(
    "separate_all",
    lambda graph, _: separate_all(graph),
    why="last: a pass that moves or removes operators would undo it",
    when=lambda target: target.is_npu,
)

ALL = (*PASSES, SEPARATE_ALL)

#: Called with the name of a pass and the graph after it.
Observer: TypeAlias = Callable[[str, Graph], None]


def run_passes(
    graph: Graph,
    target: Target,
    *,
    observe: Observer | None = None,
    verify_between: bool = False,
    separate: bool = False,
) -> Graph:
    """Run all passes that apply to the target, and with `separate` the one that keeps all operators apart.

    `verify_between` names the pass that made a graph invalid.
    """
    for step in (*PASSES, SEPARATE_ALL) if separate else PASSES:
        if not step.when(target):
            continue
        graph = step.run(graph, target)
        if observe is not None:
            observe(step.name, graph)
        if verify_between:
            _verify_after(step, graph, target)
    return graph


def _verify_after(step: Pass, graph: Graph, target: Target) -> None:
    try:
        verify(graph, Specification.parse(target.tosa_spec))
    except Invalid as error:
        raise Invalid(f"after pass `{step.name}`: {error.what}", where=error.where, fix=error.fix) from error
