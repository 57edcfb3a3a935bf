"""Elementwise operations on one or two inputs, with broadcasting and a scale for each input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from tosaic.npu.errors import Fault, UnknownField
from tosaic.npu.memory import Memory, Numbers
from tosaic.npu.operation import Element, Op, Shape, read_element, read_map
from tosaic.npu.output import Output, read_output, read_rounding, round_shift

_UNARY = frozenset({"ABS", "CLZ", "NOT"})
#: These need more than their two operands.
_SPECIAL = frozenset({"ADD", "SUB", "SHR", "SHL", "LSR", "DIV"})
#: U55 shifts the operand that it does not scale left by this many bits, by element size in bits.
_LEFT_SHIFTS = {8: 19, 16: 14}


def run_elementwise(op: Op, memory: Memory) -> None:
    """Execute ELEMENTWISE."""
    mode = op.mode
    if mode not in _UNARY and mode not in _BINARY and mode not in _SPECIAL:
        raise UnknownField("elementwise_mode", mode, offset=op.offset, why="it is not supported")
    output = read_output(op, memory, None)
    for first, rows in output.pieces():
        a = _load(op, memory, output, "IFM", first, rows)
        if mode in _UNARY:
            values = _apply_unary(op, a, mode)
        else:
            b = _load(op, memory, output, "IFM2", first, rows)
            values = _apply_binary(op, a, b, mode)
        shape = (rows, output.shape.width, output.shape.depth)
        output.finish(memory, np.broadcast_to(values, shape), first)


def _load(op: Op, memory: Memory, output: Output, name: str, first: int, rows: int) -> Numbers:
    """Load an input minus its zero point, with size 1 where it is broadcast."""
    broadcast = _read_broadcast(op, name)
    if "SCALAR" in broadcast:
        element = read_element(op, name)
        return np.array([[[_read_scalar(op, element) - element.zero_point]]], np.int64)
    source = read_map(op, name)
    shape = Shape(
        1 if "H" in broadcast else rows,
        1 if "W" in broadcast else output.shape.width,
        1 if "C" in broadcast else output.shape.depth,
    )
    values = memory.load(source, shape, 0 if "H" in broadcast else first).astype(np.int64)
    if source.zero_point:
        values -= source.zero_point
    return values


def _read_broadcast(op: Op, name: str) -> frozenset[str]:
    """Return the axes along which an input is repeated, or SCALAR."""
    if op.family.has_u85_units:
        mode = op.name(f"{name}_BROADCAST")
        return frozenset({mode} if mode == "SCALAR" else () if mode == "NONE" else mode)
    if name == "IFM":
        return frozenset()
    if op.get("IFM2_BROADCAST", "broadcast_constant"):
        return frozenset({"SCALAR"})
    return frozenset(axis for axis in "HWC" if op.get("IFM2_BROADCAST", f"broadcast_{axis.lower()}"))


def _read_scalar(op: Op, element: Element) -> int:
    if op.family.has_u85_units:
        return op.get("OP_SCALAR")
    value = op.get("IFM2_SCALAR")
    return value - (1 << 16) if element.signed and value >> 15 else value


def _apply_unary(op: Op, a: Numbers, mode: str) -> Numbers:
    a = _scale_input(op, a, "IFM")
    match mode:
        case "ABS":
            return np.abs(a)
        case "NOT":
            return ~a
        case _:
            return _count_leading_zeros(a)


def _count_leading_zeros(a: Numbers) -> Numbers:
    """Count the leading zeros of 32-bit numbers; the float's exponent is exact because they have at most 32 bits."""
    _, exponent = np.frexp((a & 0xFFFF_FFFF).astype(np.float64))
    return 32 - exponent.astype(np.int64)


