"""Rules of the operators that move, convert and hold data, and of control flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tosaic.core.errors import Invalid
from tosaic.ir.graph import NUMPY, Array, DType, Graph, Type, Value
from tosaic.ir.rule import (
    Attrs,
    Rule,
    count_windows,
    get_axis,
    get_bool,
    get_bytes,
    get_choice,
    get_data,
    get_dtype,
    get_graph,
    get_ints,
    get_numbers,
    get_shape,
    get_text,
    get_type,
    get_types,
    need_dtype,
    need_rank,
    need_type,
)

ROUNDING_MODES = ("SINGLE_ROUND", "INEXACT_ROUND", "DOUBLE_ROUND")
RESIZE_MODES = ("NEAREST", "BILINEAR")
_BILINEAR = {DType.I8: DType.I32, DType.I16: DType.I48}
#: TOSA leaves -8 out of int4 so that weights are symmetric.
_LIMITS = {DType.I4: 7, DType.I48: (1 << 47) - 1}


def _concat(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    if not inputs:
        raise Invalid("needs at least one input")
    first = inputs[0]
    axis = get_axis(attrs, first.rank)
    for x in inputs[1:]:
        need_dtype(x, first.dtype, "every input")
        if x.shape[:axis] != first.shape[:axis] or x.shape[axis + 1 :] != first.shape[axis + 1 :]:
            raise Invalid(f"{x.type} and {first.type} differ outside axis {axis}")
    total = sum(x.shape[axis] for x in inputs)
    return (Type(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :])),)


def _pad(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, padding, pad_const = inputs
    if x.rank < 1:
        raise Invalid("input1 must have at least one dimension")
    need_type(pad_const, Type(x.dtype, (1,)), "pad_const")
    pads = get_shape(padding, 2 * x.rank, "padding")
    if min(pads) < 0:
        raise Invalid(f"padding {pads} has a negative number")
    return (Type(x.dtype, tuple(pads[2 * i] + d + pads[2 * i + 1] for i, d in enumerate(x.shape))),)


def _reshape(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, shape = inputs
    new = get_shape(shape, None, "shape")
    if min(new, default=1) < 1 or prod(new) != x.type.size:
        raise Invalid(f"{x.type} cannot take the shape {list(new)}")
    return (Type(x.dtype, new),)


def _reverse(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    (x,) = inputs
    get_axis(attrs, x.rank)
    return (x.type,)


def _slice(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, start, size = inputs
    if x.rank < 1:
        raise Invalid("input1 must have at least one dimension")
    starts, sizes = get_shape(start, x.rank, "start"), get_shape(size, x.rank, "size")
    for i, extent in enumerate(x.shape):
        if starts[i] < 0 or sizes[i] < 1 or starts[i] + sizes[i] > extent:
            raise Invalid(f"start {starts} size {sizes} is outside {x.type}")
    return (Type(x.dtype, sizes),)


def _tile(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, multiples = inputs
    if x.rank < 1:
        raise Invalid("input1 must have at least one dimension")
    counts = get_shape(multiples, x.rank, "multiples")
    if min(counts) < 1:
        raise Invalid(f"multiples {counts} must be at least 1")
    return (Type(x.dtype, tuple(d * n for d, n in zip(x.shape, counts, strict=True))),)


def _transpose(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    (x,) = inputs
    perms = get_ints(attrs, "perms", x.rank)
    if x.rank < 1 or sorted(perms) != list(range(x.rank)):
        raise Invalid(f"perms {perms} is no permutation of the {x.rank} dimensions")
    return (Type(x.dtype, tuple(x.shape[p] for p in perms)),)


def _need_indices(indices: Value, values: Value) -> None:
    need_rank(values, 3, "values")
    need_rank(indices, 2, "indices")
    need_dtype(indices, DType.I32, "indices")
    if indices.shape[0] != values.shape[0]:
        raise Invalid(f"batches differ: {values.type} and {indices.type}")
    data = get_numbers(indices)
    if data is not None and bool(((data < 0) | (data >= values.shape[1])).any()):
        raise Invalid(f"an index is outside 0..{values.shape[1] - 1}")


def _gather(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    values, indices = inputs
    _need_indices(indices, values)
    return (Type(values.dtype, (values.shape[0], indices.shape[1], values.shape[2])),)


def _scatter(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    values, indices, source = inputs
    _need_indices(indices, values)
    need_type(source, Type(values.dtype, (values.shape[0], indices.shape[1], values.shape[2])), "input")
    rows = get_numbers(indices)
    if rows is not None:
        ordered = np.sort(rows, axis=1)
        if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
            raise Invalid("an index occurs twice in one batch")
    return (values.type,)


def _resize(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, scale, offset, border = inputs
    need_rank(x, 4, "input")
    mode = get_choice(attrs, "mode", RESIZE_MODES)
    scales = get_shape(scale, 4, "scale")
    offsets, borders = get_shape(offset, 2, "offset"), get_shape(border, 2, "border")
    sizes: list[int] = []
    for i, name in enumerate(("height", "width")):
        n, d = scales[2 * i], scales[2 * i + 1]
        if n <= 0 or d <= 0 or n > 1 << 11 or d >= 16 * n:
            raise Invalid(f"the {name} scale {n}/{d} is outside what RESIZE can do")
        if not -n <= offsets[i] < 16 * n or not -16 * n <= borders[i] < n:
            raise Invalid(f"the {name} offset {offsets[i]} or border {borders[i]} is out of range for scale {n}/{d}")
        sizes.append(count_windows((x.shape[1 + i] - 1) * n - offsets[i] + borders[i], d, name))
    if max(*sizes, x.shape[1], x.shape[2]) >= 16384:
        raise Invalid(f"{x.type} to {sizes[0]}x{sizes[1]}: sizes must stay below 16384")
    dtype = _BILINEAR.get(x.dtype, x.dtype) if mode == "BILINEAR" else x.dtype
    return (Type(dtype, (x.shape[0], sizes[0], sizes[1], x.shape[3])),)


def _cast(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    return (Type(get_dtype(attrs, "out_type"), inputs[0].shape),)


def _need_rescale_zero_point(value: Value, dtype: DType, unsigned: bool, name: str) -> None:
    need_type(value, Type(dtype, (1,)), name)
    data = get_numbers(value)
    if data is None or dtype is DType.I8:
        return
    number = int(data[0])
    if dtype is DType.I16 and unsigned:
        if number & 0xFFFF not in (0, 32768):
            raise Invalid(f"{name} of an unsigned i16 must be 0 or 32768, not {number & 0xFFFF}")
    elif number:
        raise Invalid(f"{name} must be 0 for {dtype.value}")


def _need_rescale_flags(source: DType, result: DType, attrs: Attrs) -> None:
    from_unsigned, to_unsigned = get_bool(attrs, "input_unsigned"), get_bool(attrs, "output_unsigned")
    rounding = get_choice(attrs, "rounding_mode", ROUNDING_MODES)
    scale32 = get_bool(attrs, "scale32")
    if scale32 and source is DType.I48:
        raise Invalid("scale32 cannot be used with an i48 input")
    if not scale32 and rounding == "DOUBLE_ROUND":
        raise Invalid("DOUBLE_ROUND needs scale32")
    if from_unsigned and to_unsigned:
        raise Invalid("input and output cannot both be unsigned")
    if from_unsigned and (source in (DType.I32, DType.I48) or result is DType.I32):
        raise Invalid(f"an unsigned input cannot go from {source.value} to {result.value}")
    if to_unsigned and (source in (DType.I32, DType.I48) or result is DType.I32):
        raise Invalid(f"an unsigned output cannot go from {source.value} to {result.value}")


def _rescale(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    x, multiplier, shift, input_zp, output_zp = inputs
    result = get_dtype(attrs, "out_type")
    _need_rescale_flags(x.dtype, result, attrs)
    per_channel = get_bool(attrs, "per_channel")
    if per_channel and x.rank < 1:
        raise Invalid("per_channel needs an input with at least one dimension")
    count = x.shape[-1] if per_channel else 1
    need_type(multiplier, Type(DType.I32 if get_bool(attrs, "scale32") else DType.I16, (count,)), "multiplier")
    need_type(shift, Type(DType.I8, (count,)), "shift")
    multipliers, shifts = get_numbers(multiplier), get_numbers(shift)
    if multipliers is not None and bool((multipliers < 0).any()):
        raise Invalid("a multiplier is negative")
    if shifts is not None and bool(((shifts < 2) | (shifts > 62)).any()):
        raise Invalid("a shift is outside 2..62")
    _need_rescale_zero_point(input_zp, x.dtype, get_bool(attrs, "input_unsigned"), "input_zp")
    _need_rescale_zero_point(output_zp, result, get_bool(attrs, "output_unsigned"), "output_zp")
    return (Type(result, x.shape),)


def _need_data(data: Array | None, expected: Type) -> None:
    if data is None:
        return
    if data.shape != expected.shape or data.dtype != NUMPY[expected.dtype]:
        raise Invalid(f"data is {data.dtype}{list(data.shape)}, which does not hold {expected}")
    limit = _LIMITS.get(expected.dtype)
    if limit is not None and bool((np.abs(data.astype(np.int64)) > limit).any()):
        raise Invalid(f"a number is outside the range of {expected.dtype.value}")


def _const(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    declared = get_type(attrs, "type")
    if declared.dtype is DType.SHAPE:
        raise Invalid("a shape is held by CONST_SHAPE")
    _need_data(get_data(attrs, "data"), declared)
    return (declared,)


def _const_shape(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    declared = get_type(attrs, "type")
    if declared.dtype is not DType.SHAPE or declared.rank != 1:
        raise Invalid(f"must be a list of shape numbers, not {declared}")
    _need_data(get_data(attrs, "data"), declared)
    return (declared,)


def _identity(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    return (inputs[0].type,)


def _custom(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    get_text(attrs, "operator_name")
    get_text(attrs, "domain_name")
    get_bytes(attrs, "implementation_attrs")
    return get_types(attrs, "types")


def _need_types(found: Sequence[Value], expected: Sequence[Type], name: str) -> None:
    if [v.type for v in found] != list(expected):
        have, want = ", ".join(str(v.type) for v in found), ", ".join(map(str, expected))
        raise Invalid(f"{name} are ({have}), expected ({want})")


def _types(values: Sequence[Value]) -> tuple[Type, ...]:
    return tuple(v.type for v in values)


def _cond_if(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    condition, passed = inputs[0], _types(inputs[1:])
    need_dtype(condition, DType.BOOL, "condition")
    if condition.type.size != 1:
        raise Invalid(f"condition must hold one number, not {condition.type}")
    yes, no = get_graph(attrs, "then_graph"), get_graph(attrs, "else_graph")
    _need_types(yes.inputs, passed, "inputs of then_graph")
    _need_types(no.inputs, passed, "inputs of else_graph")
    _need_types(no.outputs, _types(yes.outputs), "outputs of else_graph")
    return _types(yes.outputs)


def _while_loop(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    carried = _types(inputs)
    test: Graph = get_graph(attrs, "cond_graph")
    body: Graph = get_graph(attrs, "body_graph")
    _need_types(test.inputs, carried, "inputs of cond_graph")
    _need_types(body.inputs, carried, "inputs of body_graph")
    _need_types(body.outputs, carried, "outputs of body_graph")
    if len(test.outputs) != 1 or test.outputs[0].dtype is not DType.BOOL or test.outputs[0].type.size != 1:
        raise Invalid("cond_graph must give one bool")
    return carried


def _variable(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    if not get_text(attrs, "name"):
        raise Invalid("a variable needs a name")
    _need_data(get_data(attrs, "data"), get_type(attrs, "type"))
    return ()


def _variable_write(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    get_text(attrs, "name")
    return ()


def _variable_read(inputs: Sequence[Value], attrs: Attrs) -> tuple[Type, ...]:
    get_text(attrs, "name")
    return (get_type(attrs, "type"),)


DATA_RULES: Mapping[str, Rule] = {
    "CONCAT": _concat,
    "PAD": _pad,
    "RESHAPE": _reshape,
    "REVERSE": _reverse,
    "SLICE": _slice,
    "TILE": _tile,
    "TRANSPOSE": _transpose,
    "GATHER": _gather,
    "SCATTER": _scatter,
    "RESIZE": _resize,
    "CAST": _cast,
    "RESCALE": _rescale,
    "CONST": _const,
    "CONST_SHAPE": _const_shape,
    "IDENTITY": _identity,
    "CUSTOM": _custom,
    "COND_IF": _cond_if,
    "WHILE_LOOP": _while_loop,
    "VARIABLE": _variable,
    "VARIABLE_WRITE": _variable_write,
    "VARIABLE_READ": _variable_read,
}
