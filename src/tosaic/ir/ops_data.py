"""Builders of the operators that move, convert and hold data, and of control flow.

Shapes, paddings and scales are plain tuples here; the CONST_SHAPE operands are made on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tosaic.ir.build import Builder
from tosaic.ir.encode import encode
from tosaic.ir.graph import Array, DType, Graph, Type, Value
from tosaic.ir.ops_tensor import zero_point


def concat(b: Builder, inputs: Sequence[Value], axis: int) -> Value:
    return b.emit("CONCAT", inputs, axis=axis)[0]


def pad(b: Builder, x: Value, padding: Sequence[int], value: float = 0) -> Value:
    """Padding is before and after for each dimension in turn: (d0_before, d0_after, d1_before, ...)."""
    number = np.array([value], dtype=np.float64 if x.dtype.is_float else np.int64)
    return b.emit("PAD", (x, b.const_shape(padding), b.const(number, x.dtype)))[0]


def reshape(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    return b.emit("RESHAPE", (x, b.const_shape(shape)))[0]


def reverse(b: Builder, x: Value, axis: int) -> Value:
    return b.emit("REVERSE", (x,), axis=axis)[0]


def slice(b: Builder, x: Value, start: Sequence[int], size: Sequence[int]) -> Value:
    return b.emit("SLICE", (x, b.const_shape(start), b.const_shape(size)))[0]


def tile(b: Builder, x: Value, multiples: Sequence[int]) -> Value:
    return b.emit("TILE", (x, b.const_shape(multiples)))[0]


def transpose(b: Builder, x: Value, perms: Sequence[int]) -> Value:
    """Dimension i of the result is dimension perms[i] of the input."""
    return b.emit("TRANSPOSE", (x,), perms=tuple(perms))[0]


def gather(b: Builder, values: Value, indices: Value) -> Value:
    """values [N,K,C] and indices i32 [N,W] give [N,W,C]."""
    return b.emit("GATHER", (values, indices))[0]


def scatter(b: Builder, values: Value, indices: Value, source: Value) -> Value:
    """values [N,K,C] with the rows named by indices [N,W] replaced from source [N,W,C]."""
    return b.emit("SCATTER", (values, indices, source))[0]


def resize(
    b: Builder,
    x: Value,
    *,
    scale: tuple[int, int, int, int],
    offset: tuple[int, int],
    border: tuple[int, int],
    mode: str,
) -> Value:
    """Scale is (y_n, y_d, x_n, x_d). BILINEAR on i8 gives i32, on i16 gives i48, both unnormalized."""
    operands = (x, b.const_shape(scale), b.const_shape(offset), b.const_shape(border))
    return b.emit("RESIZE", operands, mode=mode)[0]


def cast(b: Builder, x: Value, dtype: DType) -> Value:
    return b.emit("CAST", (x,), out_type=dtype)[0]


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
    """(x - in_zp) * multiplier / 2**shift + out_zp, saturated to `dtype`."""
    operands = (
        x,
        b.const(np.array(multiplier, dtype=np.int64), DType.I32 if scale32 else DType.I16),
        b.const(np.array(shift, dtype=np.int64), DType.I8),
        zero_point(b, in_zp, x.dtype, unsigned=input_unsigned),
        zero_point(b, out_zp, dtype, unsigned=output_unsigned),
    )
    return b.emit(
        "RESCALE",
        operands,
        scale32=scale32,
        rounding_mode=rounding,
        per_channel=per_channel,
        input_unsigned=input_unsigned,
        output_unsigned=output_unsigned,
        out_type=dtype,
    )[0]


def const(b: Builder, data: Array, dtype: DType) -> Value:
    return b.const(data, dtype)


def const_shape(b: Builder, values: Sequence[int]) -> Value:
    return b.const_shape(values)


def identity(b: Builder, x: Value) -> Value:
    return b.emit("IDENTITY", (x,))[0]


def custom(
    b: Builder,
    inputs: Sequence[Value],
    types: Sequence[Type],
    *,
    operator_name: str,
    domain_name: str,
    implementation_attrs: bytes = b"",
) -> tuple[Value, ...]:
    """An operator outside TOSA; the caller says the types of its outputs."""
    return b.emit(
        "CUSTOM",
        inputs,
        operator_name=operator_name,
        domain_name=domain_name,
        implementation_attrs=implementation_attrs,
        types=tuple(types),
    )


def cond_if(
    b: Builder, condition: Value, inputs: Sequence[Value], then_graph: Graph, else_graph: Graph
) -> tuple[Value, ...]:
    return b.emit("COND_IF", (condition, *inputs), then_graph=then_graph, else_graph=else_graph)


def while_loop(b: Builder, inputs: Sequence[Value], cond_graph: Graph, body_graph: Graph) -> tuple[Value, ...]:
    return b.emit("WHILE_LOOP", inputs, cond_graph=cond_graph, body_graph=body_graph)


def variable(b: Builder, name: str, type: Type, initial: Array | None = None) -> None:
    """Declare a variable, before any op reads or writes it."""
    b.emit("VARIABLE", (), name=name, type=type, data=None if initial is None else encode(initial, type.dtype))


def variable_write(b: Builder, name: str, x: Value) -> None:
    b.emit("VARIABLE_WRITE", (x,), name=name)


def variable_read(b: Builder, name: str, type: Type) -> Value:
    return b.emit("VARIABLE_READ", (), name=name, type=type)[0]
