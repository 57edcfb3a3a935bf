"""Why a node is not on the NPU: the text, the location in the user's code, and a fix."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from torch.fx import Node

from tosaic.core.errors import InputRefused, TensorRefused, Unsupported
from tosaic.core.hints import prepend
from tosaic.core.location import describe_place
from tosaic.core.reason import Reason
from tosaic.fx.source import ASSERTIONS, QDQ, find_module, origin, overload, source_line

_log = logging.getLogger("tosaic")


class Fused(Unsupported):
    """A node that is fused with operators which need the result of a node on the CPU."""

    def __init__(self, node: Node) -> None:
        super().__init__(f"it is fused with operators that need the result of {_name(node)}, which is on the CPU")
        self.node = node


#: what casts between float types
_CASTS = frozenset({"aten.to.dtype", "aten._to_copy.default", "dim_order_ops._to_dim_order_copy.default"})
_FLOAT32 = "make the model float32 with model.float(), pass float32 tensors, and return no other float type"
#: for what has no better one
_NO_FIX = "write it with other operators, or leave it on the CPU"


def explain(on_cpu: Mapping[Node, Unsupported]) -> dict[Node, Reason]:
    """Explain every node that falls back to the CPU, in the order of the graph, in which they run.

    Dtype assertions of export cost nothing anywhere, and one result of several stays with its operator.
    """
    return {
        node: _reason(node, error, on_cpu)
        for node, error in sorted(on_cpu.items(), key=lambda item: item[0])
        if overload(node) not in ASSERTIONS and not (overload(node) == "getitem" and node.args[0] in on_cpu)
    }


def _reason(node: Node, error: Unsupported, on_cpu: Mapping[Node, Unsupported]) -> Reason:
    why, fix, cause = error.what, error.fix or _NO_FIX, None
    leader = find_leader(node, on_cpu)
    if leader is not None:
        cause = _find_root(node, on_cpu)
        why, fix = leader[1], prepend(f"for `{cause.name}`: ", on_cpu[cause].fix or _NO_FIX)
    is_io = _is_boundary(node, on_cpu)
    if is_io and overload(node) in _CASTS:
        why, fix = "only float32 is quantized: the CPU casts the inputs and outputs of the program", _FLOAT32
    if overload(node) == "getitem":
        node = node.all_input_nodes[0]
    path, layer = find_module(node)
    name = "" if cause is None else cause.name
    return Reason(node.name, overload(node), why, fix, source_line(node), path, layer, is_io, name)


def _name(node: Node) -> str:
    return f"`{node.name}` ({overload(node)})"


def find_leader(node: Node, on_cpu: Mapping[Node, Unsupported]) -> tuple[Node, str] | None:
    """Find the node because of which another one is on the CPU, and say how; None if the cause is its own."""
    error, owner = on_cpu[node], origin(node)
    if isinstance(error, Fused):
        return error.node, error.what
    if not isinstance(error, TensorRefused):
        return None
    if not _is_boundary(node, on_cpu) and owner is not node and owner in on_cpu:
        owner = _look_through(owner, on_cpu)
        return owner, f"it belongs to {_name(owner)}, which is on the CPU"
    if isinstance(error, InputRefused):
        producer = _find_producer(node, on_cpu)
        kind = f"{error.kind} result" if error.kind else "result"
        return (
            None if producer is None else (producer, f"it takes the {kind} of {_name(producer)}, which is on the CPU")
        )
    users = (u for u in node.users if u in on_cpu and overload(u) not in ASSERTIONS)
    user = next((u for u in users if not _waits_for(u, node, on_cpu)), None)
    return (
        None if user is None else (user, f"its result is needed in {error.kind} by {_name(user)}, which is on the CPU")
    )


def _find_producer(node: Node, on_cpu: Mapping[Node, Unsupported]) -> Node | None:
    """Find the operator on the CPU from which a node gets its input; a dequantize only if there is no other."""
    error = on_cpu[node]
    kind = error.kind if isinstance(error, InputRefused) else ""
    found = [_look_through(n, on_cpu) for n in node.all_input_nodes if n in on_cpu and _has_kind(n, kind)]
    computing = [n for n in found if overload(n) not in QDQ]
    return next(iter(computing or (found if overload(node) not in QDQ else ())), None)


def _has_kind(node: Node, kind: str) -> bool:
    """Tell whether a node may be the one whose result has a type that another node refuses."""
    if not kind or overload(node) in QDQ:
        return kind in ("", "float")
    dtype: Any = getattr(node.meta.get("val"), "dtype", None)
    if dtype is None:
        return True
    return bool(dtype.is_floating_point) if kind == "float" else str(dtype) == f"torch.{kind}"


def _look_through(node: Node, on_cpu: Mapping[Node, Unsupported]) -> Node:
    """Find the operator on the CPU behind its quantize and dequantize, or behind one of its several results."""
    passed = (*QDQ, "getitem")
    while overload(node) in passed and node.all_input_nodes[0] in on_cpu:
        node = node.all_input_nodes[0]
    return node


def _waits_for(user: Node, node: Node, on_cpu: Mapping[Node, Unsupported]) -> bool:
    """Tell whether the user of a node is on the CPU only because the node is."""
    return isinstance(on_cpu[user], InputRefused) and _find_producer(user, on_cpu) is node


def _find_root(node: Node, on_cpu: Mapping[Node, Unsupported]) -> Node:
    """Find the first cause of a node's fallback."""
    seen = {node}
    while (leader := find_leader(node, on_cpu)) is not None and leader[0] not in seen:
        node = leader[0]
        seen.add(node)
    return node


def log_reasons(reasons: Iterable[Reason]) -> None:
    """Log one line for every node that is not on the NPU, under the logger `tosaic`."""
    for r in reasons:
        place = describe_place(r.where, r.module, r.layer)
        at, fix = f" at {place}" if place else "", f" Fix: {r.fix}." if r.fix else ""
        level = logging.DEBUG if r.is_io else logging.INFO
        _log.log(level, "%s (%s)%s stays on the CPU: %s.%s", r.node, r.op, at, r.why, fix)


def _is_boundary(node: Node, on_cpu: Mapping[Node, Unsupported]) -> bool:
    """Tell whether a node is the quantize before a delegate or the dequantize after one, or the cast of such a node."""
    name = overload(node)
    if name in _CASTS:
        return any(overload(one) in QDQ and _is_boundary(one, on_cpu) for one in _list_neighbors(node))
    if name not in QDQ:
        return False
    if ".quantize" in name:
        return any(u.op == "call_function" and u not in on_cpu for u in node.users)
    source: Any = node.args[0]
    return source.op == "call_function" and source not in on_cpu


def _list_neighbors(cast: Node) -> list[Node]:
    """List the calls that a cast between float types stands next to, if it has an input or output of the program."""
    (source,), users = cast.all_input_nodes, list(cast.users)
    if not all(_is_float(node) for node in (cast, source)):
        return []
    if source.op == "placeholder":
        return users
    return [source] if any(user.op == "output" for user in users) else []


def _is_float(node: Node) -> bool:
    """Tell whether a node is a float tensor; a quantizer leaves the type of its own calls out."""
    dtype: Any = getattr(node.meta.get("val"), "dtype", None)
    return dtype is None or bool(dtype.is_floating_point)
