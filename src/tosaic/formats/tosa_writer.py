"""Writes a graph as a .tosa file: deterministic bytes with canonical names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tosaic.core.errors import Invalid
from tosaic.formats import flatbuffer_writer as flat
from tosaic.formats import tosa_binding as binding
from tosaic.formats.flatbuffer_writer import Integers, TableData
from tosaic.formats.tosa_reader import read
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
from tosaic.ir.definition import CHOICES, Attribute, Field
from tosaic.ir.encode import encode, to_bytes
from tosaic.ir.graph import Array, Attr, DType, Graph, Op, Type, Value
from tosaic.ir.ops import IDENTITY, VARIABLE, VARIABLE_READ, VARIABLE_WRITE

__all__ = ["names", "read", "serialize"]

_IDENTIFIER = b"TOSA"


def serialize(graph: Graph, *, location: Callable[[Op], str] | None = None) -> bytes:
    """Write the .tosa file of a graph (TOSA 1.0.0). `location` returns the text kept with each op."""
    regions = _name_regions(_separate_outputs(graph))
    version: dict[int, flat.Field] = {
        VersionTable.MAJOR: ("i", 1),
        VersionTable.MINOR: ("i", 0),
        VersionTable.PATCH: ("i", 0),
        VersionTable.DRAFT: ("B", 0),
    }
    tables = [
        TableData({RegionTable.NAME: region.name, RegionTable.BLOCKS: [_describe_block(region, regions, location)]})
        for region in regions.all
    ]
    return flat.write_flatbuffer(
        TableData({GraphTable.VERSION: TableData(version), GraphTable.REGIONS: tables}), _IDENTIFIER
    )


def names(graph: Graph) -> dict[Value, str]:
    """Name each value as in the file. A value that is an input and an output keeps its input name."""
    return _name_regions(_separate_outputs(graph)).values


@dataclass(slots=True)
class _Region:
    name: str
    graph: Graph
    values: dict[Value, str]
    bodies: dict[tuple[Op, str], str] = field(default_factory=dict[tuple[Op, str], str])
    variables: set[str] = field(default_factory=set[str])  # those whose tensor is in this region's block


@dataclass(slots=True)
class _Block:
    """The tensors and shapes of a block so far."""

    tensors: list[TableData] = field(default_factory=list[TableData])
    shapes: list[TableData] = field(default_factory=list[TableData])


@dataclass(slots=True)
class _Regions:
    """Every graph of a file, including the bodies of control flow, with the names of all their values."""

    all: list[_Region] = field(default_factory=list[_Region])
    values: dict[Value, str] = field(default_factory=dict[Value, str])
    variables: dict[str, tuple[str, Type]] = field(default_factory=dict[str, tuple[str, Type]])


def _separate_outputs(graph: Graph) -> Graph:
    """Put an IDENTITY before each output that is also an input or an earlier output."""
    taken, outputs, ops = set(graph.inputs), list[Value](), list(graph.ops)
    for value in graph.outputs:
        if value in taken:
            copy = Value(value.type)
            copy.op = Op(IDENTITY, (value,), (copy,))
            ops.append(copy.op)
            outputs.append(copy)
        else:
            taken.add(value)
            outputs.append(value)
    return Graph(graph.inputs, outputs, ops)


def _name_regions(graph: Graph) -> _Regions:
    """Name regions in the order in which control flow reaches them: main, region_0, region_1, ..."""
    regions = _Regions()
    waiting = [("main", graph)]
    count = 0
    while waiting:
        name, current = waiting.pop(0)
        region = _Region(name, current, _name_values(current, "" if name == "main" else f"{name}."))
        regions.all.append(region)
        regions.values.update(region.values)
        for op in current.ops:
            if op.definition is VARIABLE:
                tensor = (f"variable_{len(regions.variables)}", op.get("type", Type))
                regions.variables.setdefault(op.get("name", str), tensor)
            for attribute in op.definition.stored_attributes:
                if attribute.field is Field.GRAPH:
                    region.bodies[op, attribute.name] = f"region_{count}"
                    waiting.append((f"region_{count}", _separate_outputs(op.get(attribute.name, Graph))))
                    count += 1
    return regions


def _name_values(graph: Graph, prefix: str) -> dict[Value, str]:
    table = {value: f"{prefix}t{i}" for i, value in enumerate(v for op in graph.ops for v in op.outputs)}
    table |= {value: f"{prefix}output_{i}" for i, value in enumerate(graph.outputs)}
    return table | {value: f"{prefix}input_{i}" for i, value in enumerate(graph.inputs)}


def _describe_block(region: _Region, regions: _Regions, location: Callable[[Op], str] | None) -> TableData:
    block = _Block()
    inputs = [region.values[value] for value in region.graph.inputs]
    for name, value in zip(inputs, region.graph.inputs, strict=True):
        if value.dtype is DType.SHAPE:
            raise Invalid("a shape cannot be an input of a graph")
        block.tensors.append(_describe_tensor(name, value.type, None))
    operators: list[TableData] = []
    for op in region.graph.ops:
        for value in op.outputs:
            _add_value(block, region.values[value], value)
        if op.kind not in binding.OPS:
            raise Invalid(f"{op.kind} is not an operator of TOSA 1.0")
        sources, results = _name_operands(block, op, region, regions)
        operators.append(_describe_operator(op, sources, results, region, location(op) if location else ""))
    return TableData(
        {
            BlockTable.NAME: region.name,
            BlockTable.OPERATORS: operators,
            BlockTable.TENSORS: block.tensors,
            BlockTable.INPUTS: inputs,
            BlockTable.OUTPUTS: [region.values[value] for value in region.graph.outputs],
            BlockTable.SHAPES: block.shapes,
        }
    )


def _describe_operator(op: Op, sources: list[str], results: list[str], region: _Region, text: str) -> TableData:
    # The union of attributes is numbered like the operators.
    code = binding.OPS[op.kind].value
    stored = enumerate(op.definition.stored_attributes)
    fields: dict[int, flat.Field] = {
        OperatorTable.OP: ("I", code),
        OperatorTable.ATTRIBUTE_TYPE: ("B", code),
        OperatorTable.ATTRIBUTE: TableData({slot: _to_field(op, attribute, region) for slot, attribute in stored}),
        OperatorTable.INPUTS: sources,
        OperatorTable.OUTPUTS: results,
    }
    if text:
        fields[OperatorTable.LOCATION] = TableData({LocationTable.TEXT: text})
    return TableData(fields)


def _name_operands(block: _Block, op: Op, region: _Region, regions: _Regions) -> tuple[list[str], list[str]]:
    """Name the op's tensors. A variable is a separate tensor: the output of VARIABLE and VARIABLE_WRITE."""
    try:
        inputs, outputs = ([region.values[value] for value in values] for values in (op.inputs, op.outputs))
    except KeyError:
        raise Invalid(f"{op.kind} reads a value that its graph does not define") from None
    if op.definition not in (VARIABLE, VARIABLE_READ, VARIABLE_WRITE):
        return inputs, outputs
    name = op.get("name", str)
    if name not in regions.variables:
        raise Invalid(f"{op.kind}: no VARIABLE declares {name!r}")
    tensor, type = regions.variables[name]
    if name not in region.variables:
        region.variables.add(name)
        block.tensors.append(_describe_tensor(tensor, type, op.data, variable=name))
    return ([tensor], outputs) if op.definition is VARIABLE_READ else (inputs, [tensor])


