"""Quantized arithmetic against numpy: sums, products and means through the reference model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from tosaic.core import targets
from tosaic.core.specification import Specification
from tosaic.engines import reference
from tosaic.formats.tosa_writer import serialize
from tosaic.ir.graph import Array, DType, Type
from tosaic.ir.qparams import QParams, dequantize, quantize
from tosaic.lower import arithmetic as arith
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Const, Stored, Tensor, of_value

X = QParams((0.05,), (3,), DType.I8, -128, 127)
Y = QParams((0.02,), (-7,), DType.I8, -128, 127)
OUT = QParams((0.09,), (11,), DType.I8, -128, 127)


def lowering() -> Lowering:
    target = targets.find("ethos-u85-256")
    return Lowering(target, Specification.parse(target.tosa_spec))


def draw(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def run(build: Callable[..., Tensor], *inputs: tuple[Array, QParams]) -> Array:
    """Quantize what `build` makes of quantized inputs to OUT, and run it."""
    lo = lowering()
    tensors = [of_value(lo.b.input(Type(DType.I8, array.shape)), q) for array, q in inputs]
    out = lo.emit(lo.quantize(build(lo, *tensors), OUT))
    return reference.run(serialize(lo.b.finish([out])), [array for array, _ in inputs])[0]


def assert_near(got: Array, real: Array) -> None:
    """Within one step of the exact result: rescaling operands rounds before the last rounding does."""
    want = quantize(real, OUT)
    assert np.abs(got.astype(np.int64) - want).max() <= 1
    assert (got == want).mean() > 0.95


@pytest.mark.parametrize(("alpha", "subtract"), [(1.0, False), (1.0, True), (2.5, False), (-0.5, False)])
def test_sum(alpha: float, subtract: bool) -> None:
    a, b = draw((1, 4, 9, 5), 1), draw((1, 4, 1, 5), 2)
    got = run(lambda lo, x, y: arith.add(lo, x, y, alpha=alpha, subtract=subtract), (a, X), (b, Y))
    other = dequantize(b, Y) * alpha
    assert_near(got, dequantize(a, X) + (-other if subtract else other))


def test_product_rounds_once() -> None:
    a, b = draw((1, 4, 9, 5), 3), draw((1, 1, 9, 5), 4)
    got = run(arith.multiply, (a, X), (b, Y))
    assert_near(got, dequantize(a, X) * dequantize(b, Y))


def test_scaling_an_accumulator_emits_nothing() -> None:
    lo = lowering()
    total = Stored((2,), lo.b.input(Type(DType.I32, (2,))), (0,), QParams((0.5,), (0,), DType.I32, -9, 9), clamp=(0, 6))
    scaled = arith.scaled(total, 4.0)
    assert (scaled.qparams.scale, scaled.clamp, scaled.value) == ((2.0,), (0.0, 24.0), total.value)
    assert not lo.b.ops


@pytest.mark.parametrize("dims", [(3,), (1, 2), (2, 3), (1,), (1, 2, 3)])
def test_mean(dims: tuple[int, ...]) -> None:
    a = draw((1, 6, 7, 8), 5)
    size = math.prod(a.shape[d] for d in dims)
    got = run(lambda lo, x: arith.sum_over(lo, x, dims, size), (a, X))
    assert_near(got, dequantize(a, X).mean(dims, keepdims=True))


def test_convolution() -> None:
    a, weight = draw((1, 3, 6, 7), 6), draw((4, 2, 3, 3), 7)
    w = QParams((0.01, 0.02, 0.005, 0.03), (0,) * 4, DType.I8, -127, 127, axis=0)
    bias = Const(np.float32([1.0, -2.0, 0.0, 0.5]), DType.F32)
    window = arith.Window(pad=(1, 0, 0, 2), stride=(2, 1))
    got = run(lambda lo, x: arith.convolve(lo, x, weight, w, bias, window), (a, X))
    image = np.pad(dequantize(a, X), ((0, 0), (0, 0), (1, 0), (0, 2)))
    kernel = dequantize(weight, w)
    rows, columns = (image.shape[2] - 2) // 2 + 1, image.shape[3] - 3 + 1
    real = np.zeros((1, 4, rows, columns)) + bias.array.reshape(1, 4, 1, 1)
    for i, j in itertools.product(range(2), range(3)):
        seen = image[:, :, i : i + 2 * rows : 2, j : j + columns]
        real += np.einsum("nchw,oc->nohw", seen, kernel[:, i, j])
    assert got.shape == real.shape
    assert_near(got, real)


def test_a_bias_stops_short_of_overflow() -> None:
    bias = Const(np.float32([1.0, -1.0]), DType.F32)
    codes = arith.bias_codes(bias, (1e-12, 1e-12), np.array([1000, 1000]))
    assert codes.tolist() == [2**31 - 1 - 1000, -(2**31) + 1000]


@pytest.mark.parametrize(("pad", "stride", "height"), [(1, 2, 6), (0, 2, 5), (0, 1, 6), (2, 3, 6)])
def test_windows_fit_exactly(pad: int, stride: int, height: int) -> None:
    """What is too much is taken off the padding at the end first, then off the image."""
    lo = lowering()
    image = lo.b.input(Type(DType.I8, (1, 6, 6, 1)))
    window = arith.Window((pad, pad, pad, pad), (stride, stride))
    fitted, pads = arith.fit_window(lo, image, (3, 3), window)
    assert fitted.shape[1] == fitted.shape[2] == height
    for axis in (0, 1):
        span = fitted.shape[1 + axis] + pads[2 * axis] + pads[2 * axis + 1] - 3
        assert span % stride == 0
        assert span // stride == (6 + 2 * pad - 3) // stride
