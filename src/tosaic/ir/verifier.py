"""The verifier checks that a graph is well formed, that every op obeys its definition, and that the target has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification
from tosaic.ir.definition import Field, Limit, Role, Variables
from tosaic.ir.encode import count_bytes
from tosaic.ir.graph import DType, Graph, Op, Type, Value

#: The sizes that each level allows.
Level: TypeAlias = Mapping[Limit, int]
NO_LEVEL: Level = {
    Limit.RANK: 32,
    Limit.KERNEL: (1 << 31) - 1,
    Limit.STRIDE: (1 << 31) - 1,
    Limit.SCALE: 2048,
    Limit.LOG2_SIZE: 63,
    Limit.NESTING: 256,
    Limit.TENSOR_LIST: 256,
}
LEVEL_8K: Level = {
    Limit.RANK: 6,
    Limit.KERNEL: 8192,
    Limit.STRIDE: 8192,
    Limit.SCALE: 256,
    Limit.LOG2_SIZE: 31,
    Limit.NESTING: 6,
    Limit.TENSOR_LIST: 64,
}


def verify(graph: Graph, spec: Specification) -> None:
    """Raise Invalid with the op's index, kind and the reason at the first error."""
    level = LEVEL_8K if spec.level_8k else NO_LEVEL
    _verify_graph(graph, spec, level, "", 0, {})


def _verify_graph(graph: Graph, spec: Specification, level: Level, path: str, depth: int, variables: Variables) -> None:
    defined = set[Value]()
    for value in graph.inputs:
        if value in defined:
            raise Invalid(f"{path}the same value occurs twice among the inputs")
        if value.op is not None:
            raise Invalid(f"{path}input {value.type} is the result of {value.op.kind}")
        if value.dtype is DType.SHAPE:
            raise Invalid(f"{path}a shape cannot be an input of a graph")
        _verify_type(value.type, level, f"{path}input")
        defined.add(value)
    for index, op in enumerate(graph.ops):
        where = f"{path}op {index} {op.kind}"
        _verify_ssa(op, defined, where)
        try:
            _verify_op(op, spec, level, variables)
        except Invalid as error:
            reason = error.what.removeprefix(f"{op.kind}: ")
            raise Invalid(f"{where}: {reason}", where=", ".join(op.origin), fix=error.fix) from None
        for attribute in op.definition.attributes:
            if attribute.field is Field.GRAPH:
                if depth + 1 >= level[Limit.NESTING]:
                    raise Invalid(f"{where}: control flow is nested deeper than {level[Limit.NESTING]}")
                body = op.get(attribute.name, Graph)
                _verify_graph(body, spec, level, f"{where} {attribute.name}: ", depth + 1, variables)
    for position, value in enumerate(graph.outputs):
        if value not in defined:
            raise Invalid(f"{path}output {position} {value.type} is not the result of an op of the graph")


def _verify_ssa(op: Op, defined: set[Value], where: str) -> None:
    for position, value in enumerate(op.inputs):
        if value not in defined:
            raise Invalid(f"{where}: input {position} {value.type} is not defined before its use")
    for position, value in enumerate(op.outputs):
        if value in defined:
            raise Invalid(f"{where}: output {position} {value.type} is defined twice")
        if value.op is not op:
            raise Invalid(f"{where}: output {position} {value.type} names another op as its producer")
        defined.add(value)


def _verify_op(op: Op, spec: Specification, level: Level, variables: Variables) -> None:
    inferred = op.definition.infer_types(op)
    if tuple(value.type for value in op.outputs) != inferred:
        have, want = (", ".join(map(str, types)) for types in ([v.type for v in op.outputs], inferred))
        raise Invalid(f"outputs are ({have}), expected ({want})")
    verify_legality(op, spec)
    for value in op.outputs:
        _verify_type(value.type, level, "output")
    for operand in op.definition.operands:
        if operand.role in (Role.CONSTANT, Role.SHAPE):
            producer = op.operand(operand.name).op
            if producer is None or not producer.is_constant:
                raise Invalid(f"{operand.name} must be a constant")
    if op.definition.check_variables is not None:
        op.definition.check_variables(op, variables)
    if level is LEVEL_8K:
        _verify_bounds(op, level)
    if max(len(op.inputs), len(op.outputs)) > level[Limit.TENSOR_LIST]:
        raise Invalid(f"has more than {level[Limit.TENSOR_LIST]} tensors in a list")


def verify_legality(op: Op, spec: Specification) -> None:
    """Look up the op's dtypes in its definition."""
    legal = op.definition.legal
    dtypes = tuple(_get_slot(op, slot) for slot in legal.slots)
    if dtypes not in legal.rows:
        raise Invalid(f"TOSA 1.0 has no {op.kind} of {' '.join(dtypes)}")
    _verify_needs(legal.rows[dtypes], spec, " ".join(dtypes) or op.kind)
    for attribute in op.definition.attributes:
        if attribute.needs and (extension := attribute.needs.get(op.get(attribute.name, str))):
            _verify_needs((frozenset({extension}),), spec, op.get(attribute.name, str))


def _verify_needs(alternatives: tuple[frozenset[str], ...], spec: Specification, what: str) -> None:
    if not any(all(spec.supports(part) for part in needs) for needs in alternatives):
        words = " or ".join("+".join(sorted(needs)) for needs in alternatives)
        raise Invalid(f"{what} needs {words}, which {spec} does not have", fix=f"use a specification with {words}")


def _get_slot(op: Op, slot: str) -> str:
    if slot in ("in", "out"):
        return (op.inputs if slot == "in" else op.outputs)[0].dtype.value
    match op.attrs.get(slot):
        case DType() as dtype:
            return dtype.value
        case Type() as type:
            return type.dtype.value
        case _:
            return op.operand(slot).dtype.value


def _verify_type(type: Type, level: Level, what: str) -> None:
    if type.dtype is DType.SHAPE:
        return
    if type.rank > level[Limit.RANK]:
        raise Invalid(f"{what} {type} has rank {type.rank}; at most {level[Limit.RANK]} are allowed")
    if min(type.shape, default=1) < 1:
        raise Invalid(f"{what} {type} has an empty dimension; TOSA requires at least 1")
    if count_bytes(type.size, type.dtype) >= 1 << level[Limit.LOG2_SIZE]:
        raise Invalid(f"{what} {type} is too large: 2**{level[Limit.LOG2_SIZE]} bytes or more")


def _verify_bounds(op: Op, level: Level) -> None:
    for bound in op.definition.bounds:
        numbers, limit = bound.measure(op), level[bound.limit]
        if max(numbers) > limit:
            raise Invalid(f"{bound.what} {numbers} is above {limit}, the limit of level 8K")
