"""The operators that move and convert data: definitions and builders.

Shapes, paddings and scales are plain tuples in the builders, which convert them to CONST_SHAPE operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tosaic.core.errors import Invalid
from tosaic.ir.build import Builder
from tosaic.ir.definition import (
    ANY_FLOAT,
    AXIS,
    Attribute,
    Bound,
    Field,
    Limit,
    OpDef,
    allow,
    constant,
    shape,
    tensor,
    tensor_list,
)
from tosaic.ir.graph import DType, Op, Type, Value
from tosaic.ir.infer import (
    count_windows,
    get_axis,
    get_numbers,
    get_shape,
    keep_type,
    need_dtype,
    need_rank,
    need_type,
)
from tosaic.ir.ops_const import HOLDS

_MOVES = allow("in", "bool: INT | FP", "i8, i16, i32: INT", *ANY_FLOAT)


def _infer_concat(op: Op) -> Type:
    if not op.inputs:
        raise Invalid("needs at least one input")
    first = op.inputs[0]
    axis = get_axis(op, first.rank)
    for x in op.inputs[1:]:
        need_dtype(x, first.dtype, "every input")
        if x.shape[:axis] != first.shape[:axis] or x.shape[axis + 1 :] != first.shape[axis + 1 :]:
            raise Invalid(f"{x.type} and {first.type} differ outside axis {axis}")
    total = sum(x.shape[axis] for x in op.inputs)
    return Type(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))


CONCAT = OpDef(
    "CONCAT",
    (tensor_list("input1"),),
    (AXIS,),
    infer=_infer_concat,
    legal=allow("in", "bool: INT | FP", "i8, i32: INT", "i16: int16", *ANY_FLOAT),
)


def concat(b: Builder, inputs: Sequence[Value], axis: int) -> Value:
    return b.emit(CONCAT, inputs, axis=axis)[0]


def _need_dimensions(op: Op) -> Value:
    x = op.operand("input1")
    if x.rank < 1:
        raise Invalid("input1 must have at least one dimension")
    return x


def _infer_pad(op: Op) -> Type:
    x = _need_dimensions(op)
    need_type(op, "pad_const", Type(x.dtype, (1,)))
    pads = get_shape(op, "padding", 2 * x.rank)
    if min(pads) < 0:
        raise Invalid(f"padding {pads} has a negative number")
    return Type(x.dtype, tuple(pads[2 * i] + d + pads[2 * i + 1] for i, d in enumerate(x.shape)))


PAD = OpDef("PAD", (tensor("input1"), shape("padding"), constant("pad_const")), infer=_infer_pad, legal=_MOVES)


def pad(b: Builder, x: Value, padding: Sequence[int], value: float = 0) -> Value:
    """Pad before and after each dimension in turn: (d0_before, d0_after, d1_before, ...)."""
    number = np.array([value], dtype=np.float64 if x.dtype.is_float else np.int64)
    return b.emit(PAD, (x, b.const_shape(padding), b.const(number, x.dtype)))[0]


def _infer_reshape(op: Op) -> Type:
    x, new = op.operand("input1"), get_shape(op, "shape")
    if min(new, default=1) < 1 or prod(new) != x.type.size:
        raise Invalid(f"{x.type} cannot take the shape {list(new)}")
    return Type(x.dtype, new)


RESHAPE = OpDef("RESHAPE", (tensor("input1"), shape("shape")), infer=_infer_reshape, legal=_MOVES)


def reshape(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    return b.emit(RESHAPE, (x, b.const_shape(shape)))[0]


def _infer_reverse(op: Op) -> Type:
    x = op.operand("input1")
    get_axis(op, x.rank)
    return x.type


REVERSE = OpDef("REVERSE", (tensor("input1"),), (AXIS,), infer=_infer_reverse, legal=_MOVES)


def reverse(b: Builder, x: Value, axis: int) -> Value:
    return b.emit(REVERSE, (x,), axis=axis)[0]


def _infer_slice(op: Op) -> Type:
    x = _need_dimensions(op)
    starts, sizes = get_shape(op, "start", x.rank), get_shape(op, "size", x.rank)
    for i, extent in enumerate(x.shape):
        if starts[i] < 0 or sizes[i] < 1 or starts[i] + sizes[i] > extent:
            raise Invalid(f"start {starts} size {sizes} is outside {x.type}")
    return Type(x.dtype, sizes)


SLICE = OpDef("SLICE", (tensor("input1"), shape("start"), shape("size")), infer=_infer_slice, legal=_MOVES)


def slice(b: Builder, x: Value, start: Sequence[int], size: Sequence[int]) -> Value:
    return b.emit(SLICE, (x, b.const_shape(start), b.const_shape(size)))[0]


def _infer_tile(op: Op) -> Type:
    x = _need_dimensions(op)
    counts = get_shape(op, "multiples", x.rank)
    if min(counts) < 1:
        raise Invalid(f"multiples {counts} must be at least 1")
    return Type(x.dtype, tuple(d * n for d, n in zip(x.shape, counts, strict=True)))


TILE = OpDef("TILE", (tensor("input1"), shape("multiples")), infer=_infer_tile, legal=_MOVES)


def tile(b: Builder, x: Value, multiples: Sequence[int]) -> Value:
    return b.emit(TILE, (x, b.const_shape(multiples)))[0]


def _infer_transpose(op: Op) -> Type:
    x, perms = op.operand("input1"), op.get_ints("perms")
    if x.rank < 1 or sorted(perms) != list(range(x.rank)):
        raise Invalid(f"perms {perms} is not a permutation of the {x.rank} dimensions")
    return Type(x.dtype, tuple(x.shape[p] for p in perms))


TRANSPOSE = OpDef(
    "TRANSPOSE", (tensor("input1"),), (Attribute("perms", Field.INTS),), infer=_infer_transpose, legal=_MOVES
)


def transpose(b: Builder, x: Value, perms: Sequence[int]) -> Value:
    """Permute the dimensions: dimension i of the result is dimension perms[i] of the input."""
    return b.emit(TRANSPOSE, (x,), perms=tuple(perms))[0]


IDENTITY = OpDef("IDENTITY", (tensor("input1"),), infer=keep_type, legal=allow("in", *HOLDS))


def identity(b: Builder, x: Value) -> Value:
    return b.emit(IDENTITY, (x,))[0]


# Rows by their index.

_GATHERS = allow("in", "i8, i16, i32: INT", *ANY_FLOAT)


def _infer_rows(op: Op, values: Value) -> Type:
    """Check indices [N,W] into values [N,K,C], and return the type of the rows that they select."""
    indices = need_rank(op, "indices", 2)
    need_dtype(indices, DType.I32, "indices")
    if indices.shape[0] != values.shape[0]:
        raise Invalid(f"batches differ: {values.type} and {indices.type}")
    data = get_numbers(indices)
    if data is not None and bool(((data < 0) | (data >= values.shape[1])).any()):
        raise Invalid(f"an index is outside 0..{values.shape[1] - 1}")
    return Type(values.dtype, (values.shape[0], indices.shape[1], values.shape[2]))


def _infer_gather(op: Op) -> Type:
    return _infer_rows(op, need_rank(op, "values", 3))


GATHER = OpDef("GATHER", (tensor("values"), tensor("indices")), infer=_infer_gather, legal=_GATHERS)


def gather(b: Builder, values: Value, indices: Value) -> Value:
    """Read rows: values [N,K,C] and indices i32 [N,W] give [N,W,C]."""
    return b.emit(GATHER, (values, indices))[0]


def _infer_scatter(op: Op) -> Type:
    values = need_rank(op, "values_in", 3)
    need_type(op, "input", _infer_rows(op, values))
    rows = get_numbers(op.operand("indices"))
    if rows is not None:
        ordered = np.sort(rows, axis=1)
        if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
            raise Invalid("an index occurs twice in one batch")
    return values.type


SCATTER = OpDef(
    "SCATTER", (tensor("values_in"), tensor("indices"), tensor("input")), infer=_infer_scatter, legal=_GATHERS
)


def scatter(b: Builder, values: Value, indices: Value, rows: Value) -> Value:
    """Replace rows: values [N,K,C] with the rows at indices i32 [N,W] replaced from [N,W,C]."""
    return b.emit(SCATTER, (values, indices, rows))[0]


# Changes of size, dtype and scale.


def _infer_resize(op: Op) -> Type:
    x = need_rank(op, "input", 4)
    scales = get_shape(op, "scale", 4)
    offsets, edges = get_shape(op, "offset", 2), get_shape(op, "border", 2)
    sizes: list[int] = []
    for i, name in enumerate(("height", "width")):
        n, d = scales[2 * i], scales[2 * i + 1]
        if n <= 0 or d <= 0 or n > 1 << 11 or d >= 16 * n:
            raise Invalid(f"the {name} scale {n}/{d} is outside what RESIZE can do")
        if not -n <= offsets[i] < 16 * n or not -16 * n <= edges[i] < n:
            raise Invalid(f"the {name} offset {offsets[i]} or border {edges[i]} is out of range for scale {n}/{d}")
        sizes.append(count_windows((x.shape[1 + i] - 1) * n - offsets[i] + edges[i], d, name))
    if max(*sizes, x.shape[1], x.shape[2]) >= 16384:
        raise Invalid(f"{x.type} to {sizes[0]}x{sizes[1]}: sizes must stay below 16384")
    sums = {DType.I8: DType.I32, DType.I16: DType.I48} if op.get("mode", str) == "BILINEAR" else {}
    return Type(sums.get(x.dtype, x.dtype), (x.shape[0], sizes[0], sizes[1], x.shape[3]))


def _get_scales(op: Op) -> tuple[int, ...]:
    y_n, y_d, x_n, x_d = get_shape(op, "scale", 4)
    # The level bounds the quotient: rounding up makes the comparison exact in integers.
    return (-(-y_n // y_d), -(-x_n // x_d))


RESIZE = OpDef(
    "RESIZE",
    (tensor("input"), shape("scale"), shape("offset"), shape("border")),
    (Attribute("mode", Field.RESIZE_MODE),),
    infer=_infer_resize,
    legal=allow("in out", "i8 i32, i8 i8: INT", "i16 i48, i16 i16: int16", "f16 f16, f32 f32: FP", "bf16 bf16: bf16"),
    bounds=(Bound("scale", _get_scales, Limit.SCALE),),
)


def resize(
    b: Builder,
    x: Value,
    *,
    scale: tuple[int, int, int, int],
    offset: tuple[int, int],
    border: tuple[int, int],
    mode: str,
) -> Value:
    """Resize by (y_n, y_d, x_n, x_d). BILINEAR on i8 gives i32, on i16 gives i48, both unnormalized."""
    operands = (x, b.const_shape(scale), b.const_shape(offset), b.const_shape(border))
    return b.emit(RESIZE, operands, mode=mode)[0]


_OUT_TYPE = Attribute("out_type", Field.OUT_DTYPE)


def _infer_cast(op: Op) -> Type:
    return Type(op.get("out_type", DType), op.operand("input").shape)


CAST = OpDef(
    "CAST",
    (tensor("input"),),
    (_OUT_TYPE,),
    infer=_infer_cast,
    legal=allow(
        "in out",
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
)


def cast(b: Builder, x: Value, dtype: DType) -> Value:
    return b.emit(CAST, (x,), out_type=dtype)[0]


def _need_rescale_zero_point(op: Op, name: str, dtype: DType, unsigned: bool) -> None:
    data = get_numbers(need_type(op, name, Type(dtype, (1,))))
    if data is None or dtype is DType.I8:
        return
    number = int(data[0])
    if dtype is DType.I16 and unsigned:
        if number & 0xFFFF not in (0, 32768):
            raise Invalid(f"{name} of an unsigned i16 must be 0 or 32768, not {number & 0xFFFF}")
    elif number:
        raise Invalid(f"{name} must be 0 for {dtype.value}")


def _need_rescale_flags(op: Op, source: DType, result: DType) -> None:
    from_unsigned, to_unsigned = op.get("input_unsigned", bool), op.get("output_unsigned", bool)
    scale32 = op.get("scale32", bool)
    if scale32 and source is DType.I48:
        raise Invalid("scale32 cannot be used with an i48 input")
    if not scale32 and op.get("rounding_mode", str) == "DOUBLE_ROUND":
        raise Invalid("DOUBLE_ROUND needs scale32")
    if from_unsigned and to_unsigned:
        raise Invalid("input and output cannot both be unsigned")
    if (from_unsigned or to_unsigned) and (source in (DType.I32, DType.I48) or result is DType.I32):
        unsigned = "input" if from_unsigned else "output"
        raise Invalid(f"an unsigned {unsigned} cannot go from {source.value} to {result.value}")


def _infer_rescale(op: Op) -> Type:
    x, result = op.operand("input"), op.get("out_type", DType)
    _need_rescale_flags(op, x.dtype, result)
    per_channel = op.get("per_channel", bool)
    if per_channel and x.rank < 1:
        raise Invalid("per_channel needs an input with at least one dimension")
    count = x.shape[-1] if per_channel else 1
    scale_type = Type(DType.I32 if op.get("scale32", bool) else DType.I16, (count,))
    multipliers = get_numbers(need_type(op, "multiplier", scale_type))
    shifts = get_numbers(need_type(op, "shift", Type(DType.I8, (count,))))
    if multipliers is not None and bool((multipliers < 0).any()):
        raise Invalid("a multiplier is negative")
    if shifts is not None and bool(((shifts < 2) | (shifts > 62)).any()):
        raise Invalid("a shift is outside 2..62")
    _need_rescale_zero_point(op, "input_zp", x.dtype, op.get("input_unsigned", bool))
    _need_rescale_zero_point(op, "output_zp", result, op.get("output_unsigned", bool))
    return Type(result, x.shape)


RESCALE = OpDef(
    "RESCALE",
    (tensor("input"), constant("multiplier"), constant("shift"), constant("input_zp"), constant("output_zp")),
    (
        Attribute("scale32", Field.BOOL),
        Attribute(
            "rounding_mode",
            Field.ROUNDING_MODE,
            needs={"DOUBLE_ROUND": "doubleround", "INEXACT_ROUND": "inexactround"},
        ),
        Attribute("per_channel", Field.BOOL),
        Attribute("input_unsigned", Field.BOOL),
        Attribute("output_unsigned", Field.BOOL),
        _OUT_TYPE,
    ),
    infer=_infer_rescale,
    legal=allow(
        "in out",
        "i8 i8, i8 i16, i8 i32, i16 i8, i16 i16, i16 i32, i32 i8, i32 i16, i32 i32: INT",
        "i48 i8, i48 i16, i48 i32: int16",
    ),
)


def rescale(
    b: Builder,
    x: Value,
    dtype: DType,
    *,
    multiplier: Sequence[int],
    shift: Sequence[int],
    in_zp: int = 0,
    out_zp: int = 0,
    scale32: bool = True,
    rounding: str = "SINGLE_ROUND",
    per_channel: bool = False,
    input_unsigned: bool = False,
    output_unsigned: bool = False,
) -> Value:
    """Compute (x - in_zp) * multiplier / 2**shift + out_zp, saturated to `dtype`."""
    operands = (
        x,
        b.const(np.array(multiplier, dtype=np.int64), DType.I32 if scale32 else DType.I16),
        b.const(np.array(shift, dtype=np.int64), DType.I8),
        b.zero_point(in_zp, x.dtype, unsigned=input_unsigned),
        b.zero_point(out_zp, dtype, unsigned=output_unsigned),
    )
    return b.emit(
        RESCALE,
        operands,
        scale32=scale32,
        rounding_mode=rounding,
        per_channel=per_channel,
        input_unsigned=input_unsigned,
        output_unsigned=output_unsigned,
        out_type=dtype,
    )[0]
