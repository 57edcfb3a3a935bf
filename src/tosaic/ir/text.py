"""A graph as text, one line per op: for golden tests, reports and debugging."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from tosaic.ir.encode import decode, to_bytes
from tosaic.ir.graph import Array, Attr, DType, Graph, Op, Type, Value

_SHORT = 8  # constants of at most this many numbers are printed in full
#: Attributes that the types on the line say already.
_SAID = ("out_type", "types")


def to_text(graph: Graph) -> str:
    """The same graph gives the same text: values are numbered in order, large constants stand by their hash."""
    return "\n".join(_write_graph(graph, "")) + "\n"


def _write_graph(graph: Graph, indent: str) -> Iterator[str]:
    names = {value: f"%x{i}" for i, value in enumerate(graph.inputs)}
    arguments = ", ".join(f"{names[value]}: {value.type}" for value in graph.inputs)
    yield f"{indent}graph({arguments}) {{"
    count = 0
    for op in graph.ops:
        for value in op.outputs:
            names[value] = f"%c{count}" if _is_constant(op) else f"%{count}"
            count += 1
        yield from _write_op(op, names, indent + "  ")
    # A broken graph must still print: the verifier's user reads it.
    yield f"{indent}  return {', '.join(names.get(value, '%?') for value in graph.outputs)}".rstrip()
    yield f"{indent}}}"


def _write_op(op: Op, names: dict[Value, str], indent: str) -> Iterator[str]:
    if _is_constant(op) and op.outputs:
        (value,) = op.outputs
        yield f"{indent}{names[value]} = {op.kind} {value.type} {_write_data(op.attrs.get('data'), value.dtype)}"
        return
    results = ", ".join(f"{names[value]}: {value.type}" for value in op.outputs)
    operands = ", ".join(names.get(value, "%?") for value in op.inputs)
    declared = op.attrs.get("type")
    dtype = declared.dtype if isinstance(declared, Type) else DType.F32
    words = [
        f"{name}={_write_attr(value, dtype)}"
        for name, value in op.attrs.items()
        if name not in _SAID and not _is_usual(value)
    ]
    yield " ".join((f"{indent}{results}{' = ' if results else ''}{op.kind}({operands})", *words))
    for name, body in op.attrs.items():
        if isinstance(body, Graph):
            yield f"{indent}  {name}:"
            yield from _write_graph(body, indent + "    ")


def _is_usual(value: Attr) -> bool:
    """Flags that are off and the usual NaN mode are left out; bodies of control flow have their own lines."""
    return value is False or isinstance(value, Graph) or (isinstance(value, str) and value == "PROPAGATE")


def _is_constant(op: Op) -> bool:
    return op.kind in ("CONST", "CONST_SHAPE")


def _write_attr(value: Attr, dtype: DType) -> str:
    if value is None or isinstance(value, np.ndarray):
        return _write_data(value, dtype)
    if isinstance(value, tuple):
        return f"({','.join(map(str, value))})"
    if isinstance(value, bytes):
        return value.hex() or "(empty)"
    if isinstance(value, DType):
        return value.value
    return repr(value) if isinstance(value, str) and not value.isidentifier() else str(value)


def _write_data(data: Attr, dtype: DType) -> str:
    """Short constants in full, long ones by the first 8 digits of their SHA-256, unknown ones as a question mark."""
    if not isinstance(data, np.ndarray):
        return "?"
    if data.size > _SHORT:
        return f"sha={hashlib.sha256(to_bytes(data, dtype).data).hexdigest()[:8]}"
    numbers: Array = decode(data, dtype)
    return f"[{', '.join(str(n) for n in numbers.reshape(-1))}]"
