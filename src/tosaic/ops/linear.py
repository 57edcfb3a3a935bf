"""Matrix products: linear, addmm, baddbmm, mm, bmm, matmul."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType, Value
from tosaic.ir.qparams import accumulator
from tosaic.lower import arithmetic as arith
from tosaic.lower import movement
from tosaic.lower.aten import Aten, T
from tosaic.lower.constraints import INPUT_CHANNELS, describe
from tosaic.lower.convert import FLOAT8
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import Arguments, Constraint, composite, op
from tosaic.lower.samples import Sample, call, f32, module, nn, torch
from tosaic.lower.tensor import Const, Stored, Tensor, broadcast, of_value


def _fully_connected(lo: Lowering, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x @ weight.T + bias with a constant weight, as a 1x1 convolution over one row of pixels."""
    array, _, q = arith.require_quantized_weight(weight, x)
    if x.q is not None:
        x = lo.require_quantized(x)
    rows = x.size // x.shape[-1]
    # One image row of `rows` pixels: Ethos-U85 is 15 % faster on it than on `rows` images of one pixel.
    image = lo.permute(lo.reshape(x, (1, 1, rows, x.shape[-1])), (0, 3, 1, 2))
    kernel = np.ascontiguousarray(array.reshape(array.shape[0], 1, 1, array.shape[1]))
    out = arith.convolve(lo, image, kernel, q, bias)
    flat = lo.permute(out, (0, 2, 3, 1))
    return lo.reshape(flat, (*x.shape[:-1], array.shape[0]))


def _matmul_batches(lo: Lowering, x: Tensor, y: Tensor) -> Tensor:
    """Compute [B,M,K] @ [B,K,N]."""
    if x.q is None and y.q is None:
        # Sums of 8-bit floats are float16 in TOSA, others may be float32.
        out_type = None if x.dtype in FLOAT8 else DType.F32
        return of_value(tosa.matmul(lo.b, lo.emit(x), lo.emit(y), out_type=out_type))
    xq, yq = lo.require_quantized(x, "first operand").qparams, lo.require_quantized(y, "second operand").qparams
    if xq.axis is not None or yq.axis is not None:
        raise Unsupported("an operand is quantized per channel", "quantize it per tensor")
    if DType.I16 in (x.dtype, y.dtype):
        product = _matmul_int16 if lo.target.multiplies_int16 else _matmul_bytes
        return product(lo, x, y)
    value = tosa.matmul(lo.b, lo.emit(x), lo.emit(y), x_zp=xq.zp, y_zp=yq.zp)
    return of_value(value, accumulator((xq.s * yq.s,)))


def _matmul_int16(lo: Lowering, x: Tensor, y: Tensor) -> Stored:
    value = tosa.matmul(lo.b, _widen(lo, x), _widen(lo, y))
    return of_value(value, replace(accumulator((x.qparams.s * y.qparams.s,)), dtype=DType.I48))


