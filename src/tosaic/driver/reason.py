"""Why a node is not on the NPU: the text, the location in the user's code, and a fix."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from tosaic.core.errors import FloatInput, Unsupported
from tosaic.core.hints import Hint, prepend
from tosaic.core.location import describe_place
from tosaic.fx.source import ASSERTIONS, QDQ, find_module, input_node, origin, overload, source_line

_log = logging.getLogger("tosaic")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a node is not on the NPU.

    where, module, layer  the line it comes from, the path of its nn.Module, and the class of that
    border                marks the quantize and dequantize around a delegate
    """

    node: str
    op: str
    why: str
    fix: str
    where: str
    module: str
    layer: str
    border: bool = False


class FloatResult(Unsupported):
    """A node that passes float numbers to an operator on the CPU, or to the caller."""

    def __init__(self, user: Node) -> None:
        if user.op == "output":
            super().__init__(
                "its result leaves the model in float",
                Hint(
                    'compile with `io="int8"`, or quantize the output of the model',
                    "compile with `--io int8`, or quantize the output of the model",
                ),
            )
        else:
            super().__init__(f"its result is needed in float by {_name(user)}, which is on the CPU")
        self.user = user


def explain(out: Mapping[Node, Unsupported]) -> dict[Node, Reason]:
    """Explain every node that falls back to the CPU.

    Dtype assertions of export cost nothing anywhere, and one result of several stays with its operator.
    """
    return {
        node: _reason(node, error, out)
        for node, error in out.items()
        if overload(node) not in ASSERTIONS and not (overload(node) == "getitem" and node.args[0] in out)
    }


def _reason(node: Node, error: Unsupported, out: Mapping[Node, Unsupported]) -> Reason:
    if overload(node) == "getitem":
        node = node.all_input_nodes[0]
    why, fix, border = error.what, error.fix, _is_boundary(node, out)
    owner, producer = origin(node), _find_cpu_producer(node, out)
    if isinstance(error, FloatInput | FloatResult) and not border and owner is not node and owner in out:
        why, fix = f"it belongs to {_name(owner)}, which is on the CPU", _suggest_fix(owner, out)
    elif isinstance(error, FloatInput) and producer is not None:
        why, fix = f"it takes the float result of {_name(producer)}, which is on the CPU", _suggest_fix(producer, out)
    elif not fix and isinstance(error, FloatResult) and error.user in out:
        fix = _suggest_fix(error.user, out)
    path, layer = find_module(node)
    return Reason(node.name, overload(node), why, fix, source_line(node), path, layer, border)


def _name(node: Node) -> str:
    return f"`{node.name}` ({overload(node)})"


def _find_cpu_producer(node: Node, out: Mapping[Node, Unsupported]) -> Node | None:
    """Find the operator on the CPU from which a node gets float numbers."""
    found = next((n for n in node.all_input_nodes if n in out and overload(n) not in QDQ), None)
    if found is not None and overload(found) == "getitem" and input_node(found) in out:
        return input_node(found)
    return found


def _suggest_fix(node: Node, out: Mapping[Node, Unsupported]) -> str:
    """Suggest how to bring a node to the NPU; the cause may be an earlier node."""
    while isinstance(out[node], FloatInput) and (producer := _find_cpu_producer(node, out)) is not None:
        node = producer
    return prepend(f"for `{node.name}`: ", out[node].fix) if out[node].fix else ""


def log_reasons(reasons: Iterable[Reason]) -> None:
    """Log one line for every node that is not on the NPU, under the logger `tosaic`."""
    for r in reasons:
        place = describe_place(r.where, r.module, r.layer)
        at, fix = f" at {place}" if place else "", f" Fix: {r.fix}." if r.fix else ""
        level = logging.DEBUG if r.border else logging.INFO
        _log.log(level, "%s (%s)%s stays on the CPU: %s.%s", r.node, r.op, at, r.why, fix)


def _is_boundary(node: Node, out: Mapping[Node, Unsupported]) -> bool:
    """Tell whether a node is the quantize before a delegate or the dequantize after one."""
    name = overload(node)
    if name not in QDQ:
        return False
    if ".quantize" in name:
        return any(u.op == "call_function" and u not in out for u in node.users)
    source: Any = node.args[0]
    return source.op == "call_function" and source not in out
