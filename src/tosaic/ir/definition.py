"""Definitions of TOSA operators: one `OpDef` holds operands, attributes, type inference, legality and bounds.

Builder, verifier, text form and the .tosa reader and writer know operators only through their definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum, StrEnum
from functools import cached_property
from typing import TypeAlias

import numpy as np

from tosaic.core.errors import Invalid
from tosaic.ir.graph import Attr, DType, Graph, Op, Type, Value


class Role(Enum):
    """Kinds of operands."""

    TENSOR = "any tensor"
    CONSTANT = "a tensor that is known at compile time"
    SHAPE = "a CONST_SHAPE"
    LIST = "zero or more tensors, after all other operands"


@dataclass(frozen=True, slots=True)
class Operand:
    """One input of an operator, or for a LIST all inputs from its position on."""

    name: str
    role: Role = Role.TENSOR


def tensor(name: str) -> Operand:
    return Operand(name)


def constant(name: str) -> Operand:
    return Operand(name, Role.CONSTANT)


def shape(name: str) -> Operand:
    return Operand(name, Role.SHAPE)


def tensor_list(name: str) -> Operand:
    return Operand(name, Role.LIST)


class Field(StrEnum):
    """The type of an attribute, and how a .tosa file stores it."""

    INT = "an integer"
    INTS = "integers"
    BOOL = "a bool"
    DTYPE = "a DType"
    NUMBER = "a number"  # stored as the raw bytes of one element of the first input's dtype
    NAN_MODE = "a NaN mode"
    ROUNDING_MODE = "a rounding mode"
    RESIZE_MODE = "a resize mode"
    TEXT = "a text"
    BYTES = "bytes"
    GRAPH = "a Graph"  # stored as the name of a region
    # Not in an operator's attribute table: the file expresses these by the tensors of the operator.
    OUT_DTYPE = "the DType of the output"
    OUT_TYPES = "a tuple of Types, one for each output"
    TYPE = "a Type"
    DATA = "an array"
    VARIABLE = "the name of a variable"


#: Fields that a .tosa file does not keep in the operator's attribute table.
_OUTSIDE = frozenset({Field.OUT_DTYPE, Field.OUT_TYPES, Field.TYPE, Field.DATA, Field.VARIABLE})

CHOICES: Mapping[Field, tuple[str, ...]] = {
    Field.NAN_MODE: ("PROPAGATE", "IGNORE"),
    Field.ROUNDING_MODE: ("SINGLE_ROUND", "INEXACT_ROUND", "DOUBLE_ROUND"),
    Field.RESIZE_MODE: ("NEAREST", "BILINEAR"),
}

#: The element types of the tuples.
_ITEM_TYPES: Mapping[Field, type] = {Field.INTS: int, Field.OUT_TYPES: Type}
_PYTHON_TYPES: Mapping[Field, type | tuple[type, ...]] = {
    Field.INT: int,
    Field.BOOL: bool,
    Field.DTYPE: DType,
    Field.NUMBER: (int, float),
    Field.TEXT: str,
    Field.BYTES: bytes,
    Field.GRAPH: Graph,
    Field.OUT_DTYPE: DType,
    Field.TYPE: Type,
    Field.DATA: np.ndarray,
    Field.VARIABLE: str,
}


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: `count` is the length of an INTS list, `needs` the extensions that single choices need."""

    name: str
    field: Field
    count: int | None = None
    optional: bool = False
    needs: Mapping[str, str] | None = None

    @property
    def stored(self) -> bool:
        """Whether a .tosa file keeps it in the operator's attribute table."""
        return self.field not in _OUTSIDE

    @property
    def implied(self) -> bool:
        """Whether the types of the outputs imply it."""
        return self.field in (Field.OUT_DTYPE, Field.OUT_TYPES)

    @property
    def default(self) -> Attr:
        """The value of an attribute that is not given; None if it is required."""
        return {Field.BOOL: False, Field.NAN_MODE: "PROPAGATE"}.get(self.field)

    def check(self, value: Attr) -> None:
        """Raise Invalid if the value is not of the attribute's type."""
        if self.optional and value is None:
            return
        if self.field in CHOICES:
            if not isinstance(value, str) or value not in CHOICES[self.field]:
                raise Invalid(f"attribute {self.name} must be one of {', '.join(CHOICES[self.field])}, not {value!r}")
            return
        if not self._fits(value):
            size = f"{self.count} " if self.count is not None else ""
            shown = type(value).__name__ if isinstance(value, np.ndarray) else repr(value)
            raise Invalid(f"attribute {self.name} must be {size}{self.field.value}, not {shown}")

    def _fits(self, value: Attr) -> bool:
        if self.field in _ITEM_TYPES:
            items = value if isinstance(value, tuple) else (None,)
            counted = self.count is None or len(items) == self.count
            return counted and all(isinstance(item, _ITEM_TYPES[self.field]) for item in items)
        wanted = _PYTHON_TYPES[self.field]
        # In Python a bool is an int, and a DType is a str.
        return isinstance(value, wanted) and (not isinstance(value, bool | DType) or type(value) is wanted)


