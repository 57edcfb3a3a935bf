"""What each TOSA 1.0 operator takes: its operands and, in the order of the file's tables, its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Field(StrEnum):
    """How an attribute is kept in a .tosa file."""

    INT = "int"
    INTS = "ints"
    BOOL = "bool"
    DTYPE = "dtype"
    NUMBER = "number"  # the raw bytes of one element of the op's own dtype
    NAN_MODE = "nan_mode"
    ROUNDING = "rounding"
    RESIZE = "resize"
    TEXT = "text"
    BYTES = "bytes"
    GRAPH = "graph"  # the name of a region


@dataclass(frozen=True, slots=True)
class Signature:
    """Operand names, attributes in file order, and the attributes that a file keeps elsewhere (as tensor types)."""

    operands: tuple[str, ...] = ()
    attrs: tuple[tuple[str, Field], ...] = ()
    hidden: tuple[str, ...] = ()
    variadic: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.attrs) + self.hidden


_NAN = ("nan_mode", Field.NAN_MODE)
_AXIS = ("axis", Field.INT)
_ACC = ("acc_type", Field.DTYPE)
_LOCAL = ("local_bound", Field.BOOL)
_PAD = ("pad", Field.INTS)
_STRIDE = ("stride", Field.INTS)
_KERNEL = ("kernel", Field.INTS)

_UNARY = Signature(("input1",))
_BINARY = Signature(("input1", "input2"))
_BINARY_NAN = Signature(("input1", "input2"), (_NAN,))
_REDUCE = Signature(("input",), (_AXIS,))
_REDUCE_NAN = Signature(("input",), (_AXIS, _NAN))
_CONV_OPERANDS = ("input", "weight", "bias", "input_zp", "weight_zp")
_CONV = Signature(_CONV_OPERANDS, (_PAD, _STRIDE, ("dilation", Field.INTS), _LOCAL, _ACC))

_TENSOR: dict[str, Signature] = {
    "ARGMAX": Signature(("input",), (_AXIS, _NAN)),
    "AVG_POOL2D": Signature(("input", "input_zp", "output_zp"), (_KERNEL, _STRIDE, _PAD, _ACC)),
    "CONV2D": _CONV,
    "CONV3D": _CONV,
    "DEPTHWISE_CONV2D": _CONV,
    "FFT2D": Signature(("input_real", "input_imag"), (("inverse", Field.BOOL), _LOCAL)),
    "MATMUL": Signature(("a", "b", "a_zp", "b_zp"), hidden=("out_type",)),
    "MAX_POOL2D": Signature(("input",), (_KERNEL, _STRIDE, _PAD, _NAN)),
    "RFFT2D": Signature(("input_real",), (_LOCAL,)),
    "TRANSPOSE_CONV2D": Signature(_CONV_OPERANDS, (("out_pad", Field.INTS), _STRIDE, _LOCAL, _ACC)),
}

_ELEMENTWISE: dict[str, Signature] = {
    "CLAMP": Signature(("input",), (("min_val", Field.NUMBER), ("max_val", Field.NUMBER), _NAN)),
    "ERF": _UNARY,
    "SIGMOID": _UNARY,
    "TANH": _UNARY,
    "ADD": _BINARY,
    "ARITHMETIC_RIGHT_SHIFT": Signature(("input1", "input2"), (("round", Field.BOOL),)),
    "BITWISE_AND": _BINARY,
    "BITWISE_OR": _BINARY,
    "BITWISE_XOR": _BINARY,
    "INTDIV": _BINARY,
    "LOGICAL_AND": _BINARY,
    "LOGICAL_LEFT_SHIFT": _BINARY,
    "LOGICAL_RIGHT_SHIFT": _BINARY,
    "LOGICAL_OR": _BINARY,
    "LOGICAL_XOR": _BINARY,
    "MAXIMUM": _BINARY_NAN,
    "MINIMUM": _BINARY_NAN,
    "MUL": Signature(("input1", "input2", "shift")),
    "POW": _BINARY,
    "SUB": _BINARY,
    "TABLE": Signature(("input1", "table")),
    "ABS": _UNARY,
    "BITWISE_NOT": _UNARY,
    "CEIL": _UNARY,
    "CLZ": _UNARY,
    "COS": _UNARY,
    "EXP": _UNARY,
    "FLOOR": _UNARY,
    "LOG": _UNARY,
    "LOGICAL_NOT": _UNARY,
    "NEGATE": Signature(("input1", "input1_zp", "output_zp")),
    "RECIPROCAL": _UNARY,
    "RSQRT": _UNARY,
    "SIN": _UNARY,
    "SELECT": Signature(("input1", "input2", "input3")),
    "EQUAL": _BINARY,
    "GREATER": _BINARY,
    "GREATER_EQUAL": _BINARY,
    "REDUCE_ALL": _REDUCE,
    "REDUCE_ANY": _REDUCE,
    "REDUCE_MAX": _REDUCE_NAN,
    "REDUCE_MIN": _REDUCE_NAN,
    "REDUCE_PRODUCT": _REDUCE,
    "REDUCE_SUM": _REDUCE,
}

_RESCALE_ATTRS = (
    ("scale32", Field.BOOL),
    ("rounding_mode", Field.ROUNDING),
    ("per_channel", Field.BOOL),
    ("input_unsigned", Field.BOOL),
    ("output_unsigned", Field.BOOL),
)

_DATA: dict[str, Signature] = {
    "CONCAT": Signature(("input1",), (_AXIS,), variadic=True),
    "PAD": Signature(("input1", "padding", "pad_const")),
    "RESHAPE": Signature(("input1", "shape")),
    "REVERSE": Signature(("input1",), (_AXIS,)),
    "SLICE": Signature(("input1", "start", "size")),
    "TILE": Signature(("input1", "multiples")),
    "TRANSPOSE": Signature(("input1",), (("perms", Field.INTS),)),
    "GATHER": Signature(("values", "indices")),
    "SCATTER": Signature(("values_in", "indices", "input")),
    "RESIZE": Signature(("input", "scale", "offset", "border"), (("mode", Field.RESIZE),)),
    "CAST": Signature(("input",), hidden=("out_type",)),
    "RESCALE": Signature(
        ("input", "multiplier", "shift", "input_zp", "output_zp"), _RESCALE_ATTRS, hidden=("out_type",)
    ),
    "CONST": Signature(hidden=("type", "data")),
    "CONST_SHAPE": Signature(hidden=("type", "data")),
    "IDENTITY": _UNARY,
}

_CONTROL: dict[str, Signature] = {
    "CUSTOM": Signature(
        ("input_list",),
        (("operator_name", Field.TEXT), ("domain_name", Field.TEXT), ("implementation_attrs", Field.BYTES)),
        hidden=("types",),
        variadic=True,
    ),
    "COND_IF": Signature(
        ("condition", "input_list"), (("then_graph", Field.GRAPH), ("else_graph", Field.GRAPH)), variadic=True
    ),
    "WHILE_LOOP": Signature(("input_list",), (("cond_graph", Field.GRAPH), ("body_graph", Field.GRAPH)), variadic=True),
    "VARIABLE": Signature(hidden=("name", "type", "data")),
    "VARIABLE_WRITE": Signature(("input1",), hidden=("name",)),
    "VARIABLE_READ": Signature(hidden=("name", "type")),
}

#: Every operator of TOSA 1.0. A variadic op's last operand stands for zero or more values.
SIGNATURES: Mapping[str, Signature] = MappingProxyType(_TENSOR | _ELEMENTWISE | _DATA | _CONTROL)
