"""Reads a .tosa file that nobody vouches for: a Graph, or Invalid that names the field or the offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats import tosa_binding as binding
from tosaic.formats.flatbuffer import Buffer, Table
from tosaic.ir.encode import count_bytes, decode, from_bytes
from tosaic.ir.graph import NUMPY, Array, Attr, DType, Graph, Op, Type, Value
from tosaic.ir.signature import SIGNATURES, Field

_DTYPES = {entry.value: dtype for dtype, entry in binding.DTYPES.items()}
#: The union of attributes is numbered as the operators are.
_KINDS = {binding.OPS[kind].value: kind for kind in SIGNATURES}
_ENUMS = {
    Field.NAN_MODE: {entry.value: name for name, entry in binding.NAN_MODES.items() if name != "UNKNOWN"},
    Field.ROUNDING: {entry.value: name for name, entry in binding.ROUNDING_MODES.items() if name != "UNKNOWN"},
    Field.RESIZE: {entry.value: name for name, entry in binding.RESIZE_MODES.items() if name != "UNKNOWN"},
}
_MAX_NESTING = 64
#: What TOSA's largest level allows; a product of thousands of sizes would take minutes.
_MAX_RANK = 32


def read(data: bytes, budget: Budget | None = None) -> Graph:
    """The graph of a .tosa file. Types are as the file says: `verify` checks them against the rules.

    `budget` is the memory that it may take; that of a file of its own, unless given.
    """
    root = Buffer(data, budget).root()
    version = root.get_table(0, "the version")
    major = -1 if version is None else version.get(0, "<i", -1)
    if major != 1:
        raise Invalid(f"the .tosa file has TOSA version {major}; version 1 is needed")
    regions: dict[str, Table] = {}
    for region in root.get_tables(1, "region"):
        name = region.get_text(0, "a region's name")
        if name in regions:
            raise Invalid(f"the .tosa file has two regions named {name!r}")
        regions[name] = region
    return _read_region("main", regions, ())


@dataclass(slots=True)
class _Scope:
    """What is known while the ops of one block are read."""

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
    blocks = regions[name].get_tables(1, f"block of region {name!r}")
    if len(blocks) != 1:
        raise Invalid(f"region {name!r} of the .tosa file has {len(blocks)} blocks; one is needed")
    (block,) = blocks
    scope = _Scope(
        _index(block.get_tables(2, "tensor")), _index(block.get_tables(5, "shape")), {}, regions, (*path, name)
    )
    inputs = [_define(text, scope) for text in block.get_texts(3, "an input's name")]
    ops = [_read_op(table, scope) for table in block.get_tables(1, "operator")]
    outputs = [_use(text, scope, "the block's outputs") for text in block.get_texts(4, "an output's name")]
    return Graph(inputs, outputs, ops)


def _index(tables: list[Table]) -> dict[str, Table]:
    index: dict[str, Table] = {}
    for table in tables:
        name = table.get_text(0, "a tensor's name")
        if name in index:
            raise Invalid(f"the .tosa file has two tensors named {name!r}")
        index[name] = table
    return index


def _read_op(table: Table, scope: _Scope) -> Op:
    code, union = table.get(0, "<I"), table.get(1, "<B")
    if code not in _KINDS:
        raise Invalid(f"{table.what} of the .tosa file has code {code}, which is no operator of TOSA 1.0")
    kind = _KINDS[code]
    attribute = table.get_table(2, f"attribute of {kind}")
    if union != code and (union != 0 or SIGNATURES[kind].attrs):
        raise Invalid(f"{table.what} {kind} of the .tosa file has an attribute of type {union}; {code} is needed")
    sources = table.get_texts(3, f"an input's name of {kind}")
    results = table.get_texts(4, f"an output's name of {kind}")
    location = table.get_table(5, "a location")
    text = location.get_text(0, "a location") if location else ""
    origin = (text,) if text else ()
    if kind.startswith("VARIABLE"):
        return _read_variable_op(kind, sources, results, scope, origin)
    inputs = tuple(_use(name, scope, kind) for name in sources)
    outputs = tuple(_define(name, scope) for name in results)
    attrs: dict[str, Attr] = {}
    for slot, (name, field) in enumerate(SIGNATURES[kind].attrs):
        if attribute is None:
            raise Invalid(f"{table.what} {kind} of the .tosa file has no attributes")
        attrs[name] = _read_attr(attribute, slot, field, f"{name} of {kind}", inputs, scope)
    attrs |= _read_hidden(kind, results, outputs, scope)
    return _link(Op(kind, inputs, outputs, attrs, origin))


def _link(op: Op) -> Op:
    for value in op.outputs:
        value.op = op
    return op


def _read_hidden(kind: str, names: list[str], outputs: tuple[Value, ...], scope: _Scope) -> dict[str, Attr]:
    """The attributes that a file keeps as the type or the data of the op's output."""
    if kind == "CUSTOM":
        return {"types": tuple(value.type for value in outputs)}
    if not SIGNATURES[kind].hidden:
        return {}
    if len(outputs) != 1:
        raise Invalid(f"{kind} of the .tosa file has {len(outputs)} outputs; one is needed")
    (value,) = outputs
    if kind not in ("CONST", "CONST_SHAPE"):
        return {"out_type": value.dtype}
    table = (scope.shapes if kind == "CONST_SHAPE" else scope.tensors).get(names[0])
    if table is None:
        raise Invalid(f"{kind} {names[0]!r} of the .tosa file gives {value.type}")
    data = _read_data(table, 2 if kind == "CONST_SHAPE" else 3, value.type, names[0])
    if data is None:
        raise Invalid(f"{kind} {names[0]!r} of the .tosa file has no data")
    return {"type": value.type, "data": data}