def _widen(lo: Lowering, t: Tensor) -> Value:
    """Convert int8 numbers to int16, which has no zero points."""
    if t.dtype is DType.I16:
        return lo.emit(t)
    if isinstance(t, Const):
        return lo.constant(t.array.astype(np.int16) - t.qparams.zp, DType.I16)
    return lo.rescale(lo.emit(t), DType.I16, [1.0], t.qparams.zp)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Some bytes of the numbers of a tensor as int8, and what they are to be shifted by."""

    value: Value
    zero_point: int
    shift: int


#: the zero point of the lower bytes of 16-bit numbers
_LOW = -128


def _matmul_bytes(lo: Lowering, x: Tensor, y: Tensor) -> Stored:
    """Compute a product of int16 matrices from the products of their bytes.

    With x = 256 * x1 + x0 and y in the same form, it is 65536 * x1 @ y1 + 256 * (x1 @ y0 + x0 @ y1) + x0 @ y0. That is
    exact, but for the bits that do not fit int32.
    """
    sums: dict[int, Value] = {}
    for a in _split(lo, x):
        for b in _split(lo, y):
            part = tosa.matmul(lo.b, a.value, b.value, x_zp=a.zero_point, y_zp=b.zero_point)
            shift = a.shift + b.shift
            sums[shift] = tosa.add(lo.b, sums[shift], part) if shift in sums else part
    bits = sum(15 if t.dtype is DType.I16 else 8 for t in (x, y)) + math.ceil(math.log2(x.shape[2]))
    lost = max(0, bits - 30)
    total, *others = (_shift(lo, part, shift - lost) for shift, part in sums.items())
    for other in others:
        total = tosa.add(lo.b, total, other)
    return of_value(total, accumulator((x.qparams.s * y.qparams.s * 2.0**lost,)))


def _shift(lo: Lowering, value: Value, bits: int) -> Value:
    """Multiply int32 numbers by a power of two; RESCALE is not defined where it would make large ones larger."""
    if bits <= 0:
        return lo.rescale(value, DType.I32, [2.0**bits]) if bits else value
    return tosa.mul(lo.b, value, lo.constant(np.full((1,) * value.rank, 1 << bits), DType.I32))


def _split(lo: Lowering, t: Tensor) -> list[_Bytes]:
    """Split int16 numbers into their upper bytes, rounded down, and their lower bytes."""
    if t.dtype is DType.I8:
        return [_Bytes(lo.emit(t), t.qparams.zp, 0)]
    if isinstance(t, Const):
        wide = t.array.astype(np.int32)
        upper, lower = lo.constant(wide >> 8, DType.I8), lo.constant((wide & 255) + _LOW, DType.I8)
    else:
        wide = lo.rescale(lo.emit(t), DType.I32, [1.0])
        half = lo.rescale(lo.constant(np.full((1,) * wide.rank, 128, np.int16), DType.I16), DType.I32, [1.0])
        upper = lo.rescale(tosa.sub(lo.b, wide, half), DType.I8, [2.0**-8])
        rest = tosa.sub(lo.b, wide, lo.rescale(upper, DType.I32, [2.0**8]))
        lower = lo.rescale(rest, DType.I8, [1.0], 0, _LOW)
    return [_Bytes(upper, 0, 8), _Bytes(lower, _LOW, 0)]


def _matmul_constants(lo: Lowering, x: Tensor, weights: Tensor) -> Tensor:
    """Compute [B,M,K] @ [B,K,N] with constant matrices: convolutions cost less than a MATMUL, on Ethos-U55 far less."""
    q, shape = lo.next_q if x.q is None else lo.out_q(), (weights.shape[2], weights.shape[1])
    parts: list[Tensor] = []
    for index in range(x.shape[0]):
        weight = lo.reshape(lo.permute(movement.crop(lo, weights, 0, index, 1), (0, 2, 1)), shape)
        part = _fully_connected(lo, movement.crop(lo, x, 0, index, 1), weight, None)
        parts.append(part if q is None else movement.requantize(lo, part, q))
    return parts[0] if len(parts) == 1 else movement.concatenate(lo, parts, 0)


def _broadcast(lo: Lowering, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeat a tensor along its dimensions of size one."""
    if x.shape == shape:
        return x
    padded = lo.reshape(x, (1,) * (len(shape) - x.rank) + x.shape)
    if isinstance(padded, Const):
        return Const(np.broadcast_to(padded.array, shape), x.dtype, x.q)
    times = tuple(n // d for n, d in zip(shape, padded.shape, strict=True))
    return of_value(tosa.tile(lo.b, lo.emit(padded), times), x.q)


def _matmul(lo: Lowering, x: Tensor, y: Tensor) -> Tensor:
    """Compute torch.matmul."""
    if y.is_const and y.rank == 2:
        return _fully_connected(lo, x, lo.permute(y, (1, 0)), None)
    left = x if x.rank > 1 else lo.reshape(x, (1, x.shape[0]))
    right = y if y.rank > 1 else lo.reshape(y, (y.shape[0], 1))
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    (m, k), n = left.shape[-2:], right.shape[-1]
    count = int(np.prod(batch, dtype=np.int64))
    a = lo.reshape(_broadcast(lo, left, (*batch, m, k)), (count, m, k))
    b = lo.reshape(_broadcast(lo, right, (*batch, k, n)), (count, k, n))
    out = _matmul_constants(lo, a, b) if isinstance(b, Const) else _matmul_batches(lo, a, b)
    tail = (() if x.rank == 1 else (m,)) + (() if y.rank == 1 else (n,))
    return lo.reshape(out, (*batch, *tail))


def _check_product(lo: Lowering, a: Arguments) -> str:
    """Check the last two matrices among the arguments."""
    x, y = [t for t in a.values() if isinstance(t, Tensor)][-2:]
    if isinstance(y, Const):
        return ""
    if x.q is None and y.q is None:
        fits = x.is_float and y.is_float
    else:
        stored = all(t.is_plain_quantized or (t.is_const and t.q is not None) for t in (x, y))
        fits = not stored or lo.spec.supports("int16") or x.dtype is y.dtype is DType.I8
    return "" if fits else f"they are {describe(x)} and {describe(y)}"


_OPERANDS = Constraint(
    "the operands of a product of two computed matrices are both float or both quantized, to int8 without TOSA's int16",
    _check_product,
    "cast both to float32, and quantize both to int8",
)


def _samples_linear() -> list[Sample]:
    return [
        module(lambda: nn.Linear(8, 4), f32(1, 8)),
        module(lambda: nn.Linear(17, 64), f32(3, 17)),
        module(lambda: nn.Linear(64, 1, bias=False), f32(2, 5, 64)),
        module(lambda: nn.Linear(3, 17), f32(3, 2, 4, 3)),
        module(lambda: nn.Linear(8, 4), f32(8)),
        module(lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), f32(2, 8)),
        module(lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()), f32(2, 8)),
        module(lambda: nn.Linear(8, 4), f32(3, 8, low=-50.0, high=1.0)),
        module(lambda: nn.RNNCell(8, 5), f32(3, 8), f32(3, 5, low=-9.0, high=9.0), flavors=("INT",)),
    ]


