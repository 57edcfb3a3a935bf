"""Reads an untrusted .tosa file: returns a Graph, or raises Invalid with the field or the offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats import tosa_binding as binding
from tosaic.formats.flatbuffer import Buffer, Table
from tosaic.formats.tosa_schema import (
    BlockTable,
    GraphTable,
    LocationTable,
    OperatorTable,
    RegionTable,
    ShapeTable,
    TensorTable,
    VersionTable,
)
from tosaic.ir.definition import CHOICES, Attribute, Field, OpDef
from tosaic.ir.encode import count_bytes, decode, from_bytes
from tosaic.ir.graph import NUMPY, Array, Attr, DType, Graph, Op, Type, Value
from tosaic.ir.ops import CONST_SHAPE, DEFINITIONS, VARIABLE, VARIABLE_READ, VARIABLE_WRITE

_DTYPES = {entry.value: dtype for dtype, entry in binding.DTYPES.items()}
#: The union of attributes is numbered like the operators.
_DEFINITIONS = {binding.OPS[name].value: definition for name, definition in DEFINITIONS.items()}
_CHOICES = {field: {binding.CHOICES[field][name].value: name for name in names} for field, names in CHOICES.items()}
_MAX_NESTING = 64
#: The maximum of TOSA's largest level; a product of thousands of sizes would take minutes.
_MAX_RANK = 32


def read(data: bytes, budget: Budget | None = None) -> Graph:
    """Read the graph of a .tosa file. Types are as the file says: `verify` checks them against the definitions.

    `budget` is the memory that it may take; the default is that of a separate file.
    """
    root = Buffer(data, budget).root()
    version = root.get_table(GraphTable.VERSION, "the version")
    major = -1 if version is None else version.get(VersionTable.MAJOR, "<i", -1)
    if major != 1:
        raise Invalid(f"the .tosa file has TOSA version {major}; version 1 is needed")
    regions: dict[str, Table] = {}
    for region in root.get_tables(GraphTable.REGIONS, "region"):
        name = region.get_text(RegionTable.NAME, "a region's name")
        if name in regions:
            raise Invalid(f"the .tosa file has two regions named {name!r}")
        regions[name] = region
    return _read_region("main", regions, ())


@dataclass(slots=True)
class _Scope:
    """State while the ops of one block are read."""

    tensors: dict[str, Table]
    shapes: dict[str, Table]
    values: dict[str, Value]
    regions: Mapping[str, Table]
    path: tuple[str, ...]


def _read_region(name: str, regions: Mapping[str, Table], path: tuple[str, ...]) -> Graph:
    if name not in regions:
        raise Invalid(f"the .tosa file has no region named {name!r}")
    if name in path or len(path) >= _MAX_NESTING:
        raise Invalid(f"region {name!r} of the .tosa file contains itself or is nested deeper than {_MAX_NESTING}")
    blocks = regions[name].get_tables(RegionTable.BLOCKS, f"block of region {name!r}")
    if len(blocks) != 1:
        raise Invalid(f"region {name!r} of the .tosa file has {len(blocks)} blocks; one is needed")
    (block,) = blocks
    tensors = _index(block.get_tables(BlockTable.TENSORS, "tensor"), TensorTable.NAME)
    shapes = _index(block.get_tables(BlockTable.SHAPES, "shape"), ShapeTable.NAME)
    scope = _Scope(tensors, shapes, {}, regions, (*path, name))
    inputs = [_define(text, scope) for text in block.get_texts(BlockTable.INPUTS, "an input's name")]
    ops = [_read_op(table, scope) for table in block.get_tables(BlockTable.OPERATORS, "operator")]
    outputs = [
        _use(text, scope, "the block's outputs") for text in block.get_texts(BlockTable.OUTPUTS, "an output's name")
    ]
    return Graph(inputs, outputs, ops)


def _index(tables: list[Table], slot: int) -> dict[str, Table]:
    index: dict[str, Table] = {}
    for table in tables:
        name = table.get_text(slot, "a tensor's name")
        if name in index:
            raise Invalid(f"the .tosa file has two tensors named {name!r}")
        index[name] = table
    return index


def _read_op(table: Table, scope: _Scope) -> Op:
    code, union = table.get(OperatorTable.OP, "<I"), table.get(OperatorTable.ATTRIBUTE_TYPE, "<B")
    if code not in _DEFINITIONS:
        raise Invalid(f"{table.what} of the .tosa file has code {code}, which is not an operator of TOSA 1.0")
    definition = _DEFINITIONS[code]
    kind, stored = definition.name, definition.stored_attributes
    attribute_table = table.get_table(OperatorTable.ATTRIBUTE, f"attribute of {kind}")
    if union != code and (union != 0 or stored):
        raise Invalid(f"{table.what} {kind} of the .tosa file has an attribute of type {union}; {code} is needed")
    sources = table.get_texts(OperatorTable.INPUTS, f"an input's name of {kind}")
    results = table.get_texts(OperatorTable.OUTPUTS, f"an output's name of {kind}")
    location = table.get_table(OperatorTable.LOCATION, "a location")
    text = location.get_text(LocationTable.TEXT, "a location") if location else ""
    origin = (text,) if text else ()
    if definition in (VARIABLE, VARIABLE_READ, VARIABLE_WRITE):
        return _read_variable_op(definition, sources, results, scope, origin)
    inputs = tuple(_use(name, scope, kind) for name in sources)
    outputs = tuple(_define(name, scope) for name in results)
    attrs: dict[str, Attr] = {}
    for slot, attribute in enumerate(stored):
        if attribute_table is None:
            raise Invalid(f"{table.what} {kind} of the .tosa file has no attributes")
        what = f"{attribute.name} of {kind}"
        attrs[attribute.name] = _read_attr(attribute_table, slot, attribute, what, inputs, scope)
    attrs |= _read_attrs_of_outputs(definition, results, outputs, scope)
    return _link(Op(definition, inputs, outputs, attrs, origin))


def _link(op: Op) -> Op:
    for value in op.outputs:
        value.op = op
    return op


def _read_attrs_of_outputs(
    definition: OpDef, names: list[str], outputs: tuple[Value, ...], scope: _Scope
) -> dict[str, Attr]:
    """Read the attributes that a file keeps as the type or the data of the op's output."""
    attrs: dict[str, Attr] = {}
    for attribute in definition.attributes:
        if attribute.field is Field.OUT_TYPES:
            attrs[attribute.name] = tuple(value.type for value in outputs)
        elif not attribute.stored:
            if len(outputs) != 1:
                raise Invalid(f"{definition.name} of the .tosa file has {len(outputs)} outputs; one is needed")
            attrs[attribute.name] = _read_attr_of_output(definition, attribute, names[0], outputs[0], scope)
    return attrs


