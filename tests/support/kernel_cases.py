"""Calls of the firmware's CPU kernels: for each operator, inputs of every type with values that go wrong first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from support.handmade import Spec
from support.kernel_calls import LAST, Case, Ordered

_ORDINARY = (0.0, 1, 0.5, 1.5, 2.5, 0.3, 0.999, 3.7, 1e-3, 1e-6, 20, 4.5, 7, 100.5, 1000.25, 1e10)
_EXTREME = (88, -104, 1e-40, 5e-324, 8388607.5, 3e38, -3e38, np.inf, -np.inf, np.nan)
FLOATS = np.array([*_ORDINARY, *(-x for x in _ORDINARY), *_EXTREME], np.float32)
#: Numbers of all sizes.
DENSE = np.concatenate(
    [np.linspace(-12, 12, 1501), *(sign * np.geomspace(1e-30, 1e30, 1001) for sign in (1, -1))], dtype=np.float32
)
_LIMITS = {name: np.iinfo(name) for name in ("int8", "uint8", "int16", "int32", "int64")}
INTS = {
    name: np.array([0, 1, 2, 3, 5, 7, 100, limit.max, limit.min, limit.max - 1, limit.min + 1], name)
    for name, limit in _LIMITS.items()
}
BOOLS = np.array([True, False, True])
SMALL = {name: np.array([0, 1, 2, 3, 7, 12, 100], name) for name in INTS}


def ramp(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Different numbers, also as bytes."""
    size = int(np.prod(shape))
    numbers = np.arange(size) % 120 - (0 if dtype in ("uint8", "bool") else size // 2 % 60)
    return numbers.astype(dtype).reshape(shape)


def pairs(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Every number with every other one, by broadcasting."""
    return values.reshape(-1, 1), values.reshape(1, -1)


TYPES = ("float32", "int8", "uint8", "int16", "int32", "int64", "bool")
IMAGE = ramp(2, 3, 4, 5)
SHAPES = (((3, 4), (3, 4)), ((3, 1), (1, 4)), ((4,), (2, 3, 4)), ((), (2, 2)), ((2, 2), ()), ((2, 0, 3), (1, 1, 3)))

_TO_FLOAT = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"),
    *("exp", "expm1", "log", "log10", "log1p", "log2", "erf", "reciprocal", "rsqrt", "sigmoid", "sqrt"),
)
_ROUNDING = ("ceil", "floor", "round", "trunc")
_COMPARE = ("eq", "ge", "gt", "le", "lt", "ne")


def list_unary() -> Iterator[Case]:
    for name in (*_TO_FLOAT, *_ROUNDING, "abs", "neg", "sign", "relu", "isinf", "isnan", "logical_not"):
        operator = f"aten::{name}.out"
        for array in (FLOATS, FLOATS.reshape(6, 7), DENSE, np.float32(0.25), ramp(0, 3), Ordered(IMAGE / 7)):
            yield Case(operator, (array if isinstance(array, Ordered) else np.asarray(array, np.float32),))
        for kind, values in SMALL.items():
            # ExecuTorch rounds integers as floats.
            yield Case(operator, (values if name in _TO_FLOAT else INTS[kind],), by_torch=name in _ROUNDING)
        if name in ("logical_not", "isinf", "isnan", *_TO_FLOAT):
            yield Case(operator, (BOOLS,))
    for values in (*INTS.values(), BOOLS):
        yield Case("aten::bitwise_not.out", (values,))


def list_activations() -> Iterator[Case]:
    for array in (FLOATS, DENSE, np.array(0.5, np.float32), Ordered(IMAGE / 9)):
        for approximate in ("none", "tanh"):
            yield Case("aten::gelu.out", (array, approximate))
        for slope in (0.01, 2, -0.5):
            yield Case("aten::leaky_relu.out", (array, slope))
        for low, high in ((-1, 1), (0.0, 6.0), (-2.5, 0)):
            yield Case("aten::hardtanh.out", (array, low, high))
        for alpha, scale, input_scale in ((1, 1, 1), (1.67326, 1.0507, 1), (0.5, 2.0, 3.0)):
            yield Case("aten::elu.out", (array, alpha, scale, input_scale))
    for eps in (None, 1e-6, 0.1):
        yield Case("aten::logit.out", (np.linspace(-0.5, 1.5, 41, dtype=np.float32), eps))
    yield Case("aten::hardtanh.out", (INTS["int32"], -5, 6))


def list_sums() -> Iterator[Case]:
    for name in ("add", "sub"):
        for left, right in SHAPES:
            for kind in ("float32", "int32"):
                yield Case(f"aten::{name}.out", (ramp(*left, dtype=kind), ramp(*right, dtype=kind), 1))
        for left in TYPES[:-1]:
            for right in TYPES if name == "add" else TYPES[:-1]:
                values = FLOATS if left == "float32" else INTS[left]
                yield Case(f"aten::{name}.out", (values, np.array([3], right), 2))
        yield Case(f"aten::{name}.out", (FLOATS, FLOATS[::-1].copy(), -1.5))
        yield Case(f"aten::{name}.out", (Ordered(IMAGE), Ordered(IMAGE * 3), 0.5))
        yield Case(f"aten::{name}.out", (np.array([7], np.int32), np.array([9], np.int32), 3), (Spec((1,)),))
        yield Case(
            f"aten::{name}.out", (np.array([127], np.int8), np.array([1], np.int8), 1), (Spec((1,), torch.int32),)
        )
    yield Case("aten::add.out", (BOOLS, BOOLS[::-1].copy(), 1))
    for name in ("add", "sub", "rsub"):
        for kind, values in (*INTS.items(), ("float32", FLOATS)):
            yield Case(f"aten::{name}.Scalar_out", (values, 3, 2))
            whole = kind != "float32"
            yield Case(f"aten::{name}.Scalar_out", (SMALL.get(kind, values), 2.5, 1), by_torch=whole and name == "add")


def list_binary() -> Iterator[Case]:
    for name in ("mul.out", "div.out", "maximum.out", "minimum.out", "atan2.out"):
        for left, right in SHAPES:
            yield Case(f"aten::{name}", (ramp(*left), np.asarray(ramp(*right) + 0.5, np.float32)))
        yield Case(f"aten::{name}", pairs(FLOATS))
        yield Case(f"aten::{name}", (Ordered(IMAGE), Ordered(IMAGE * 2 + 1)))
        for left in TYPES:
            for right in TYPES:
                yield Case(f"aten::{name}", (ramp(5, dtype=left), ramp(5, dtype=right)))
        if name in ("mul.out", "maximum.out", "minimum.out"):
            for values in INTS.values():
                yield Case(f"aten::{name}", pairs(values))
    for name in ("mul.Scalar_out", "div.Scalar_out"):
        for kind in TYPES[:-1]:
            for number in (3, -2.5, True):
                yield Case(f"aten::{name}", (ramp(7, dtype=kind), number))
        yield Case(f"aten::{name}", (FLOATS, 1e-3))


def list_divisions() -> Iterator[Case]:
    finite = FLOATS[np.isfinite(FLOATS) & (np.abs(FLOATS) < 1e6)]
    divisors = np.array([1, -1, 0.3, -0.3, 2.5, -7, 1e-3, 100], np.float32)
    for name, extra in (("div.out_mode", ("trunc",)), ("div.out_mode", ("floor",)), ("floor_divide.out", ())):
        # A quotient of more digits than a float has, as 1e5 / 1e-3, may be off by its last one.
        yield Case(f"aten::{name}", (finite[np.abs(finite) < 1000].reshape(-1, 1), divisors.reshape(1, -1), *extra))
        # ExecuTorch says that zero and NaN divided by zero are infinite.
        yield Case(f"aten::{name}", (FLOATS, np.array([0.0], np.float32), *extra), by_torch="trunc" not in extra)
        for kind in ("int8", "int16", "int32", "int64"):
            by = np.array([1, 2, 3, -1, -2, -7], kind)
            yield Case(f"aten::{name}", (ramp(40, 1, dtype=kind), by, *extra))
        yield Case(f"aten::{name}", (ramp(40, 1, dtype="uint8"), np.array([1, 3, 9], np.uint8), *extra))
        yield Case(f"aten::{name}", (ramp(40, dtype="int32"), np.array([-3.5], np.float32), *extra))
    yield Case("aten::div.out_mode", (ramp(9, dtype="int32"), np.array([4], np.int32), None))
    for mode in ("trunc", "floor", None):
        yield Case("aten::div.Scalar_mode_out", (ramp(40), -3.5, mode))
        yield Case("aten::div.Scalar_mode_out", (ramp(40, dtype="int32"), 3, mode))
        yield Case("aten::div.Scalar_mode_out", (ramp(40, dtype="int8"), 2.5, mode))
    for name in ("fmod", "remainder"):
        yield Case(f"aten::{name}.Tensor_out", (finite.reshape(-1, 1), divisors.reshape(1, -1)))
        yield Case(f"aten::{name}.Tensor_out", (FLOATS, np.array([2.5], np.float32)))
        yield Case(f"aten::{name}.Tensor_out", (FLOATS, np.array([0], np.float32)))
        for kind in ("int8", "int16", "int32", "int64"):
            # ExecuTorch's remainder of integers has the sign of the dividend.
            by = np.array([1, 3, -1, -7], kind)
            yield Case(f"aten::{name}.Tensor_out", (ramp(40, 1, dtype=kind), by), by_torch=name == "remainder")
            yield Case(f"aten::{name}.Scalar_out", (ramp(40, dtype=kind), -7), by_torch=name == "remainder")
        yield Case(f"aten::{name}.Scalar_out", (ramp(40), 2.5))
        yield Case(f"aten::{name}.Scalar_out", (ramp(40, dtype="int32"), -2.5))


def list_powers() -> Iterator[Case]:
    bases = np.array(
        [0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3.7, 1e-3, 100, 1e10, 3e38, 1e-40, np.inf, -np.inf, np.nan], np.float32
    )
    exponents = np.array([0, 1, -1, 2, 3, -3, 0.5, -0.5, 2.5, 7, 20, 1e9, np.inf, -np.inf, np.nan], np.float32)
    yield Case("aten::pow.Tensor_Tensor_out", (bases.reshape(-1, 1), exponents.reshape(1, -1)))
    yield Case(
        "aten::pow.Tensor_Tensor_out", (np.abs(DENSE[::7]).reshape(-1, 1), np.linspace(-3, 3, 41, dtype=np.float32))
    )
    for number in (2, 3, 0.5, -1, 2.0, -2.5, 0):
        yield Case("aten::pow.Tensor_Scalar_out", (bases, number))
        yield Case("aten::pow.Tensor_Scalar_out", (np.array([0, 1, 2, 3, 9], np.int32) + (number == -1), abs(number)))
        yield Case("aten::pow.Scalar_out", (number, exponents))
    for kind in ("int8", "int32", "int64"):
        few = np.array([0, 1, 2, 3], kind)
        yield Case("aten::pow.Tensor_Tensor_out", pairs(few))
        yield Case("aten::pow.Scalar_out", (3, few))


def list_logic() -> Iterator[Case]:
    for name in _COMPARE:
        for left, right in SHAPES:
            yield Case(f"aten::{name}.Tensor_out", (ramp(*left), ramp(*right)))
        yield Case(f"aten::{name}.Tensor_out", pairs(FLOATS))
        yield Case(f"aten::{name}.Tensor_out", (Ordered(IMAGE), Ordered(-IMAGE)))
        for values in INTS.values():
            yield Case(f"aten::{name}.Tensor_out", pairs(values))
            yield Case(f"aten::{name}.Scalar_out", (values, 3))
            yield Case(f"aten::{name}.Scalar_out", (values, 2.5))
        for left in TYPES:
            for right in TYPES:
                yield Case(f"aten::{name}.Tensor_out", (ramp(6, dtype=left), ramp(1, dtype=right)))
        yield Case(f"aten::{name}.Scalar_out", (FLOATS, 1))
        yield Case(f"aten::{name}.Scalar_out", (BOOLS, True))
    for name in ("and", "or", "xor"):
        yield Case(f"aten::logical_{name}.out", pairs(FLOATS))
        for kind in TYPES:
            yield Case(f"aten::logical_{name}.out", (ramp(6, dtype=kind), ramp(6, dtype="int8")))
            if kind not in ("float32", "bool"):
                yield Case(f"aten::bitwise_{name}.Tensor_out", pairs(INTS[kind]))
                yield Case(f"aten::bitwise_{name}.Scalar_out", (INTS[kind], 11))
        yield Case(f"aten::bitwise_{name}.Tensor_out", pairs(BOOLS))
        yield Case(f"aten::bitwise_{name}.Scalar_out", (BOOLS, True))
        yield Case(f"aten::bitwise_{name}.Tensor_out", (INTS["int8"], np.array([77], np.int32)))
    for side in ("left", "right"):
        for kind in ("int8", "uint8", "int16", "int32", "int64"):
            yield Case(f"aten::bitwise_{side}_shift.Tensor_out", (INTS[kind].reshape(-1, 1), np.array([0, 1, 5], kind)))
            yield Case(f"aten::bitwise_{side}_shift.Tensor_Scalar_out", (INTS[kind], 2))


def list_choices() -> Iterator[Case]:
    mask = np.arange(FLOATS.size) % 3 == 0
    yield Case("aten::where.self_out", (mask, FLOATS, FLOATS[::-1].copy()))
    for left in TYPES:
        for right in TYPES:
            yield Case("aten::where.self_out", (BOOLS, ramp(3, dtype=left), ramp(1, dtype=right)))
    yield Case("aten::where.self_out", (np.array([[True], [False]]), ramp(4), ramp(2, 1)))
    yield Case("aten::where.self_out", (np.array(True), ramp(2, 0), np.array(1.0, np.float32)))
    for kind in TYPES:
        value = {"float32": 2.5, "bool": True}.get(kind, 7)
        yield Case("aten::masked_fill.Scalar_out", (ramp(2, 3, dtype=kind), BOOLS, value))
    yield Case("aten::masked_fill.Scalar_out", (FLOATS, mask, float("-inf")))
    for low, high in ((-1, 1), (None, 2.5), (0, None), (3, -3), (-0.5, 4)):
        yield Case("aten::clamp.out", (FLOATS, low, high))
        yield Case("aten::clamp.out", (ramp(30, dtype="int32"), low, high))
    for values in INTS.values():
        yield Case("aten::clamp.out", (values, 2, 90))
    limits = np.array([[-2], [0.5]], np.float32), np.array([3], np.float32)
    for low, high in (limits, (limits[0], None), (None, limits[1])):
        yield Case("aten::clamp.Tensor_out", (FLOATS, low, high))
    yield Case("aten::clamp.Tensor_out", (ramp(9, dtype="int32"), np.array([-2], np.int8), np.array([3], np.int64)))


def list_copies() -> Iterator[Case]:
    for source in TYPES:
        values = FLOATS[np.abs(FLOATS) < 100] if source == "float32" else INTS.get(source, BOOLS)
        for target in TYPES:
            given = np.abs(values) if target == "uint8" and source == "float32" else values
            spec = Spec(given.shape, getattr(torch, target))
            yield Case("aten::_to_copy.out", (given, False, None), (spec,))
            yield Case("dim_order_ops::_to_dim_order_copy.out", (given, False, [0]), (spec,))
        yield Case("aten::clone.out", (ramp(2, 3, dtype=source), None))
        yield Case("dim_order_ops::_clone_dim_order.out", (ramp(3, dtype=source), False, [0]), (_spec(source, 3),))
    half = np.array([*FLOATS, 65519, 65520, 6e-5, 3e-8, 2.9e-8, 2049, 2051, 1e-7], np.float32)
    yield Case("aten::_to_copy.out", (half, False, None), (Spec(half.shape, torch.float16),))
    with np.errstate(over="ignore"):
        yield Case("aten::_to_copy.out", (half.astype(np.float16), False, None), (Spec(half.shape),))
    yield Case("aten::_to_copy.out", (INTS["int32"], False, None), (_spec("float16", INTS["int32"].size),))
    yield Case("aten::_to_copy.out", (np.array([0.5, -3.5, 100], np.float16), False, None), (_spec("int32", 3),))
    last, first = Spec(IMAGE.shape, order=LAST), Spec(IMAGE.shape)
    for given, order, out in ((IMAGE, LAST, last), (Ordered(IMAGE), (0, 1, 2, 3), first), (Ordered(IMAGE), LAST, last)):
        for name in ("_to_dim_order_copy", "_clone_dim_order"):
            yield Case(f"dim_order_ops::{name}.out", (given, False, list(order)), (out,))
    for name in ("alias", "detach", "lift_fresh"):
        yield Case(f"aten::{name}_copy.out", (ramp(2, 3),))
    for shape in ((2, 3), (1, 3), (3,), ()):
        yield Case("aten::copy.out", (ramp(2, 3), np.asarray(ramp(*shape) + 1, np.float32), False))
    yield Case("aten::copy.out", (ramp(2, 3), ramp(2, 3, dtype="int32"), False))
    for sizes in ([2, 3], [4, 2, -1], [1, 2, 3]):
        yield Case("aten::expand_copy.out", (ramp(2, 1) if -1 not in sizes else ramp(1, 5), sizes, False))
    for kind in TYPES:
        yield Case("aten::expand_copy.out", (ramp(3, 1, dtype=kind), [2, 3, 4], False))
        yield Case("aten::view_copy.out", (ramp(3, 4, dtype=kind), [2, -1]))
    yield Case("aten::view_copy.out", (ramp(0, 4), [4, 0]))
    yield Case("aten::view_copy.out", (ramp(1), []))


def _spec(kind: str, *shape: int) -> Spec:
    return Spec(shape, getattr(torch, kind))


def list_arrangements() -> Iterator[Case]:
    for kind in TYPES:
        x = ramp(2, 3, 4, dtype=kind)
        for dims in ([0, 1, 2], [2, 0, 1], [-1, 1, 0]):
            yield Case("aten::permute_copy.out", (x, dims))
        yield Case("aten::transpose_copy.int_out", (x, 0, -1))
        yield Case("aten::flip.out", (x, [0, -1]))
        yield Case("aten::repeat.out", (x, [2, 1, 3, 2]))
    for x in (ramp(3, 4), ramp(5), np.array(2.0, np.float32)):
        yield Case("aten::t_copy.out", (x,))
        for dim in (0, -1, x.ndim):
            yield Case("aten::unsqueeze_copy.out", (x, dim))
        if x.ndim:
            yield Case("aten::flip.out", (x, [0]))
            yield Case("aten::flip.out", (x, []))
    for dim in (0, 1, -1):
        yield Case("aten::squeeze_copy.dim_out", (ramp(1, 3, 1), dim))
    for dims in ([0], [0, 2], [-1, 1], []):
        yield Case("aten::squeeze_copy.dims_out", (ramp(1, 3, 1), dims))
    yield Case("aten::repeat.out", (ramp(3), [2, 0]))
    yield Case("aten::repeat.out", (np.array(1.0, np.float32), [3]))
    yield Case("aten::permute_copy.out", (ramp(2, 0, 3), [1, 0, 2]))
    for shifts, dims in (([1], [0]), ([-2], [1]), ([5, -7], [0, 1]), ([4], []), ([0], [0])):
        yield Case("aten::roll.out", (ramp(3, 4), shifts, dims), by_torch=not dims)
    for offset, row, column in ((0, 0, 1), (1, 0, 2), (-1, -2, -1), (9, 0, 1)):
        yield Case("aten::diagonal_copy.out", (ramp(2, 3, 4), offset, row, column))
    for dim, size, step in ((0, 2, 1), (-1, 3, 2), (1, 5, 9), (1, 0, 1)):
        yield Case("aten::unfold_copy.out", (ramp(2, 5, 4), dim, size, step))
    for sizes, strides, offset in (([2, 3], [1, 2], 1), ([3], [0], None), ([], [], 5), ([2, 2, 2], [4, 2, 1], 0)):
        yield Case("aten::as_strided_copy.out", (ramp(3, 4), sizes, strides, offset))


def list_parts() -> Iterator[Case]:
    for kind in TYPES:
        x = ramp(4, 6, dtype=kind)
        for bounds in ((0, 1, 3, 1), (1, None, None, 2), (-1, -4, -1, 1), (1, 2, 2, 1), (0, 1, 1 << 62, 3)):
            yield Case("aten::slice_copy.Tensor_out", (x, *bounds))
        yield Case("aten::select_copy.int_out", (x, -1, -2))
        yield Case("aten::narrow_copy.out", (x, 1, 2, 3))
        yield Case("aten::slice_scatter.out", (x, ramp(4, 2, dtype=kind) + x.dtype.type(1), 1, 0, 4, 2))
        yield Case("aten::select_scatter.out", (x, ramp(4, dtype=kind), 1, -1))
        yield Case("aten::cat.out", ([x, ramp(1, 6, dtype=kind)], 0))
        yield Case("aten::stack.out", ([x, x[::-1].copy()], 1))
        yield Case("aten::constant_pad_nd.out", (x, [1, 2, 0, 1], {"float32": 2.5, "bool": True}.get(kind, 3)))
        yield Case("aten::split_with_sizes_copy.out", (x, [1, 2, 3], 1))
        yield Case("aten::split_copy.Tensor_out", (x, 4, -1))
        yield Case("aten::unbind_copy.int_out", (x, 0))
    yield Case("aten::cat.out", ([ramp(2, 3), ramp(2, 0), ramp(2, 1)], -1))
    yield Case("aten::cat.out", ([ramp(0), ramp(2, 3)], 0))
    # ExecuTorch takes the bytes as they are in memory.
    yield Case("aten::cat.out", ([Ordered(IMAGE), Ordered(IMAGE)], 1), by_torch=True)
    yield Case("aten::cat.out", ([ramp(2), ramp(2, dtype="int32")], 0), by_torch=True)
    yield Case("aten::constant_pad_nd.out", (Ordered(IMAGE), [1, 1, 2, 0], 0), by_torch=True)
    yield Case("aten::constant_pad_nd.out", (ramp(4, 6), [-1, 2, 1, -2], 1), by_torch=True)
    yield Case("aten::stack.out", ([ramp(3)], -1))
    yield Case("aten::stack.out", ([np.array(1.0, np.float32), np.array(2.0, np.float32)], 0))
    yield Case("aten::select_copy.int_out", (ramp(3), 0, 1))
    yield Case("aten::constant_pad_nd.out", (IMAGE, [0, 0, 2, 1, 1, 0], float("-inf")))
    yield Case("aten::constant_pad_nd.out", (ramp(4, 6), [], 1))


def list_constants() -> Iterator[Case]:
    for kind in TYPES:
        value = {"float32": 2.5, "bool": True}.get(kind, 7)
        yield Case("aten::full.out", ([2, 3], value), (_spec(kind, 2, 3),))
        yield Case("aten::full_like.out", (ramp(2, 3, dtype=kind), value, None), (_spec(kind, 2, 3),))
        yield Case("aten::fill.Scalar_out", (ramp(2, 3, dtype=kind), value))
        yield Case("aten::fill.Tensor_out", (ramp(2, 3, dtype=kind), np.array(value, kind)))
        yield Case("aten::zeros.out", ([3, 2],), (_spec(kind, 3, 2),))
        yield Case("aten::ones.out", ([3, 2],), (_spec(kind, 3, 2),))
        yield Case("aten::scalar_tensor.out", (value,), (_spec(kind),))
        if kind not in ("bool",):
            yield Case("aten::arange.out", (5,), (_spec(kind, 5),))
            yield Case("aten::arange.start_out", (2, 9, 3), (_spec(kind, 3),))
    yield Case("aten::full.out", ([], -1.5), (_spec("float32"),))
    yield Case("aten::full.out", ([0, 2], 1), (_spec("int32", 0, 2),))
    yield Case("aten::arange.start_out", (1.0, -0.5, -0.1), (_spec("float32", 15),))
    yield Case("aten::arange.start_out", (0.5, 5.2, 1), (_spec("int32", 5),))


def list_quantized() -> Iterator[Case]:
    quantize, dequantize = (f"quantized_decomposed::{name}" for name in ("quantize_per_", "dequantize_per_"))
    x, codes = np.linspace(-30, 30, 60, dtype=np.float32).reshape(3, 4, 5), ramp(3, 4, 5, dtype="int8")
    ranges = (("int8", -128, 127, 1), ("uint8", 0, 255, 0), ("int16", -32768, 32767, 2), ("int32", -999, 999, 3))
    for kind, low, high, code in ranges:
        zero = 3 if low == 0 else -3
        yield Case(f"{quantize}tensor.out", (x, 0.1, zero, low, high, code), (_spec(kind, 3, 4, 5),))
        yield Case(f"{dequantize}tensor.out", (codes.astype(kind), 0.1, zero, low, high, code, None), (Spec(x.shape),))
        scale, point = np.array([0.1]), np.array([zero])
        yield Case(f"{quantize}tensor.Tensor_out", (x, scale, point, low, high, code), (_spec(kind, 3, 4, 5),))
        yield Case(f"{dequantize}tensor.Tensor_out", (codes.astype(kind), scale, point, low, high, code, None),
                   (Spec(x.shape),))  # fmt: skip
        for axis in (0, 1, -1):
            count = x.shape[axis]
            scales, points = np.linspace(0.1, 0.4, count), np.arange(count) + zero
            yield Case(f"{quantize}channel.out", (x, scales, points, axis, low, high, code), (_spec(kind, 3, 4, 5),))
            for zeros in (points, None):
                args = (codes.astype(kind), scales, zeros, axis, low, high, code, None)
                yield Case(f"{dequantize}channel.out", args, (Spec(x.shape),))


FAMILIES = {
    "activations": list_activations,
    "arithmetic": lambda: (*list_sums(), *list_binary(), *list_divisions(), *list_powers()),
    "arrange": list_arrangements,
    "conditions": list_choices,
    "constants": list_constants,
    "copies": list_copies,
    "logic": list_logic,
    "parts": list_parts,
    "quantize": list_quantized,
    "unary": list_unary,
}


def list_cases() -> dict[str, list[Case]]:
    """All cases by operator."""
    cases: dict[str, list[Case]] = {}
    for make in FAMILIES.values():
        for case in make():
            cases.setdefault(case.operator, []).append(case)
    return cases
