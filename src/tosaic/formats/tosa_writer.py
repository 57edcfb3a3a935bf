"""Writes a graph as a .tosa file: deterministic bytes with canonical names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import Invalid
from tosaic.formats import tosa_binding as binding
from tosaic.formats.tosa_reader import read
from tosaic.ir.definition import CHOICES, Attribute, Field
from tosaic.ir.encode import encode, to_bytes
from tosaic.ir.graph import Array, Attr, DType, Graph, Op, Type, Value
from tosaic.ir.ops import IDENTITY, VARIABLE, VARIABLE_READ, VARIABLE_WRITE

__all__ = ["names", "read", "serialize"]


def serialize(graph: Graph, *, location: Callable[[Op], str] | None = None) -> bytes:
    """Write the .tosa file of a graph (TOSA 1.0.0). `location` returns the text kept with each op."""
    regions = _name_regions(_separate_outputs(graph))
    serializer = binding.make_serializer("", targetMajor=1, targetMinor=0, targetPatch=0, targetDraft=False)
    for region in regions.all:
        if region.name != "main":
            serializer.startRegion(region.name)
            serializer.currRegion.addBasicBlock(region.name)
        _write_block(serializer.currRegion.currBasicBlock, region, regions, location)
    return serializer.serialize()


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


def _write_block(
    block: binding.Block, region: _Region, regions: _Regions, location: Callable[[Op], str] | None
) -> None:
    for value in region.graph.inputs:
        if value.dtype is DType.SHAPE:
            raise Invalid("a shape cannot be an input of a graph")
        block.addInput(region.values[value])
        _write_tensor(block, region.values[value], value.type, None)
    for op in region.graph.ops:
        for value in op.outputs:
            _write_value(block, region.values[value], value)
        if op.kind not in binding.OPS:
            raise Invalid(f"{op.kind} is not an operator of TOSA 1.0")
        code, (inputs, outputs) = binding.OPS[op.kind], _name_operands(block, op, region, regions)
        table = binding.make_attribute()
        table.setAttribute(code, *(_to_argument(op, a, region) for a in op.definition.stored_attributes))
        text = location(op) if location else ""
        block.addOperator(code, inputs, outputs, table, binding.make_location(text) if text else None)
    for value in region.graph.outputs:
        block.addOutput(region.values[value])


def _name_operands(block: binding.Block, op: Op, region: _Region, regions: _Regions) -> tuple[list[str], list[str]]:
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
        _write_tensor(block, tensor, type, op.data, variable=name)
    return ([tensor], outputs) if op.definition is VARIABLE_READ else (inputs, [tensor])


def _write_value(block: binding.Block, name: str, value: Value) -> None:
    data = value.data
    if data is None and (value.dtype is DType.SHAPE or (value.op is not None and value.op.is_constant)):
        raise Invalid(f"{value.op.kind if value.op else 'a shape'} {value.type} has no data")
    if data is not None and value.dtype is DType.SHAPE:
        block.addShape(name, data.size, [int(n) for n in data.astype(np.int64)])
    else:
        _write_tensor(block, name, value.type, data)


def _write_tensor(block: binding.Block, name: str, type: Type, data: Array | None, variable: str | None = None) -> None:
    # The binding converts number by number except from bytes to int8: write the bytes as int8, then set the dtype.
    raw: npt.NDArray[np.uint8] | None = None if data is None else to_bytes(data, type.dtype)
    tensor = block.addTensor(
        name, type.shape, binding.DTYPES[DType.I8], raw, variable=variable is not None, variable_name=variable or ""
    )
    tensor.setDtype(binding.DTYPES[type.dtype])


def _to_argument(op: Op, attribute: Attribute, region: _Region) -> object:
    """Convert an attribute for the serializer."""
    value: Attr = op.attrs[attribute.name]
    if attribute.field is Field.GRAPH:
        return region.bodies[op, attribute.name]
    if attribute.field in CHOICES:
        return binding.CHOICES[attribute.field][op.get(attribute.name, str)]
    if isinstance(value, DType):
        return binding.DTYPES[value]
    if attribute.field is Field.NUMBER and isinstance(value, int | float):
        dtype = op.inputs[0].dtype
        return to_bytes(encode(np.array([value]), dtype), dtype).tolist()
    return list(value) if isinstance(value, tuple | bytes) else value