def _read_attr_of_output(definition: OpDef, attribute: Attribute, name: str, output: Value, scope: _Scope) -> Attr:
    match attribute.field:
        case Field.OUT_DTYPE:
            return output.dtype
        case Field.TYPE:
            return output.type
        case _:
            return _read_constant(definition, name, output.type, scope)


def _read_constant(definition: OpDef, name: str, type: Type, scope: _Scope) -> Array:
    is_shape = definition is CONST_SHAPE
    table = (scope.shapes if is_shape else scope.tensors).get(name)
    if table is None:
        raise Invalid(f"{definition.name} {name!r} of the .tosa file has type {type}")
    data = _read_data(table, ShapeTable.DATA if is_shape else TensorTable.DATA, type, name)
    if data is None:
        raise Invalid(f"{definition.name} {name!r} of the .tosa file has no data")
    return data


def _read_variable_op(
    definition: OpDef, sources: list[str], results: list[str], scope: _Scope, origin: tuple[str, ...]
) -> Op:
    """Read an op on a variable: an output tensor of VARIABLE and VARIABLE_WRITE, an input of VARIABLE_READ."""
    holders, plain = (sources, results) if definition is VARIABLE_READ else (results, sources)
    if len(holders) != 1 or len(plain) != (definition is not VARIABLE):
        raise Invalid(f"{definition.name} of the .tosa file has {len(sources)} inputs and {len(results)} outputs")
    table = _find_variable(holders[0], scope)
    name = table.get_text(TensorTable.VARIABLE_NAME, "a variable's name")
    if definition is VARIABLE:
        declared = _read_type(table, holders[0])
        data = _read_data(table, TensorTable.DATA, declared, holders[0])
        return Op(definition, (), (), {"name": name, "type": declared, "data": data}, origin)
    if definition is VARIABLE_WRITE:
        return Op(definition, (_use(plain[0], scope, definition.name),), (), {"name": name}, origin)
    value = _define(plain[0], scope)
    return _link(Op(definition, (), (value,), {"name": name, "type": value.type}, origin))


def _find_variable(name: str, scope: _Scope) -> Table:
    table = scope.tensors.get(name)
    if table is None or not table.get(TensorTable.VARIABLE, "<B"):
        raise Invalid(f"the .tosa file has no variable tensor named {name!r}")
    return table


