"""LEGAL: which dtypes each TOSA 1.0 operator takes, and the profile or extension that each combination needs.

A combination is written as the dtypes of the op's slots, and a slot is where a dtype stands: operand 0, 1, ...,
`out` (the first output) or `acc` (the acc_type attribute). Everything else about dtypes follows by the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Legal:
    """Slots, and for each combination of dtypes the alternatives of what a specification must have for it."""

    slots: tuple[str, ...]
    rows: Mapping[tuple[str, ...], tuple[frozenset[str], ...]]


def _table(slots: str, *lines: str) -> Legal:
    """Each line: combinations separated by commas, a colon, then alternatives by `|`, each of parts by `+`."""
    rows: dict[tuple[str, ...], tuple[frozenset[str], ...]] = {}
    for line in lines:
        combinations, _, needs = line.partition(":")
        alternatives = tuple(frozenset(part.strip().split("+")) for part in needs.split("|"))
        for combination in combinations.split(","):
            rows[tuple(combination.split())] = alternatives
    return Legal(tuple(slots.split()), rows)


_CONV = _table(
    "0 1 out acc",
    "i8 i8 i32 i32: INT",
    "i8 i4 i32 i32: int4",
    "i16 i8 i48 i48: int16",
    "f8e4m3 f8e4m3 f16 f16: fp8e4m3",
    "f8e5m2 f8e5m2 f16 f16: fp8e5m2",
    "f16 f16 f16 f16, f16 f16 f16 f32, f32 f32 f32 f32: FP",
    "bf16 bf16 bf16 f32: bf16",
)
_FLOAT = _table("0", "f16, f32: FP", "bf16: bf16")
_INTEGER = _table("0", "i8, i16, i32: INT")
_SHIFT = _table("0", "i8, i16, i32: INT | FP")
_LOGICAL = _table("0", "bool: INT | FP")
_ARITHMETIC = _table("0", "i32: INT | FP", "f16, f32: FP", "bf16: bf16")
_ORDER = _table("0", "i32: INT", "f16, f32: FP", "bf16: bf16")
_EXTREME = _table("0", "i8, i16, i32: INT", "f16, f32: FP", "bf16: bf16")
_POOL = ("f8e4m3: fp8e4m3", "f8e5m2: fp8e5m2", "f16, f32: FP", "bf16: bf16")
_FLOAT_MOVE = ("f8e4m3: fp8e4m3", "f8e5m2: fp8e5m2", "f16, f32: FP", "bf16: bf16")
_MOVE = _table("0", "bool: INT | FP", "i8, i16, i32: INT", *_FLOAT_MOVE)
_GATHER = _table("0", "i8, i16, i32: INT", *_FLOAT_MOVE)
_HOLD = ("bool, i8, i16, i32: INT | FP", "i4: int4", "i48: int16", *_FLOAT_MOVE)
_TRANSFORM = _table("0", "f32: fft")
_FREE = _table("", ": INT | FP")
_CONTROL = _table("", ": cf")


def _each(kinds: str, legal: Legal) -> Iterable[tuple[str, Legal]]:
    return ((kind, legal) for kind in kinds.split())


LEGAL: Mapping[str, Legal] = MappingProxyType(
    dict(
        [
            *_each("CONV2D CONV3D DEPTHWISE_CONV2D TRANSPOSE_CONV2D", _CONV),
            *_each("ERF SIGMOID TANH CEIL COS EXP FLOOR LOG RECIPROCAL RSQRT SIN POW REDUCE_PRODUCT", _FLOAT),
            *_each("ARITHMETIC_RIGHT_SHIFT BITWISE_AND BITWISE_OR BITWISE_XOR BITWISE_NOT", _INTEGER),
            *_each("LOGICAL_LEFT_SHIFT LOGICAL_RIGHT_SHIFT", _SHIFT),
            *_each("LOGICAL_AND LOGICAL_OR LOGICAL_XOR LOGICAL_NOT REDUCE_ALL REDUCE_ANY", _LOGICAL),
            *_each("ADD SUB", _ARITHMETIC),
            *_each("MAXIMUM MINIMUM ABS EQUAL GREATER GREATER_EQUAL REDUCE_SUM", _ORDER),
            *_each("NEGATE REDUCE_MAX REDUCE_MIN", _EXTREME),
            *_each("PAD RESHAPE REVERSE SLICE TILE TRANSPOSE", _MOVE),
            *_each("GATHER SCATTER", _GATHER),
            *_each("FFT2D RFFT2D", _TRANSFORM),
            *_each("COND_IF WHILE_LOOP", _CONTROL),
            *_each("CONST_SHAPE CUSTOM", _FREE),
        ]
    )
    | {
        "ARGMAX": _table("0", "i8: INT", "i16: int16", *_POOL),
        "MAX_POOL2D": _table("0", "i8: INT", "i16: int16", *_POOL),
        "AVG_POOL2D": _table(
            "0 acc",
            "i8 i32: INT",
            "i16 i32: int16",
            "f8e4m3 f16: fp8e4m3",
            "f8e5m2 f16: fp8e5m2",
            "f16 f16, f16 f32, f32 f32: FP",
            "bf16 f32: bf16",
        ),
        "MATMUL": _table(
            "0 out",
            "i8 i32: INT",
            "i16 i48: int16",
            "f8e4m3 f16: fp8e4m3",
            "f8e5m2 f16: fp8e5m2",
            "f16 f16, f16 f32, f32 f32: FP",
            "bf16 f32: bf16",
        ),
        "CLAMP": _table("0", "i8: INT", "i16: int16", "f16, f32: FP", "bf16: bf16"),
        "INTDIV": _table("0", "i32: INT | FP"),
        "CLZ": _table("0", "i32: INT"),
        "MUL": _table("0", "i8, i16: INT", "i32: INT | FP", "f16, f32: FP", "bf16: bf16"),
        "TABLE": _table("0", "i8: INT", "i16: int16"),
        "SELECT": _table("1", "bool: INT | FP", "i8, i16, i32: INT", "f16, f32: FP", "bf16: bf16"),
        "CONCAT": _table("0", "bool: INT | FP", "i8, i32: INT", "i16: int16", *_FLOAT_MOVE),
        "RESIZE": _table(
            "0 out", "i8 i32, i8 i8: INT", "i16 i48, i16 i16: int16", "f16 f16, f32 f32: FP", "bf16 bf16: bf16"
        ),
        "CAST": _table(
            "0 out",
            "bool i8, bool i16, bool i32, i8 bool, i16 bool, i32 bool: INT",
            "i8 i16, i8 i32, i16 i8, i16 i32, i32 i8, i32 i16: INT",
            "i8 f16, i8 f32, i16 f16, i16 f32, i32 f16, i32 f32: FP",
            "f16 i8, f16 i16, f16 i32, f32 i8, f32 i16, f32 i32, f16 f32, f32 f16: FP",
            "i8 bf16, i16 bf16, i32 bf16, bf16 i8, bf16 i16, bf16 i32, bf16 f32, f32 bf16: bf16",
            "f8e4m3 f16, f8e4m3 f32, f16 f8e4m3, f32 f8e4m3: fp8e4m3",
            "f8e5m2 f16, f8e5m2 f32, f16 f8e5m2, f32 f8e5m2: fp8e5m2",
            "f8e4m3 bf16, bf16 f8e4m3: bf16+fp8e4m3",
            "f8e5m2 bf16, bf16 f8e5m2: bf16+fp8e5m2",
        ),
        "RESCALE": _table(
            "0 out",
            "i8 i8, i8 i16, i8 i32, i16 i8, i16 i16, i16 i32, i32 i8, i32 i16, i32 i32: INT",
            "i48 i8, i48 i16, i48 i32: int16",
        ),
        "CONST": _table("out", *_HOLD),
        "IDENTITY": _table("0", *_HOLD),
        "VARIABLE": _table("type", "i8: INT+var", "f16, f32: FP+var"),
        "VARIABLE_WRITE": _table("0", "i8: INT+var", "f16, f32: FP+var"),
        "VARIABLE_READ": _table("out", "i8: INT+var", "f16, f32: FP+var"),
    }
)