@op("linear", quant="weight", is_product=True, constraints=[INPUT_CHANNELS], samples=_samples_linear)
def linear(lo: Lowering, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _fully_connected(lo, input, weight, bias)


def _decompose_addmm(aten: Aten[T], self: T, mat1: T, mat2: T, beta: float = 1, alpha: float = 1) -> T:
    product = aten("mm.default", mat1, mat2)
    addend = self if beta == 1 else aten("mul.Tensor", self, beta)
    return aten("add.Tensor", product if alpha == 1 else aten("mul.Tensor", product, alpha), addend)


@op(
    "addmm",
    reads_weight_matrix=True,
    constraints=[_OPERANDS],
    decompose=_decompose_addmm,
    samples=lambda: [
        call(lambda b, x, y: torch.addmm(b, x, y), f32(3), f32(2, 4), f32(4, 3)),
        call(lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2.0), f32(2, 3), f32(2, 4), f32(4, 3)),
    ],
)
def addmm(lo: Lowering, self: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    if mat2.is_const and self.is_const and beta == 1 and alpha == 1:
        return _fully_connected(lo, mat1, lo.permute(mat2, (1, 0)), self)
    if mat1.q is not None:
        raise Unsupported("a sum with a product needs the product quantized first", "quantize with Tosaic's quantizer")
    product = _matmul(lo, mat1, mat2)
    if alpha != 1:
        product = arith.multiply(lo, product, lo.scalar(alpha, product))
    addend = self if beta == 1 else arith.multiply(lo, self, lo.scalar(beta, self))
    return arith.add(lo, product, addend)


@composite(
    "baddbmm",
    samples=lambda: [
        call(lambda b, x, y: torch.baddbmm(b, x, y), f32(1, 3), f32(2, 4, 17), f32(2, 17, 3)),
        call(lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5, alpha=2.0), f32(1, 2, 3), f32(1, 2, 4), f32(1, 4, 3)),
    ],
)
def baddbmm(aten: Aten[T], self: T, batch1: T, batch2: T, beta: float = 1, alpha: float = 1) -> T:
    product = aten("bmm.default", batch1, batch2)
    addend = self if beta == 1 else aten("mul.Tensor", self, beta)
    return aten("add.Tensor", product if alpha == 1 else aten("mul.Tensor", product, alpha), addend)


@op(
    "mm",
    reads_weight_matrix=True,
    constraints=[_OPERANDS],
    samples=lambda: [
        call(lambda x, y: torch.mm(x, y), f32(3, 17), f32(17, 5)),
        call(lambda x, y: torch.mm(x, y), f32(1, 4), f32(4, 64)),
    ],
)
def mm(lo: Lowering, self: Tensor, mat2: Tensor) -> Tensor:
    return _matmul(lo, self, mat2)


@op(
    "bmm",
    reads_weight_matrix=True,
    constraints=[_OPERANDS],
    samples=lambda: [
        call(lambda x, y: torch.bmm(x, y), f32(1, 3, 4), f32(1, 4, 5)),
        call(lambda x, y: torch.bmm(x, y), f32(3, 17, 4), f32(3, 4, 64)),
    ],
)
def bmm(lo: Lowering, self: Tensor, mat2: Tensor) -> Tensor:
    return _matmul(lo, self, mat2)


@op(
    "matmul",
    reads_weight_matrix=True,
    constraints=[_OPERANDS],
    samples=lambda: [
        call(lambda x, y: x @ y, f32(4), f32(4)),
        call(lambda x, y: x @ y, f32(3, 4), f32(4)),
        call(lambda x, y: x @ y, f32(4), f32(4, 5)),
        call(lambda x, y: x @ y, f32(3, 4), f32(4, 5)),
        call(lambda x, y: x @ y, f32(2, 3, 4), f32(4, 5)),
        call(lambda x, y: x @ y, f32(1, 3, 4), f32(2, 4, 5)),
        call(lambda x, y: x @ y, f32(2, 3, 5, 4), f32(2, 3, 4, 5)),
        call(lambda x, y: x @ y.transpose(-2, -1), f32(1, 2, 5, 4), f32(1, 2, 5, 4)),
        call(lambda x: x @ torch.linspace(-1, 1, 40).reshape(2, 4, 5), f32(2, 3, 4)),
        call(lambda x: x @ torch.linspace(-1, 1, 20).reshape(1, 1, 4, 5), f32(2, 3, 6, 4)),
        call(lambda x: torch.linspace(-1, 1, 20).reshape(5, 4) @ x, f32(2, 4, 3)),
    ],
)
def matmul(lo: Lowering, self: Tensor, other: Tensor) -> Tensor:
    return _matmul(lo, self, other)