def _use(name: str, scope: _Scope, user: str) -> Value:
    if name not in scope.values:
        raise Invalid(f"{user} of the .tosa file uses {name!r}, which is not defined before it")
    return scope.values[name]


def _define(name: str, scope: _Scope) -> Value:
    if name in scope.values:
        raise Invalid(f"the .tosa file defines {name!r} twice")
    if name in scope.tensors:
        value = Value(_read_type(scope.tensors[name], name))
    elif name in scope.shapes:
        value = Value(Type(DType.SHAPE, (scope.shapes[name].get(ShapeTable.RANK, "<I"),)))
    else:
        raise Invalid(f"the .tosa file declares no tensor named {name!r}")
    scope.values[name] = value
    return value


def _read_type(table: Table, name: str) -> Type:
    code = table.get(TensorTable.TYPE, "<I")
    if code not in _DTYPES:
        raise Invalid(f"tensor {name!r} of the .tosa file has type {code}, which TOSA 1.0 does not have")
    shape = table.get_ints(TensorTable.SHAPE, f"shape of {name!r}")
    if len(shape) > _MAX_RANK:
        raise Invalid(
            f"tensor {name!r} of the .tosa file has {len(shape)} dimensions; at most {_MAX_RANK} are possible"
        )
    if table.get(TensorTable.IS_UNRANKED, "<B") or min(shape, default=1) < 1:
        raise Invalid(f"tensor {name!r} of the .tosa file has no fixed shape: {list(shape)}")
    # Data outside the file's tables and block scaling are not in TOSA 1.0.
    external = any(table.get(slot, "<Q") for slot in (TensorTable.OFFSET, TensorTable.SIZE))
    if external or table.get(TensorTable.SCALE_TYPE, "<I") or table.get(TensorTable.BLOCK_SHAPE, "<I"):
        raise Invalid(f"tensor {name!r} of the .tosa file uses external data or block scaling")
    return Type(_DTYPES[code], shape)


def _read_data(table: Table, slot: int, type: Type, name: str) -> Array | None:
    raw = table.get_bytes(slot, f"data of {name!r}")
    if not raw.size and type.size:
        return None
    if raw.size != count_bytes(type.size, type.dtype):
        raise Invalid(f"data of {name!r} in the .tosa file has {raw.size} bytes, which is wrong for {type}")
    table.buffer.budget.take(type.size * np.dtype(NUMPY[type.dtype]).itemsize, f"data of {name!r}")
    if type.dtype is DType.BOOL and bool((raw > 1).any()):
        raise Invalid(f"data of {name!r} in the .tosa file has a bool that is neither 0 nor 1")
    return from_bytes(raw, type.shape, type.dtype)


def _read_attr(
    table: Table, slot: int, attribute: Attribute, what: str, inputs: tuple[Value, ...], scope: _Scope
) -> Attr:
    match attribute.field:
        case Field.INT:
            return table.get(slot, "<i")
        case Field.INTS:
            return table.get_ints(slot, what)
        case Field.BOOL:
            return bool(table.get(slot, "<B"))
        case Field.TEXT:
            return table.get_text(slot, what)
        case Field.BYTES:
            return table.get_bytes(slot, what).tobytes()
        case Field.GRAPH:
            return _read_region(table.get_text(slot, what), scope.regions, scope.path)
        case Field.NUMBER:
            return _read_number(table, slot, what, inputs)
        case Field.DTYPE:
            return _choose(_DTYPES, table.get(slot, "<I"), what)
        case Field.NAN_MODE:
            # Zero means that the writer omitted it, and TOSA's default is to propagate.
            return _choose(_CHOICES[Field.NAN_MODE], table.get(slot, "<I") or 1, what)
        case _:
            return _choose(_CHOICES[attribute.field], table.get(slot, "<I"), what)


def _choose(choices: Mapping[int, str], code: int, what: str) -> str:
    if code not in choices:
        raise Invalid(f"{what} in the .tosa file is {code}; one of {sorted(choices)} is needed")
    return choices[code]


def _read_number(table: Table, slot: int, what: str, inputs: tuple[Value, ...]) -> int | float:
    raw = table.get_bytes(slot, what)
    dtype = inputs[0].dtype if inputs else DType.I8
    if raw.size != count_bytes(1, dtype):
        raise Invalid(f"{what} in the .tosa file has {raw.size} bytes, which is wrong for {dtype.value}")
    numbers = decode(from_bytes(raw, (1,), dtype), dtype)
    with np.errstate(invalid="ignore"):  # a signaling NaN is for the verifier to reject
        return float(numbers.astype(np.float64)[0]) if dtype.is_float else int(numbers.astype(np.int64)[0])
