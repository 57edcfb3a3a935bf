"""Where the largest or smallest numbers are."""

from __future__ import annotations

from math import prod

import numpy as np

from tosaic.core.errors import Unsupported
from tosaic.ir import ops as tosa
from tosaic.ir.graph import DType, Value
from tosaic.lower import sorting
from tosaic.lower.arguments import integers
from tosaic.lower.lowering import Lowering
from tosaic.lower.tensor import Stored, Tensor, of_value, with_value

#: the table that reverses the order of int8 numbers
_MIRROR = np.arange(127, -129, -1).astype(np.int8)

LENGTH = f"argmax finds the largest of at most {sorting.MOST_PLACES} numbers"
LENGTH_FIX = "use an Ethos-U85, or argmax on the CPU"
SIXTEEN_BITS = "an argmax is of 8 or 16 bits"
SIXTEEN_BITS_FIX = "use an Ethos-U85, or cast to float32 and quantize that"


def check_size(lo: Lowering, size: int) -> str:
    """Return what is wrong with finding the largest of so many numbers."""
    fits = lo.target.longest_argmax is None or size <= sorting.MOST_PLACES
    return "" if fits else f"it is among {size}"


def _fits(lo: Lowering, size: int, places: int) -> bool:
    """Tell whether the target has an ARGMAX of so many numbers, for so many results."""
    most, most_places = lo.target.longest_argmax, lo.target.most_argmaxes
    return (most is None or size <= most) and (most_places is None or places <= most_places)


def find(lo: Lowering, self: Tensor, dim: int | None, keepdim: bool, highest: bool) -> Tensor:
    """Lower to ARGMAX, which is int32: `driver.carry` casts what leaves a delegate."""
    x = self if self.q is None else lo.require_quantized(self)
    everything = dim is None or not x.rank
    if everything:
        x = lo.reshape(x, (x.size,))
    d = 0 if dim is None else dim % x.rank
    rest = [n for i, n in enumerate(x.shape) if i != d]
    kept = [1] * self.rank if everything else [1 if i == d else n for i, n in enumerate(x.shape)]
    shape = kept if keepdim else rest
    if x.dtype is DType.I32:
        return lo.reshape(_find_int32(lo, lo.store(x), d, highest), shape)
    if sorting.is_packed(x) and not _fits(lo, x.shape[d], prod(rest)):
        return lo.reshape(sorting.find_ranks(lo, x, range(1), d, highest)[1], shape)
    if lo.target.is_npu:
        # The dimension goes last and all others are merged: Ethos-U55 supports no other form.
        last = lo.permute(x, [*(i for i in range(x.rank) if i != d), d])
        found = _emit_argmax(lo, lo.emit(lo.reshape(last, (1, 1, prod(rest), x.shape[d]))), 3, highest)
    else:
        found = _emit_argmax(lo, lo.emit(x), d, highest)
    if "INT" in lo.spec.profiles:
        return lo.reshape(of_value(found), shape)
    return of_value(integers(lo, of_value(found), shape))


def _emit_argmax(lo: Lowering, value: Value, axis: int, highest: bool) -> Value:
    """Emit ARGMAX, of numbers in reverse order to find the smallest one."""
    if value.dtype not in (DType.I8, DType.I16) and not lo.target.has_booleans:
        raise Unsupported(f"{SIXTEEN_BITS}; here it is of {value.dtype.torch_name}", SIXTEEN_BITS_FIX)
    value = value if highest else mirror(lo, value)
    if value.dtype is DType.I16 and not lo.target.has_booleans:
        # The difference to the largest number is zero there and negative elsewhere, so 8 bits may saturate.
        best = tosa.reduce_max(lo.b, value, axis)
        value = lo.rescale(tosa.sub(lo.b, *(lo.rescale(v, DType.I32, [1.0]) for v in (value, best))), DType.I8, [1.0])
    return tosa.argmax(lo.b, value, axis)


def mirror(lo: Lowering, value: Value) -> Value:
    """Reverse the order of numbers."""
    if value.dtype is DType.I8:
        return tosa.table(lo.b, value, _MIRROR)
    if value.dtype is not DType.I16:
        return tosa.negate(lo.b, value)
    # The number comes last: Vela reads past one that is the first operand.
    minus, one = (lo.b.number(n, value, DType.I32) for n in (-1, 1))
    wide = tosa.mul(lo.b, lo.rescale(value, DType.I32, [1.0]), minus)
    return lo.rescale(tosa.sub(lo.b, wide, one), DType.I16, [1.0])


def _find_int32(lo: Lowering, x: Stored, dim: int, highest: bool) -> Stored:
    """Find the first position of the extreme among int32 numbers, which ARGMAX does not take; the dimension is kept."""
    axis, size = x.perm[dim], x.shape[dim]
    best = (tosa.reduce_max if highest else tosa.reduce_min)(lo.b, x.value, axis)
    places = np.arange(size).reshape([size if i == axis else 1 for i in range(x.value.rank)])
    nowhere = lo.b.number(size, x.value, DType.I32)
    where = tosa.select(lo.b, tosa.equal(lo.b, x.value, best), lo.constant(places, DType.I32), nowhere)
    first = with_value(x, tosa.reduce_min(lo.b, where, axis))
    return Stored(tuple(1 if i == dim else n for i, n in enumerate(x.shape)), first.value, x.perm)
