"""The reasons for the CPU, each once with all nodes that have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tosaic.core.reason import Reason
from tosaic.report.profile import shorten_op


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason for the CPU, with all nodes that have it, and the operators that follow these nodes by short name."""

    op: str
    why: str
    fix: str
    nodes: tuple[Reason, ...]
    followers: Mapping[str, int]

    @property
    def is_io(self) -> bool:
        """Whether its nodes only convert inputs and outputs of the program."""
        return self.nodes[0].is_io


def group_causes(reasons: Sequence[Reason]) -> list[Cause]:
    """Group the nodes on the CPU by reason; conversions of inputs and outputs come last."""
    roots = {reason.node for reason in reasons if not reason.cause and not reason.is_io}
    groups: dict[tuple[bool, str, str, str], list[Reason]] = {}
    for reason in reasons:
        if reason.cause not in roots:
            op, why = ("", "") if reason.is_io else (reason.op, reason.why)
            groups.setdefault((reason.is_io, op, why, reason.fix), []).append(reason)
    return [
        Cause(op, why, fix, tuple(nodes), _count_followers(nodes, reasons))
        for (_, op, why, fix), nodes in sorted(groups.items(), key=lambda group: group[0][0])
    ]


def _count_followers(nodes: Sequence[Reason], reasons: Sequence[Reason]) -> Counter[str]:
    names = {reason.node for reason in nodes}
    return count_ops([reason for reason in reasons if reason.cause in names])


def count_ops(reasons: Sequence[Reason]) -> Counter[str]:
    """Count the operators among some nodes, by their short names."""
    return Counter(shorten_op(reason.op) for reason in reasons)