def _apply_binary(op: Op, a: Numbers, b: Numbers, mode: str) -> Numbers:
    if op.family.has_u85_units:
        a, b = _scale_input(op, a, "IFM"), _scale_input(op, b, "IFM2")
    else:
        if op.name("IFM2_BROADCAST", "operand_order") == "ORDER_A":
            a, b = b, a
        if mode in ("ADD", "SUB"):
            # Scales belong to the operands, not to the registers.
            a, b = _scale_pair(op, a, b)
    match mode:
        case "ADD":
            return a + b
        case "SUB":
            return a - b
        case "SHR" | "SHL" | "LSR":
            return _shift(op, a, b, mode)
        case "DIV":
            if not np.all(b):
                raise Fault("a number is divided by zero", offset=op.offset)
            return _divide(a, b)
        case _:
            return _BINARY[mode](a, b)


def _scale_input(op: Op, values: Numbers, name: str) -> Numbers:
    """Scale one input; on U85 each input has its own scale."""
    if not op.family.has_u85_units:
        return values
    factor, shift = op.get(f"{name}_SCALE", "scale"), op.get(f"{name}_SCALE", "shift")
    if op.get(f"{name}_SCALE", "dbl_rnd"):
        raise op.unknown(f"{name}_SCALE", "dbl_rnd")
    if factor == 1 and shift == 0:
        return values
    rounding = {"DOUBLE_SYMMETRIC": "double", "NATURAL": "natural"}[op.name(f"{name}_SCALE", "round_mode")]
    return round_shift(values * factor, np.array(shift), rounding)


def _scale_pair(op: Op, a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """Scale both inputs on U55: by 16-bit factors, or one with 32 bits and the other shifted to match."""
    mode = op.name("IFM_PRECISION", "scale_mode")
    bits = read_element(op, "IFM").bits
    factor, shift = op.get("OPA_SCALE", "scale"), op.get("OPA_SCALE", "shift")
    if mode == "OPA_OPB_16":
        return (a, b) if bits == 32 else (a * factor, b * op.get("OPB_SCALE"))
    if bits not in _LEFT_SHIFTS:
        raise op.unknown("IFM_PRECISION", "scale_mode", f"of {bits}-bit inputs")
    name = op.name("IFM_PRECISION", "round_mode")
    if name not in ("DBL", "NATURAL"):
        raise op.unknown("IFM_PRECISION", "round_mode")
    rounding = "double" if name == "DBL" else "natural"
    left = _LEFT_SHIFTS[bits]
    scaled, other = (a, b) if mode == "OPA_32" else (b, a)
    scaled = round_shift(scaled * factor, np.array(shift), rounding)
    other = other << left
    return (scaled, other) if mode == "OPA_32" else (other, scaled)


def _shift(op: Op, a: Numbers, b: Numbers, mode: str) -> Numbers:
    """Shift by 0 to 31 bits; in an arithmetic shift the output's rounding applies to the bits that are lost."""
    if b.min() < 0 or b.max() > 31:
        raise Fault("a number is shifted by less than 0 or more than 31", offset=op.offset)
    if mode == "SHL":
        return _wrap(a << b)
    if mode == "LSR":
        return _wrap((a & 0xFFFF_FFFF) >> b)
    return a >> b if read_rounding(op) == "floor" else (a + (1 << b >> 1)) >> b


def _divide(a: Numbers, b: Numbers) -> Numbers:
    """Divide, rounding towards zero."""
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _wrap(a: Numbers) -> Numbers:
    return a.astype(np.int32).astype(np.int64)


_BINARY: Mapping[str, Callable[[Numbers, Numbers], Numbers]] = MappingProxyType(
    {
        "MUL": lambda a, b: a * b,
        "MIN": np.minimum,
        "MAX": np.maximum,
        "CMP_EQ": lambda a, b: -(a == b).astype(np.int64),
        "CMP_NE": lambda a, b: -(a != b).astype(np.int64),
        "CMP_GE": lambda a, b: -(a >= b).astype(np.int64),
        "CMP_GT": lambda a, b: -(a > b).astype(np.int64),
        "AND": np.bitwise_and,
        "OR": np.bitwise_or,
        "XOR": np.bitwise_xor,
        "AND_NOT": lambda a, b: a & ~b,
    }
)
