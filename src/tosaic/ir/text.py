"""A graph as text, one line per op: written for golden tests, reports and debugging, and parsed again by tests.

graph(%x0: i8[1,4,4,3]) {
  %c0 = CONST_SHAPE shape[1] [48]
  %1: i8[48] = RESHAPE(%x0, %c0)
  return %1
}
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping

import numpy as np

from tosaic.core.errors import Invalid
from tosaic.ir.definition import CHOICES, Attribute, Field, OpDef
from tosaic.ir.encode import count_bytes, decode, encode, from_bytes, to_bytes
from tosaic.ir.graph import Array, Attr, DType, Graph, Op, Type, Value
from tosaic.ir.ops import DEFINITIONS

_SHORT = 8  # constants of at most this many numbers are printed in full


def to_text(graph: Graph, *, full: bool = False) -> str:
    """Print a graph: values are numbered in order, and long constants are represented by their hash.

    With `full`, long constants are printed as the hex digits of their bytes: that text can be parsed.
    """
    return "\n".join(_write_graph(graph, "", full)) + "\n"


def _write_graph(graph: Graph, indent: str, full: bool) -> Iterator[str]:
    names = {value: f"%x{i}" for i, value in enumerate(graph.inputs)}
    arguments = ", ".join(f"{names[value]}: {value.type}" for value in graph.inputs)
    yield f"{indent}graph({arguments}) {{"
    count = 0
    for op in graph.ops:
        for value in op.outputs:
            names[value] = f"%c{count}" if op.is_constant else f"%{count}"
            count += 1
        yield from _write_op(op, names, indent + "  ", full)
    # A broken graph must still print, for debugging the verifier's errors.
    yield f"{indent}  return {', '.join(names.get(value, '%?') for value in graph.outputs)}".rstrip()
    yield f"{indent}}}"


def _write_op(op: Op, names: Mapping[Value, str], indent: str, full: bool) -> Iterator[str]:
    if op.is_constant and op.outputs:
        (value,) = op.outputs
        yield f"{indent}{names[value]} = {op.kind} {value.type} {_write_data(op.data, value.dtype, full)}"
        return
    results = ", ".join(f"{names[value]}: {value.type}" for value in op.outputs)
    operands = ", ".join(names.get(value, "%?") for value in op.inputs)
    words = [f"{indent}{results}{' = ' if results else ''}{op.kind}({operands})"]
    bodies: list[tuple[str, Graph]] = []
    for attribute in op.definition.attributes:
        value = op.attrs.get(attribute.name)
        if isinstance(value, Graph):
            bodies.append((attribute.name, value))
        elif not _is_left_out(attribute, value):
            words.append(f"{attribute.name}={_write_attr(op, value, full)}")
    yield " ".join(words)
    for name, body in bodies:
        yield f"{indent}  {name}:"
        yield from _write_graph(body, indent + "    ", full)


def _is_left_out(attribute: Attribute, value: Attr) -> bool:
    """Tell whether the line already shows it: by the types of the results, or because it is the default."""
    return attribute.implied or (attribute.default is not None and value == attribute.default)


def _write_attr(op: Op, value: Attr, full: bool) -> str:
    if value is None or isinstance(value, np.ndarray):
        declared = op.attrs.get("type")
        return _write_data(op.data, declared.dtype if isinstance(declared, Type) else DType.F32, full)
    if isinstance(value, tuple):
        return f"({','.join(map(str, value))})"
    if isinstance(value, bytes):
        return value.hex() or "(empty)"
    if isinstance(value, DType):
        return value.value
    return repr(value) if isinstance(value, str) and not value.isidentifier() else str(value)


def _write_data(data: Array | None, dtype: DType, full: bool) -> str:
    """Print short constants in full, long ones by hash or hex digits, and missing ones as a question mark."""
    if data is None:
        return "?"
    if data.size <= _SHORT:
        return f"[{', '.join(str(n) for n in decode(data, dtype).reshape(-1))}]"
    raw = to_bytes(data, dtype)
    return f"hex={raw.tobytes().hex()}" if full else f"sha={hashlib.sha256(raw.data).hexdigest()[:8]}"


_HEADER = re.compile(r"graph\((.*)\) \{")
_OP = re.compile(r"(?:(%.*?) = )?(\w+)\(([^)]*)\)(?: (.*))?")
_CONSTANT = re.compile(r"(%\S+) = (\w+) (\w+\[[\d,]*\]) (.*)")
_RESULT = re.compile(r"(%\w+): (\w+\[[\d,]*\])")
_WORD = re.compile(r"""(\w+)=('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\[[^]]*\]|\S+)(?: |$)""")
_TYPE = re.compile(r"(\w+)\[([\d,]*)\]")


def from_text(text: str, definitions: Mapping[str, OpDef] = DEFINITIONS) -> Graph:
    """Parse the output of `to_text`. Types are taken from the text: `verify` checks them against the definitions.

    Constants must be in full: a hash does not contain their values.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    parser = _Parser(lines, definitions)
    try:
        graph = parser.parse_graph()
        parser.expect_end()
    except (Invalid, ValueError, SyntaxError) as error:
        reason = error.what if isinstance(error, Invalid) else str(error)
        raise Invalid(f"line {parser.number} of the graph's text: {reason}") from None
    return graph


class _Parser:
    """Reads line by line; `number` is that of the last line read."""

    def __init__(self, lines: list[tuple[int, str]], definitions: Mapping[str, OpDef]) -> None:
        self.number = 0
        self._lines = iter(lines)
        self._definitions = definitions

    def parse_graph(self) -> Graph:
        header = self._match(_HEADER, self._take(), "`graph(%x: type, ...) {`")
        values: dict[str, Value] = {}
        inputs = _define(header[1], values)
        ops: list[Op] = []
        while not (line := self._take()).startswith("return"):
            ops.append(self._parse_op(line, values))
        outputs = _use(line.removeprefix("return").strip(), values)
        if self._take() != "}":
            raise Invalid("expected `}` after `return`")
        return Graph(inputs, outputs, ops)

    def expect_end(self) -> None:
        for number, line in self._lines:
            self.number = number
            raise Invalid(f"nothing may follow the graph, but there is {line!r}")

    def _take(self) -> str:
        self.number, line = next(self._lines, (self.number, ""))
        if not line:
            raise Invalid("the text ends inside a graph")
        return line

    def _match(self, form: re.Pattern[str], line: str, wanted: str) -> re.Match[str]:
        found = form.fullmatch(line)
        if found is None:
            raise Invalid(f"expected {wanted}, not {line!r}")
        return found

    def _find(self, name: str) -> OpDef:
        if name not in self._definitions:
            raise Invalid(f"{name} is not an operator of TOSA 1.0")
        return self._definitions[name]

    def _parse_op(self, line: str, values: dict[str, Value]) -> Op:
        if constant := _CONSTANT.fullmatch(line):
            return self._parse_constant(constant, values)
        found = self._match(_OP, line, "`%1: type = OPERATOR(%0, ...) name=value ...`")
        definition = self._find(found[2])
        operands = tuple(_use(found[3], values))
        attrs = self._parse_attrs(definition, found[4] or "")
        results = tuple(_define(found[1] or "", values))
        for attribute in definition.attributes:
            if attribute.field is Field.OUT_DTYPE and results:
                attrs[attribute.name] = results[0].dtype
            elif attribute.field is Field.OUT_TYPES:
                attrs[attribute.name] = tuple(value.type for value in results)
        op = Op(definition, operands, results, definition.complete(attrs))
        for value in results:
            value.op = op
        return op

    def _parse_constant(self, found: re.Match[str], values: dict[str, Value]) -> Op:
        (value,) = _define(f"{found[1]}: {found[3]}", values)
        attrs: dict[str, Attr] = {"type": value.type, "data": _parse_data(found[4], value.type)}
        value.op = Op(self._find(found[2]), (), (value,), attrs)
        return value.op

    def _parse_attrs(self, definition: OpDef, text: str) -> dict[str, Attr]:
        words = {found[1]: found[2] for found in _WORD.finditer(text)}
        if "".join(found[0] for found in _WORD.finditer(text)) != text:
            raise Invalid(f"expected attributes as `name=value`, not {text!r}")
        attrs: dict[str, Attr] = {}
        for attribute in definition.attributes:
            if attribute.field is Field.GRAPH:
                self._match(re.compile(f"{attribute.name}:"), self._take(), f"`{attribute.name}:`")
                attrs[attribute.name] = self.parse_graph()
            elif attribute.field is Field.DATA and attribute.name in words:
                declared = attrs.get("type")
                if not isinstance(declared, Type):
                    raise Invalid("data needs a type before it")
                attrs[attribute.name] = _parse_data(words.pop(attribute.name), declared)
            elif attribute.name in words:
                attrs[attribute.name] = _parse_attr(attribute, words.pop(attribute.name))
        if words:
            raise Invalid(f"{definition.name} has no attribute {', '.join(words)}")
        return attrs


def _parse_attr(attribute: Attribute, word: str) -> Attr:
    if attribute.field in CHOICES:
        return word
    match attribute.field:
        case Field.INT:
            return int(word)
        case Field.INTS:
            return tuple(int(n) for n in word.strip("()").split(",") if n)
        case Field.BOOL:
            return _parse_bool(word)
        case Field.NUMBER:
            return int(word) if re.fullmatch(r"-?\d+", word) else float(word)
        case Field.DTYPE:
            return DType(word)
        case Field.TYPE:
            return _parse_type(word)
        case Field.BYTES:
            return b"" if word == "(empty)" else bytes.fromhex(word)
        case _:
            return str(ast.literal_eval(word)) if word[0] in "'\"" else word


def _parse_bool(word: str) -> bool:
    if word not in ("True", "False"):
        raise Invalid(f"expected True or False, not {word!r}")
    return word == "True"


def _parse_type(text: str) -> Type:
    found = _TYPE.fullmatch(text)
    if found is None:
        raise Invalid(f"expected a type such as i8[1,4], not {text!r}")
    return Type(DType(found[1]), tuple(int(n) for n in found[2].split(",") if n))


def _parse_data(text: str, type: Type) -> Array | None:
    if text == "?":
        return None
    if text.startswith("hex="):
        raw = np.frombuffer(bytes.fromhex(text.removeprefix("hex=")), np.uint8)
        if raw.size != count_bytes(type.size, type.dtype):
            raise Invalid(f"{raw.size} bytes are not the numbers of {type}")
        return from_bytes(raw, type.shape, type.dtype)
    if not re.fullmatch(r"\[.*\]", text):
        raise Invalid(f"expected numbers in brackets or `hex=`, not {text!r}")
    words = [word.strip() for word in text[1:-1].split(",") if word.strip()]
    if len(words) != type.size:
        raise Invalid(f"{len(words)} numbers are not those of {type}")
    if type.dtype is DType.BOOL:
        numbers: Array = np.array([_parse_bool(word) for word in words], np.bool_)
    elif type.dtype.is_float:
        numbers = np.array([float(word) for word in words], np.float64)
    else:
        numbers = np.array([int(word) for word in words], np.int64)
    return encode(numbers.reshape(type.shape), type.dtype)


def _define(text: str, values: dict[str, Value]) -> list[Value]:
    """Make the values of a list such as `%0: i8[1,4], %1: i8[4]`."""
    made: list[Value] = []
    for found in _RESULT.finditer(text):
        if found[1] in values:
            raise Invalid(f"{found[1]} is defined twice")
        values[found[1]] = Value(_parse_type(found[2]))
        made.append(values[found[1]])
    if ", ".join(found[0] for found in _RESULT.finditer(text)) != text:
        raise Invalid(f"expected values as `%0: i8[1,4]`, not {text!r}")
    return made


def _use(text: str, values: Mapping[str, Value]) -> list[Value]:
    names = text.split(", ") if text else []
    for name in names:
        if name not in values:
            raise Invalid(f"{name} is not defined before its use")
    return [values[name] for name in names]
