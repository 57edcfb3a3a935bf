"""Control flow, variables and operators outside TOSA: only files have them, so there are no builders."""

from __future__ import annotations

from collections.abc import Sequence

from tosaic.core.errors import Invalid
from tosaic.ir.definition import Attribute, Field, OpDef, Variables, allow, tensor, tensor_list
from tosaic.ir.graph import DType, Graph, Op, Type, Value
from tosaic.ir.infer import need_dtype
from tosaic.ir.ops_const import TYPE, infer_held_type


def _infer_custom(op: Op) -> tuple[Type, ...]:
    return op.get_types("types")


CUSTOM = OpDef(
    "CUSTOM",
    (tensor_list("input_list"),),
    (
        Attribute("operator_name", Field.TEXT),
        Attribute("domain_name", Field.TEXT),
        Attribute("implementation_attrs", Field.BYTES),
        Attribute("types", Field.OUT_TYPES),
    ),
    infer=_infer_custom,
    legal=allow("", ": INT | FP"),
)


# Control flow.

_CONTROL = allow("", ": cf")


def _get_types(values: Sequence[Value]) -> tuple[Type, ...]:
    return tuple(v.type for v in values)


def _need_types(found: Sequence[Value], expected: Sequence[Type], name: str) -> None:
    if [v.type for v in found] != list(expected):
        have, want = ", ".join(str(v.type) for v in found), ", ".join(map(str, expected))
        raise Invalid(f"{name} are ({have}), expected ({want})")


def _infer_cond_if(op: Op) -> tuple[Type, ...]:
    condition, passed = op.operand("condition"), _get_types(op.rest("input_list"))
    need_dtype(condition, DType.BOOL, "condition")
    if condition.type.size != 1:
        raise Invalid(f"condition must hold one number, not {condition.type}")
    yes, no = op.get("then_graph", Graph), op.get("else_graph", Graph)
    _need_types(yes.inputs, passed, "inputs of then_graph")
    _need_types(no.inputs, passed, "inputs of else_graph")
    _need_types(no.outputs, _get_types(yes.outputs), "outputs of else_graph")
    return _get_types(yes.outputs)


COND_IF = OpDef(
    "COND_IF",
    (tensor("condition"), tensor_list("input_list")),
    (Attribute("then_graph", Field.GRAPH), Attribute("else_graph", Field.GRAPH)),
    infer=_infer_cond_if,
    legal=_CONTROL,
)


def _infer_while_loop(op: Op) -> tuple[Type, ...]:
    carried = _get_types(op.inputs)
    test, body = op.get("cond_graph", Graph), op.get("body_graph", Graph)
    _need_types(test.inputs, carried, "inputs of cond_graph")
    _need_types(body.inputs, carried, "inputs of body_graph")
    _need_types(body.outputs, carried, "outputs of body_graph")
    if len(test.outputs) != 1 or test.outputs[0].dtype is not DType.BOOL or test.outputs[0].type.size != 1:
        raise Invalid("cond_graph must return one bool")
    return carried


WHILE_LOOP = OpDef(
    "WHILE_LOOP",
    (tensor_list("input_list"),),
    (Attribute("cond_graph", Field.GRAPH), Attribute("body_graph", Field.GRAPH)),
    infer=_infer_while_loop,
    legal=_CONTROL,
)


# Variables. Only the op that declares one has its initial numbers.

_NAME = Attribute("name", Field.VARIABLE)
_VARIABLE_ROWS = ("i8: INT+var", "f16, f32: FP+var")


def _infer_variable(op: Op) -> tuple[Type, ...]:
    if not op.get("name", str):
        raise Invalid("a variable needs a name")
    infer_held_type(op)
    return ()


def _declare_variable(op: Op, variables: Variables) -> None:
    name = op.get("name", str)
    if name in variables:
        raise Invalid(f"variable {name!r} is declared twice")
    variables[name] = op.get("type", Type)


VARIABLE = OpDef(
    "VARIABLE",
    (),
    (_NAME, TYPE, Attribute("data", Field.DATA, optional=True)),
    infer=_infer_variable,
    legal=allow("type", *_VARIABLE_ROWS),
    check_variables=_declare_variable,
)


def _use_variable(op: Op, variables: Variables) -> None:
    """Check that the variable is declared with the type that is written or read."""
    name, (value,) = op.get("name", str), (*op.inputs, *op.outputs)
    if name not in variables:
        raise Invalid(f"variable {name!r} is not declared before")
    if variables[name] != value.type:
        raise Invalid(f"variable {name!r} is {variables[name]}, not {value.type}")


def _infer_variable_write(op: Op) -> tuple[Type, ...]:
    return ()


VARIABLE_WRITE = OpDef(
    "VARIABLE_WRITE",
    (tensor("input1"),),
    (_NAME,),
    infer=_infer_variable_write,
    legal=allow("in", *_VARIABLE_ROWS),
    check_variables=_use_variable,
)


def _infer_variable_read(op: Op) -> Type:
    return op.get("type", Type)


VARIABLE_READ = OpDef(
    "VARIABLE_READ",
    (),
    (_NAME, TYPE),
    infer=_infer_variable_read,
    legal=allow("out", *_VARIABLE_ROWS),
    check_variables=_use_variable,
)
