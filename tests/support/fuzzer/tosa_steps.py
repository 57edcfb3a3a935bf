"""The steps of random TOSA graphs: what lowerings emit for one operator of a model, with numbers drawn at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from support.graphs.cases import I8, I16, I32
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Value

#: operators that keep the numbers of their first operand, and so its zero point
KEEPS = frozenset(
    (
        *("RESHAPE", "TRANSPOSE", "SLICE", "PAD", "CONCAT", "TILE", "REVERSE", "REDUCE_MAX", "REDUCE_MIN"),
        *("MAX_POOL2D", "AVG_POOL2D", "GATHER", "SCATTER", "RESIZE"),
    )
)
#: the most numbers in one ARGMAX of every target
LONGEST_ARGMAX = 127


class Draw:
    """The random numbers of one step, and constants made of them."""

    def __init__(self, b: Builder, seed: int, points: dict[Value, int]) -> None:
        self.b, self.rng, self.points = b, np.random.default_rng(seed), points

    def point(self, x: Value) -> int:
        """The zero point of a value: one for all its readers, and that of its source if it was only moved."""
        if x.dtype is not I8:
            return 0
        if x not in self.points:
            moved = x.op is not None and x.op.kind in KEEPS
            self.points[x] = self.point(x.op.inputs[0]) if moved and x.op else self.draw_point()
        return self.points[x]

    def rescale(self, x: Value, dtype: DType, multiplier: int, shift: int) -> Value:
        """A RESCALE that knows the zero points of both sides."""
        out = self.draw_point() if dtype is I8 else 0
        y = ops.rescale(self.b, x, dtype, multiplier=[multiplier], shift=[shift], in_zp=self.point(x), out_zp=out)
        if dtype is I8:
            self.points[y] = out
        return y

    def number(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def const(self, shape: Sequence[int], dtype: DType = I8, bound: int = 127) -> Value:
        return self.b.const(self.rng.integers(-bound, bound + 1, tuple(shape)), dtype)

    def shape(self, size: int) -> tuple[int, ...]:
        """A shape of one to five dimensions."""
        factors = [p for p in (2, 3, 5, 7, 11, 13) for _ in range(_count_factors(size, p))]
        rest = size // math.prod(factors)
        dims = [1] * int(self.rng.choice([1, 2, 3, 3, 4, 4, 4, 5]))
        for factor in (*factors, rest):
            dims[self.number(0, len(dims) - 1)] *= factor
        return tuple(dims)

    def draw_point(self) -> int:
        return int(self.rng.choice([0, -128, self.number(-100, 100)]))


def _count_factors(size: int, factor: int) -> int:
    count = 0
    while size % factor == 0:
        size, count = size // factor, count + 1
    return count


def _widen(d: Draw, x: Value) -> Value:
    return d.rescale(x, I32, 1 << 30, 30)


def _narrow(d: Draw, x: Value, bits: int, dtype: DType | None = None) -> Value:
    """Rescale a number of so many bits to 8, sometimes to 16."""
    dtype = dtype or (I16 if d.chance(0.15) else I8)
    shift = min(62, max(2, 31 + bits - (8 if dtype is I8 else 16) - d.number(0, 2)))
    return d.rescale(x, dtype, d.number(1 << 30, (1 << 31) - 1), shift)


def _image(d: Draw, x: Value) -> Value:
    if len(x.shape) == 4 and d.chance(0.7):
        return x
    shape = d.shape(x.type.size)
    dims = (*(1,) * (4 - len(shape)), *shape)
    return _view(d, x, (math.prod(dims[:-3]), *dims[-3:]))


def _table(d: Draw, x: Value, _: Value) -> Value:
    return ops.table(d.b, _byte(d, x), d.rng.integers(-128, 128, 256).astype(np.int8))


def _byte(d: Draw, x: Value) -> Value:
    return x if x.dtype is I8 else d.rescale(x, I8, 1 << 30, 38)


def _requantize(d: Draw, x: Value, _: Value) -> Value:
    return d.rescale(_byte(d, x), I8, d.number(1 << 30, (1 << 31) - 1), d.number(29, 32))


def _to_short(d: Draw, x: Value, _: Value) -> Value:
    return d.rescale(_byte(d, x), I16, 1 << 30, d.number(22, 25))


def _reshape(d: Draw, x: Value, _: Value) -> Value:
    if d.chance(0.4):
        at = d.number(0, len(x.shape))
        dims = (*x.shape[:at], 1, *x.shape[at:])
        return _view(d, x, dims if len(dims) < 6 else (x.type.size,))
    return _view(d, x, d.shape(x.type.size))


def _transpose(d: Draw, x: Value, _: Value) -> Value:
    x = x if 2 <= len(x.shape) <= 4 else _image(d, x)
    perm = tuple(map(int, d.rng.permutation(len(x.shape))))
    if x.op is not None and x.op.kind == "TRANSPOSE":
        before = x.op.get_ints("perms")
        x, perm = x.op.inputs[0], tuple(before[p] for p in perm)
    long = [p for p in perm if x.shape[p] > 1]
    # A lowering reshapes if only ones move.
    return _view(d, x, tuple(x.shape[p] for p in perm)) if long == sorted(long) else ops.transpose(d.b, x, perm)


def _view(d: Draw, x: Value, shape: tuple[int, ...]) -> Value:
    """Reshape, as a lowering does it: not twice, and not to the same shape."""
    while x.op is not None and x.op.kind == "RESHAPE":
        x = x.op.inputs[0]
    return x if x.shape == shape else ops.reshape(d.b, x, shape)


def _slice(d: Draw, x: Value, _: Value) -> Value:
    start, size = [0] * len(x.shape), list(x.shape)
    for axis in range(len(x.shape)):
        if size[axis] > 1 and d.chance(0.6):
            size[axis] = d.number(1, x.shape[axis])
            start[axis] = d.number(0, x.shape[axis] - size[axis])
    return ops.slice(d.b, x, start, size)


def _pad(d: Draw, x: Value, _: Value) -> Value:
    x = x if len(x.shape) <= 4 else _image(d, x)
    padding = [d.number(0, 2) if d.chance(0.4) else 0 for _ in range(2 * len(x.shape))]
    return ops.pad(d.b, x, padding, d.point(x))


def _concat(d: Draw, x: Value, y: Value) -> Value:
    axis = d.number(0, len(x.shape) - 1)
    fits = (
        len(x.shape) == len(y.shape) and x.shape[:axis] == y.shape[:axis] and x.shape[axis + 1 :] == y.shape[axis + 1 :]
    )
    if fits and x.dtype is y.dtype:
        y = _like(d, y, x)
    else:
        y = d.const(x.shape, x.dtype) if d.chance(0.3) else x if d.chance(0.5) else _slice_along(d, x, axis)
    parts = [x, y] if d.chance(0.5) else [y, x]
    return ops.concat(d.b, parts if d.chance(0.8) else [*parts, x], axis)


def _like(d: Draw, x: Value, other: Value) -> Value:
    """The value, rescaled if its zero point is not that of another one: numbers of one tensor have one."""
    if d.point(x) == d.point(other):
        return x
    zp = d.point(other)
    multiplier, shift = (1 << 30, 30) if d.chance(0.5) else (d.number(1 << 30, (1 << 31) - 1), d.number(29, 32))
    y = ops.rescale(d.b, x, I8, multiplier=[multiplier], shift=[shift], in_zp=d.point(x), out_zp=zp)
    d.points[y] = zp
    return y


def _slice_along(d: Draw, x: Value, axis: int) -> Value:
    size = [d.number(1, n) if i == axis else n for i, n in enumerate(x.shape)]
    return ops.slice(d.b, x, [0] * len(size), size)


def _tile(d: Draw, x: Value, _: Value) -> Value:
    return ops.tile(d.b, x, [d.number(1, 2) for _ in x.shape])


def _reverse(d: Draw, x: Value, _: Value) -> Value:
    axis = d.number(0, len(x.shape) - 1)
    return x if x.shape[axis] == 1 else ops.reverse(d.b, x, axis)


def _operand(d: Draw, x: Value, y: Value) -> Value:
    """A value that can be broadcast with x: y, if its shape allows that, or something made of x."""
    if max(len(x.shape), len(y.shape)) > 4 and 1 in (x.type.size, y.type.size):
        # A lowering merges dimensions then.
        return _requantize(d, x, y)
    shape = y.shape
    if len(shape) < len(x.shape):
        shape = (*(1,) * (len(x.shape) - len(shape)), *shape)
    if len(shape) == len(x.shape) and all(a == b or 1 in (a, b) for a, b in zip(shape, x.shape, strict=True)):
        return y if shape == y.shape else _view(d, y, shape)
    if y.type.size == x.type.size:
        return _view(d, y, x.shape)
    kind = d.number(0, 3)
    if kind == 0:
        return d.const([n if d.chance(0.5) else 1 for n in x.shape] if len(x.shape) < 5 else x.shape)
    if kind == 1:
        return ops.reduce_max(d.b, x, d.number(0, len(x.shape) - 1))
    return _requantize(d, x, y) if kind == 2 else x


def _add(d: Draw, x: Value, y: Value) -> Value:
    y = _operand(d, x, y)
    combine = ops.add if d.chance(0.6) else ops.sub
    # The larger scale is a power of two, as a lowering makes it: Ethos-U55 and U65 fuse no other.
    head = 0 if d.chance(0.3) else 19 if x.dtype is I8 and y.dtype is I8 else 14
    factors = [(1 << 30, 30 - head)] * 2
    if head:
        factors[d.number(0, 1)] = (d.number(1 << 30, (1 << 31) - 1), 31 - head + d.number(0, 4))
    wide = [d.rescale(v, I32, *factor) for v, factor in zip((x, y), factors, strict=True)]
    return _narrow(d, combine(d.b, *wide), head + (9 if x.dtype is I8 and y.dtype is I8 else 17))


def _multiply(d: Draw, x: Value, y: Value) -> Value:
    y = _operand(d, x, y)
    bits = sum(8 if v.dtype is I8 else 16 for v in (x, y))
    return _narrow(d, ops.mul(d.b, _widen(d, x), _widen(d, y)), bits)


def _extremum(d: Draw, x: Value, y: Value) -> Value:
    y = _operand(d, x, y)
    x, y = _byte(d, x), _byte(d, y)
    y = _like(d, y, x)
    combine = ops.maximum if d.chance(0.5) else ops.minimum
    wide = [d.rescale(v, I32, 1 << 30, 30) for v in (x, y)]
    z = ops.rescale(d.b, combine(d.b, *wide), I8, multiplier=[1 << 30], shift=[30], out_zp=d.point(x))
    d.points[z] = d.point(x)
    return z


def _reduce_max(d: Draw, x: Value, _: Value) -> Value:
    return ops.reduce_max(d.b, _byte(d, x), d.number(0, len(x.shape) - 1))


def _reduce_sum(d: Draw, x: Value, _: Value) -> Value:
    x = _byte(d, x)
    axis = d.number(0, len(x.shape) - 1)
    return _narrow(d, ops.reduce_sum(d.b, _widen(d, x), axis), 8 + x.shape[axis].bit_length())


def _argmax(d: Draw, x: Value, _: Value) -> Value:
    x = _image(d, _byte(d, x))
    if x.shape[3] > LONGEST_ARGMAX:
        return x
    found = ops.argmax(d.b, _view(d, x, (1, 1, x.type.size // x.shape[3], x.shape[3])), 3)
    return _view(d, found, x.shape[:3])


def _convolve(d: Draw, x: Value, _: Value) -> Value:
    x = _image(d, x)
    outputs = d.number(1, 9)
    height, width = (min(n, int(d.rng.choice([1, 1, 3]))) for n in x.shape[1:3])
    weight = d.const((outputs, height, width, x.shape[3]))
    return _finish(d, x, weight, height, width, outputs, depthwise=False)


def _convolve_depthwise(d: Draw, x: Value, _: Value) -> Value:
    x = _image(d, x)
    height, width = (min(n, int(d.rng.choice([1, 2, 3]))) for n in x.shape[1:3])
    return _finish(d, x, d.const((height, width, x.shape[3], 1)), height, width, x.shape[3], depthwise=True)


def _finish(d: Draw, x: Value, weight: Value, height: int, width: int, outputs: int, *, depthwise: bool) -> Value:
    kind = ops.depthwise_conv2d if depthwise else ops.conv2d
    pad = (height // 2, height // 2, width // 2, width // 2) if d.chance(0.5) else (0, 0, 0, 0)
    stride = [d.number(1, 2) for _ in range(2)]
    steps = [
        1 if (n + pad[2 * i] + pad[2 * i + 1] - k) % s else s
        for i, (n, k, s) in enumerate(zip(x.shape[1:3], (height, width), stride, strict=True))
    ]
    wide = x.dtype is I16
    bias = d.b.const(d.rng.integers(-3000, 3000, outputs), DType.I48 if wide else I32)
    zp = d.point(x)
    sums = kind(
        d.b, x, weight, bias, pad=pad, stride=(steps[0], steps[1]), dilation=(1, 1), acc_type=bias.dtype, x_zp=zp
    )
    bits = (16 if wide else 8) + 8 + (weight.type.size // outputs).bit_length() // 2
    channels = outputs if d.chance(0.6) else 1
    if wide:
        multiplier = d.rng.integers(1 << 14, (1 << 15) - 1, channels).tolist()
        shift = [15 + bits - 16] * channels
        return ops.rescale(d.b, sums, I16, multiplier=multiplier, shift=shift, scale32=False, per_channel=channels > 1)
    multiplier = d.rng.integers(1 << 30, (1 << 31) - 1, channels).tolist()
    shift = [31 + bits - 8 - d.number(0, 1) for _ in range(channels)]
    out = d.draw_point()
    y = ops.rescale(d.b, sums, I8, multiplier=multiplier, shift=shift, per_channel=channels > 1, out_zp=out)
    d.points[y] = out
    return y


def _pool(d: Draw, x: Value, _: Value) -> Value:
    x = _image(d, x)
    kernel = [min(n, d.number(1, 3)) for n in x.shape[1:3]]
    return ops.max_pool2d(d.b, x, kernel=(kernel[0], kernel[1]), stride=(1, 1), pad=(0, 0, 0, 0))


def _average(d: Draw, x: Value, _: Value) -> Value:
    """Only Ethos-U85 averages several images at once: a lowering takes them one by one for the others."""
    x = _image(d, _byte(d, x))
    x = x if x.shape[0] == 1 else ops.slice(d.b, x, (0, 0, 0, 0), (1, *x.shape[1:]))
    kernel, zp = [min(n, d.number(1, 3)) for n in x.shape[1:3]], d.point(x)
    size = (kernel[0], kernel[1])
    return ops.avg_pool2d(d.b, x, kernel=size, stride=(1, 1), pad=(0, 0, 0, 0), acc_type=I32, x_zp=zp, out_zp=zp)


def _matmul(d: Draw, x: Value, y: Value) -> Value:
    x, y = _byte(d, x), _byte(d, y)
    x = _view(d, x, (1, *_two(d, x))) if len(x.shape) != 3 else x
    groups, depth = x.shape[0], x.shape[2]
    if y.type.size % (groups * depth):
        y = d.const((groups, depth, d.number(1, 6)))
    else:
        columns = y.type.size // (groups * depth)
        turned = d.chance(0.5)
        y = _view(d, y, (groups, columns, depth) if turned else (groups, depth, columns))
        y = ops.transpose(d.b, y, (0, 2, 1)) if turned else y
    sums = ops.matmul(d.b, x, y, x_zp=d.point(x), y_zp=d.point(y))
    return _narrow(d, sums, 16 + depth.bit_length() // 2)


def _two(d: Draw, x: Value) -> tuple[int, int]:
    shape = d.shape(x.type.size)
    return (math.prod(shape[:-1]), shape[-1])


def _mask(d: Draw, x: Value, y: Value) -> Value:
    """Compare two tensors, and sometimes combine that with another comparison."""
    wide = (_widen(d, x), _widen(d, y))
    mask = (ops.greater if d.chance(0.5) else ops.equal)(d.b, *wide)
    if d.chance(0.2):
        other = ops.greater_equal(d.b, *wide)
        join = (ops.logical_and, ops.logical_or, ops.logical_xor)[d.number(0, 2)]
        mask = join(d.b, mask, other)
    return ops.logical_not(d.b, mask) if d.chance(0.1) else mask


def _select(d: Draw, x: Value, y: Value) -> Value:
    y = _operand(d, x, y)
    x, y = _byte(d, x), _byte(d, y)
    y = _like(d, y, x)
    z = ops.select(d.b, _mask(d, x, y), x, y)
    d.points[z] = d.point(x)
    return z


def _compare(d: Draw, x: Value, y: Value) -> Value:
    y = _operand(d, x, y)
    return _mask(d, _byte(d, x), _byte(d, y))


def _count(d: Draw, x: Value, y: Value) -> Value:
    ones = ops.cast(d.b, _compare(d, x, y), I8)
    d.points[ones] = 0
    return ones


def _combine_bits(d: Draw, x: Value, y: Value) -> Value:
    x = _byte(d, x)
    y = _byte(d, _operand(d, x, y))
    z = (ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor)[d.number(0, 2)](d.b, x, y)
    d.points[z] = d.point(x)
    return z


def _reduce_min(d: Draw, x: Value, _: Value) -> Value:
    return ops.reduce_min(d.b, _byte(d, x), d.number(0, len(x.shape) - 1))


def _gather(d: Draw, x: Value, y: Value) -> Value:
    """Rows of a tensor at the places of the largest numbers of another one."""
    x, y = _image(d, _byte(d, x)), _byte(d, y)
    if x.shape[3] > LONGEST_ARGMAX:
        return x
    rows = _view(d, x, (1, 1, x.type.size // x.shape[3], x.shape[3]))
    found = _view(d, ops.argmax(d.b, rows, 3), (1, rows.shape[2]))
    many = y.type.size % x.shape[3] == 0
    table = _view(d, y, (1, x.shape[3], y.type.size // x.shape[3])) if many else d.const((1, x.shape[3], 4))
    return ops.gather(d.b, table, found)


def _scatter(d: Draw, x: Value, _: Value) -> Value:
    x = _byte(d, x)
    rows = _view(d, x, (1, *_two(d, x)))
    places = d.rng.permutation(rows.shape[1])[: d.number(1, rows.shape[1])].reshape(1, -1)
    source = ops.slice(d.b, rows, (0, 0, 0), (1, places.size, rows.shape[2])) if d.chance(0.5) else None
    source = d.const((1, places.size, rows.shape[2])) if source is None else source
    return ops.scatter(d.b, rows, d.b.const(places, I32), source)


def _enlarge(d: Draw, x: Value, _: Value) -> Value:
    """Twice the rows and columns, between pixels or by repeating them."""
    x = _image(d, _byte(d, x))
    x = x if x.shape[0] == 1 else ops.slice(d.b, x, (0, 0, 0, 0), (1, *x.shape[1:]))
    if d.chance(0.5):
        return ops.resize(d.b, x, scale=(4, 2, 4, 2), offset=(-1, -1), border=(1, 1), mode="NEAREST")
    sums = ops.resize(d.b, x, scale=(2, 1, 2, 1), offset=(-1, -1), border=(0, 0), mode="BILINEAR")
    y = ops.rescale(d.b, sums, I8, multiplier=[1 << 30], shift=[32])
    d.points[y] = d.point(x)
    return y


Make = Callable[[Draw, Value, Value], Value]
#: what may follow what, with its weight; the ends of a graph are those whose result no step reads
STEPS: Mapping[str, tuple[Make, float]] = {
    "table": (_table, 1.5),
    "requantize": (_requantize, 1.5),
    "to_short": (_to_short, 0.4),
    "reshape": (_reshape, 3.0),
    "transpose": (_transpose, 1.5),
    "slice": (_slice, 2.5),
    "pad": (_pad, 0.8),
    "concat": (_concat, 1.5),
    "tile": (_tile, 0.6),
    "add": (_add, 2.0),
    "multiply": (_multiply, 2.0),
    "extremum": (_extremum, 1.0),
    "reduce_max": (_reduce_max, 0.8),
    "reduce_sum": (_reduce_sum, 0.6),
    "convolve": (_convolve, 1.5),
    "depthwise": (_convolve_depthwise, 1.0),
    "pool": (_pool, 0.5),
    "average": (_average, 0.4),
    "matmul": (_matmul, 0.8),
}
ENDS: Mapping[str, tuple[Make, float]] = {"argmax": (_argmax, 0.3)}
#: what only Ethos-U85 has
CHOICES: Mapping[str, tuple[Make, float]] = {
    "select": (_select, 1.0),
    "reverse": (_reverse, 0.5),
    "count": (_count, 0.4),
    "bits": (_combine_bits, 0.3),
    "reduce_min": (_reduce_min, 0.4),
    "gather": (_gather, 0.4),
    "scatter": (_scatter, 0.3),
    "enlarge": (_enlarge, 0.4),
}
CHOICE_ENDS: Mapping[str, tuple[Make, float]] = {"compare": (_compare, 0.4)}
ALL = {**STEPS, **ENDS, **CHOICES, **CHOICE_ENDS}