def _add_value(block: _Block, name: str, value: Value) -> None:
    data = value.data
    if data is None and (value.dtype is DType.SHAPE or (value.op is not None and value.op.is_constant)):
        raise Invalid(f"{value.op.kind if value.op else 'a shape'} {value.type} has no data")
    if data is not None and value.dtype is DType.SHAPE:
        numbers = to_bytes(data.astype(np.int64), DType.SHAPE).tobytes()
        block.shapes.append(
            TableData({ShapeTable.NAME: name, ShapeTable.RANK: ("I", data.size), ShapeTable.DATA: numbers})
        )
    else:
        block.tensors.append(_describe_tensor(name, value.type, data))


def _describe_tensor(name: str, type: Type, data: Array | None, variable: str | None = None) -> TableData:
    fields: dict[int, flat.Field] = {
        TensorTable.NAME: name,
        TensorTable.SHAPE: Integers(type.shape),
        TensorTable.TYPE: ("I", binding.DTYPES[type.dtype].value),
    }
    if data is not None:
        fields[TensorTable.DATA] = to_bytes(data, type.dtype).tobytes()
    if variable is not None:
        fields |= {TensorTable.VARIABLE: ("B", 1), TensorTable.VARIABLE_NAME: variable}
    return TableData(fields)


#: fields of one number that are not the number of a choice
_FORMS = {Field.INT: "i", Field.BOOL: "B"}


def _to_field(op: Op, attribute: Attribute, region: _Region) -> flat.Field:
    """Convert an attribute to what its table has."""
    value: Attr = op.attrs[attribute.name]
    if attribute.field is Field.GRAPH:
        return region.bodies[op, attribute.name]
    if attribute.field in CHOICES:
        return "I", binding.CHOICES[attribute.field][op.get(attribute.name, str)].value
    if isinstance(value, DType):
        return "I", binding.DTYPES[value].value
    if attribute.field is Field.NUMBER:
        dtype = op.inputs[0].dtype
        return to_bytes(encode(np.array([value]), dtype), dtype).tobytes()
    if attribute.field is Field.INTS:
        return Integers(op.get_ints(attribute.name))
    if attribute.field in _FORMS:
        return _FORMS[attribute.field], op.get(attribute.name, int)
    assert isinstance(value, str | bytes)
    return value