AXIS = Attribute("axis", Field.INT)
NAN_MODE = Attribute("nan_mode", Field.NAN_MODE)


class Limit(Enum):
    """The sizes that a TOSA level bounds."""

    RANK = "rank"
    KERNEL = "kernel"
    STRIDE = "stride"
    SCALE = "scale"
    LOG2_SIZE = "log2 of the size in bytes"
    NESTING = "nesting of control flow"
    TENSOR_LIST = "tensors in a list"


@dataclass(frozen=True, slots=True)
class Bound:
    """Numbers of an operator that a level bounds."""

    what: str
    measure: Callable[[Op], tuple[int, ...]]
    limit: Limit


def bound(name: str, limit: Limit) -> Bound:
    """Bound an attribute that is a list of integers."""
    return Bound(name, lambda op: op.get_ints(name), limit)


@dataclass(frozen=True, slots=True)
class Legality:
    """The dtypes that an operator accepts, and what a specification must have for each combination.

    A slot is the position of a dtype: `in` (the first operand), `out` (the first output), or the name of an operand or
    an attribute. A row maps the dtypes of the slots to alternatives, each a set of profiles and extensions.
    """

    slots: tuple[str, ...]
    rows: Mapping[tuple[str, ...], tuple[frozenset[str], ...]]


def allow(slots: str, *lines: str) -> Legality:
    """Read a legality table.

    Each line: combinations separated by commas, a colon, then alternatives by `|`, each of parts by `+`.
    """
    rows: dict[tuple[str, ...], tuple[frozenset[str], ...]] = {}
    for line in lines:
        combinations, _, needs = line.partition(":")
        alternatives = tuple(frozenset(part.strip().split("+")) for part in needs.split("|"))
        for combination in combinations.split(","):
            rows[tuple(combination.split())] = alternatives
    return Legality(tuple(slots.split()), rows)


#: The rows of an operator that accepts every float.
ANY_FLOAT = ("f8e4m3: fp8e4m3", "f8e5m2: fp8e5m2", "f16, f32: FP", "bf16: bf16")

#: Infers the output types of an op without outputs; raises Invalid where TOSA says ERROR_IF.
Infer: TypeAlias = Callable[[Op], Type | tuple[Type, ...]]
#: The types of the variables that are declared before an op.
Variables: TypeAlias = dict[str, Type]


@dataclass(frozen=True, eq=False)
class OpDef:
    """One TOSA operator.

    Attributes are in the order of the file's table. `bounds` are the limits of the 8K level besides rank and size;
    `check_variables` is the rule of an operator on variables, which depends on the ops before it.
    """

    name: str
    operands: tuple[Operand, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    _: KW_ONLY
    infer: Infer
    legal: Legality
    bounds: tuple[Bound, ...] = ()
    check_variables: Callable[[Op, Variables], None] | None = None
    constant: bool = False

    @cached_property
    def stored_attributes(self) -> tuple[Attribute, ...]:
        """The attributes of the file's table."""
        return tuple(attribute for attribute in self.attributes if attribute.stored)

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {operand.name: position for position, operand in enumerate(self.operands)}

    @cached_property
    def _defaults(self) -> Mapping[str, Attr]:
        return {a.name: a.default for a in self.attributes if a.optional or a.default is not None}

    def find_position(self, name: str) -> int:
        """Find the position of an operand among the inputs of an op."""
        if name not in self._positions:
            raise Invalid(f"{self.name} has no operand {name!r}; it has {', '.join(self._positions) or 'none'}")
        return self._positions[name]

    def complete(self, attrs: Mapping[str, Attr]) -> dict[str, Attr]:
        """Return the attributes in their order, with defaults for those that are not given."""
        given = {**self._defaults, **attrs}
        return {**{a.name: given[a.name] for a in self.attributes if a.name in given}, **given}

    def infer_types(self, op: Op) -> tuple[Type, ...]:
        """Check operands and attributes, and return the types of the outputs."""
        try:
            self._check_operands(op.inputs)
            self._check_attributes(op.attrs)
            types = self.infer(op)
        except Invalid as error:
            raise Invalid(f"{self.name}: {error.what}") from None
        return types if isinstance(types, tuple) else (types,)

    def _check_operands(self, inputs: Sequence[Value]) -> None:
        variadic = bool(self.operands) and self.operands[-1].role is Role.LIST
        least = len(self.operands) - variadic
        if len(inputs) < least or (len(inputs) > least and not variadic):
            want = f"{least} or more" if variadic else str(least)
            raise Invalid(f"takes {want} inputs ({', '.join(self._positions)}), not {len(inputs)}")

    def _check_attributes(self, attrs: Mapping[str, Attr]) -> None:
        if len(attrs) != len(self.attributes) or any(attribute.name not in attrs for attribute in self.attributes):
            names = ", ".join(attribute.name for attribute in self.attributes)
            raise Invalid(f"has the attributes {names or 'none'}, not {', '.join(attrs) or 'none'}")
        for attribute in self.attributes:
            attribute.check(attrs[attribute.name])