def _read_variable_op(kind: str, sources: list[str], results: list[str], scope: _Scope, origin: tuple[str, ...]) -> Op:
    """A variable is a tensor of its own: made by VARIABLE and VARIABLE_WRITE, used by VARIABLE_READ."""
    holders = sources if kind == "VARIABLE_READ" else results
    plain = results if kind == "VARIABLE_READ" else sources
    if len(holders) != 1 or len(plain) != (kind != "VARIABLE"):
        raise Invalid(f"{kind} of the .tosa file has {len(sources)} inputs and {len(results)} outputs")
    table = _find_variable(holders[0], scope)
    name = table.get_text(6, "a variable's name")
    if kind == "VARIABLE":
        declared = _read_type(table, holders[0])
        data = _read_data(table, 3, declared, holders[0])
        return Op(kind, (), (), {"name": name, "type": declared, "data": data}, origin)
    if kind == "VARIABLE_WRITE":
        return Op(kind, (_use(plain[0], scope, kind),), (), {"name": name}, origin)
    value = _define(plain[0], scope)
    return _link(Op(kind, (), (value,), {"name": name, "type": value.type}, origin))


def _find_variable(name: str, scope: _Scope) -> Table:
    table = scope.tensors.get(name)
    if table is None or not table.get(4, "<B"):
        raise Invalid(f"the .tosa file has no variable tensor named {name!r}")
    return table


def _use(name: str, scope: _Scope, user: str) -> Value:
    if name not in scope.values:
        raise Invalid(f"{user} of the .tosa file uses {name!r}, which nothing before it makes")
    return scope.values[name]


def _define(name: str, scope: _Scope) -> Value:
    if name in scope.values:
        raise Invalid(f"the .tosa file makes {name!r} twice")
    if name in scope.tensors:
        value = Value(_read_type(scope.tensors[name], name))
    elif name in scope.shapes:
        value = Value(Type(DType.SHAPE, (scope.shapes[name].get(1, "<I"),)))
    else:
        raise Invalid(f"the .tosa file declares no tensor named {name!r}")
    scope.values[name] = value
    return value


def _read_type(table: Table, name: str) -> Type:
    code = table.get(2, "<I")
    if code not in _DTYPES:
        raise Invalid(f"tensor {name!r} of the .tosa file has type {code}, which TOSA 1.0 has not")
    shape = table.get_ints(1, f"shape of {name!r}")
    if len(shape) > _MAX_RANK:
        raise Invalid(
            f"tensor {name!r} of the .tosa file has {len(shape)} dimensions; at most {_MAX_RANK} are possible"
        )
    if table.get(5, "<B") or min(shape, default=1) < 1:
        raise Invalid(f"tensor {name!r} of the .tosa file has no fixed shape: {list(shape)}")
    # Slots 7 to 13 are data outside the file's tables and block scaling: neither is in TOSA 1.0.
    if any(table.get(slot, "<Q") for slot in (7, 8)) or table.get(9, "<I") or table.get(11, "<I"):
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


def _read_attr(table: Table, slot: int, field: Field, what: str, inputs: tuple[Value, ...], scope: _Scope) -> Attr:
    match field:
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
            # Zero means that the writer left it out, and TOSA's default is to propagate.
            return _choose(_ENUMS[field], table.get(slot, "<I") or 1, what)
        case _:
            return _choose(_ENUMS[field], table.get(slot, "<I"), what)


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
    with np.errstate(invalid="ignore"):  # a signalling NaN is for the verifier to refuse
        return float(numbers.astype(np.float64)[0]) if dtype.is_float else int(numbers.astype(np.int64)[0])
