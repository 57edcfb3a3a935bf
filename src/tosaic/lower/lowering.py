"""The context of a lowering: a TOSA builder that also tracks layout, constants and qparams.

Records receive it as their first argument. A new one is made for every partition, so partitions share no state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from tosaic.core.errors import InputRefused, Unsupported
from tosaic.core.hints import Hint
from tosaic.core.specification import Specification
from tosaic.core.targets import Target
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.encode import encode
from tosaic.ir.graph import NUMPY, RANGES, Array, DType, Value
from tosaic.ir.qparams import QParams, multiplier, quantize
from tosaic.lower import interpolation
from tosaic.lower.layout import join, simplify
from tosaic.lower.tensor import Const, Stored, Tensor, broadcast, fill_gaps, inverse, of_value, with_value

#: one of the two kinds of tensor, or either of them: the result has the kind of the argument
AnyTensor = TypeVar("AnyTensor", bound=Tensor)

#: torch's NCHW view of a value that TOSA keeps as NHWC
NHWC = (0, 3, 1, 2)

#: what to do about a float input or result of the model
QUANTIZED_IO = Hint(
    'compile with `io="int8"`, for a program with quantized inputs and outputs',
    "compile with `--io int8`, for a program with quantized inputs and outputs",
)


def of_image(value: Value, q: QParams | None = None) -> Stored:
    """Make a logical NCHW tensor from an NHWC value."""
    n, h, w, c = value.shape
    return Stored((n, c, h, w), value, NHWC, q)


#: how many tensors a list of TOSA has at most, at any level
_MOST_TENSORS = 64


def concat_values(b: Builder, values: Sequence[Value], axis: int) -> Value:
    """Concatenate any number of values, in several steps if they are too many for one."""
    left: list[Value] = list(values)
    while len(left) > 1:
        groups = [left[i : i + _MOST_TENSORS] for i in range(0, len(left), _MOST_TENSORS)]
        left = [group[0] if len(group) == 1 else tosa.concat(b, group, axis) for group in groups]
    return left[0]


@dataclass
class Lowering:
    """Builds one TOSA graph.

    next_q          what the current node's result is quantized to, if that is known
    memory_order    the dimensions of the current node's first operand from outer to inner as torch has them in memory;
                    None if there is more or less in memory than the operand
    """

    target: Target
    spec: Specification
    b: Builder = field(default_factory=Builder)
    next_q: QParams | None = None
    memory_order: tuple[int, ...] | None = None
    _transposed: dict[tuple[Value, tuple[int, ...]], Value] = field(default_factory=dict)
    _reshaped: dict[tuple[Value, tuple[int, ...]], Value] = field(default_factory=dict)
    _fitted: dict[bytes, Sequence[interpolation.Table]] = field(default_factory=dict)

    @property
    def has_float(self) -> bool:
        return "FP" in self.spec.profiles

    # -- views ---------------------------------------------------------------------------------------------------

    def reshape(self, t: AnyTensor, shape: Sequence[int]) -> AnyTensor:
        """Give a tensor another shape; nothing is emitted."""
        new = tuple(int(d) for d in shape)
        if isinstance(t, Const):
            return replace(t, array=t.array.reshape(new), q=_reshape_axis(t, new))
        return replace(t, shape=new)

    @overload
    def permute(self, t: Stored, dims: Sequence[int]) -> Stored: ...
    @overload
    def permute(self, t: Const, dims: Sequence[int]) -> Const: ...
    @overload
    def permute(self, t: Tensor, dims: Sequence[int]) -> Tensor: ...
    def permute(self, t: Tensor, dims: Sequence[int]) -> Tensor:
        """Permute the dimensions of a tensor; nothing is emitted unless a reshape was pending."""
        order = tuple(int(d) % max(t.rank, 1) for d in dims)
        if isinstance(t, Const):
            q = t.q if t.q is None or t.q.axis is None else replace(t.q, axis=order.index(t.q.axis))
            return replace(t, array=np.asarray(t.array.transpose(order), order="C"), q=q)
        shape = tuple(t.shape[d] for d in order)
        if t.has_reshape and _keeps_order(t.shape, order):
            return replace(t, shape=shape)
        t = self.absorb_reshape(t)
        return replace(t, shape=shape, perm=tuple(t.perm[d] for d in order))

    def absorb_reshape(self, t: Stored) -> Stored:
        """Apply a pending reshape: without a transpose, where it only splits and merges neighboring dimensions."""
        if not t.has_reshape:
            return t
        axes = None if t.q is not None and t.q.axis is not None else join(t.viewed, t.perm, t.shape)
        if axes is None:
            return self.materialize(t)
        return replace(t, value=self._reshape(t.value, tuple(t.shape[a] for a in axes)), perm=inverse(axes))

    def store(self, t: Tensor) -> Stored:
        """Emit a constant; apply the pending reshape of any other tensor."""
        return of_value(self.emit(t), t.q) if isinstance(t, Const) else self.absorb_reshape(t)

    def materialize(self, t: Stored) -> Stored:
        """Apply the pending permutation and reshape."""
        if t.is_materialized:
            return t
        value = self._reshape(self._transpose(t.value, t.perm), t.shape)
        q = t.q
        if q is not None and q.axis is not None:
            axis = t.perm.index(q.axis)
            if t.viewed[axis:] != t.shape[len(t.shape) - (len(t.viewed) - axis) :]:
                raise Unsupported("a per-channel accumulator cannot be reshaped across its channels")
            q = replace(q, axis=axis - len(t.viewed) + len(t.shape))
        return replace(t, value=value, perm=tuple(range(value.rank)), q=q)

    def to_layout(self, t: Tensor, perm: tuple[int, ...]) -> Value:
        """Return a value v with `transpose(v, perm)` equal to the tensor."""
        if isinstance(t, Const):
            return self.constant(t.array.transpose(inverse(perm)), t.dtype)
        t = self.absorb_reshape(t)
        return self._transpose(t.value, tuple(t.perm[i] for i in inverse(perm)))

    def emit(self, t: Tensor) -> Value:
        """Return the value in logical layout (a constant is emitted)."""
        return self.constant(t.array, t.dtype) if isinstance(t, Const) else self.materialize(t).value

    def _transpose(self, value: Value, perm: tuple[int, ...]) -> Value:
        if perm == tuple(range(value.rank)):
            return value
        if _keeps_order(value.shape, perm):
            return self._reshape(value, tuple(value.shape[p] for p in perm))
        key = (value, perm)
        if key not in self._transposed:
            shape, order = (value.shape, perm) if value.rank <= 4 else simplify(value.shape, perm)
            moved = self._transpose_parts(self._reshape(value, shape), order)
            self._transposed[key] = self._reshape(moved, tuple(value.shape[p] for p in perm))
        return self._transposed[key]

    def _transpose_parts(self, value: Value, order: tuple[int, ...]) -> Value:
        """Emit TRANSPOSE: one for each part of a dimension that is too long for an NPU."""
        long = next((a for a, n in enumerate(value.shape) if n > _LONGEST and self.target.is_npu), None)
        if long is None:
            return tosa.transpose(self.b, value, order)
        parts: list[Value] = []
        for start in range(0, value.shape[long], _LONGEST):
            size = [min(_LONGEST, n - start) if a == long else n for a, n in enumerate(value.shape)]
            begin = [start if a == long else 0 for a in range(value.rank)]
            parts.append(self._transpose_parts(tosa.slice(self.b, value, tuple(begin), tuple(size)), order))
        return concat_values(self.b, parts, order.index(long))

    def _reshape(self, value: Value, shape: tuple[int, ...]) -> Value:
        if value.shape == shape:
            return value
        if value.op is not None and value.op.kind == "RESHAPE":
            return self._reshape(value.op.inputs[0], shape)
        key = (value, shape)
        if key not in self._reshaped:
            self._reshaped[key] = tosa.reshape(self.b, value, shape)
        return self._reshaped[key]

    # -- constants -----------------------------------------------------------------------------------------------

    def constant(self, array: Array, dtype: DType) -> Value:
        """Emit a CONST."""
        # ascontiguousarray would give a scalar a dimension.
        return self.b.const(np.asarray(array, order="C"), dtype)

    def scalar(self, number: float, like: Tensor) -> Const:
        """Make a constant of one element with the dtype and rank of another tensor."""
        kind = np.float64 if like.is_float else NUMPY[like.dtype]
        return Const(encode(np.full((1,) * like.rank, number, kind), like.dtype), like.dtype)

    # -- operands of elementwise ops -----------------------------------------------------------------------------

    def align(self, *tensors: Tensor) -> tuple[list[Value], Stored]:
        """Return values of equal rank that broadcast in TOSA, and a tensor with the view of their result."""
        shape = broadcast(*(t.shape for t in tensors))
        if self.target.is_npu and len(shape) > _VELA_RANK and _starts_with_number(tensors, math.prod(shape)):
            flat = (math.prod(shape[:-3]), *shape[-3:])
            values = [self.emit(self.reshape(t, (1,) * len(flat) if t.size == 1 else flat)) for t in tensors]
            return values, Stored(shape, values[-1], tuple(range(len(flat))))
        lead = self._lead(tensors, shape)
        if lead is None:
            values = [self.emit(self.reshape(t, _pad_rank(t.shape, len(shape)))) for t in tensors]
            out = Stored(shape, values[0], tuple(range(len(shape))))
        else:
            values = [self._follow(t, lead) for t in tensors]
            out = lead
        return values, out

    def _lead(self, tensors: Sequence[Tensor], shape: tuple[int, ...]) -> Stored | None:
        """Find the tensor whose pending view fits all others; None if every view must be materialized."""
        for lead in tensors:
            if isinstance(lead, Const) or lead.is_materialized or lead.shape != shape:
                continue
            if not lead.has_reshape or all(_same_view(t, lead) or t.size == 1 for t in tensors):
                return lead
        return None

    def _follow(self, t: Tensor, lead: Stored) -> Value:
        if isinstance(t, Stored) and _same_view(t, lead):
            return t.value
        rank = lead.value.rank
        if t.size == 1:
            return self.emit(self.reshape(t, (1,) * rank))
        return self.to_layout(self.reshape(t, _pad_rank(t.shape, rank)), lead.perm)

    # -- rescaling -----------------------------------------------------------------------------------------------

    def rescale(
        self,
        value: Value,
        dtype: DType,
        factors: Sequence[float],
        in_zp: int = 0,
        out_zp: int = 0,
    ) -> Value:
        """Emit RESCALE by one factor, or by one per element of the last axis. 48-bit accumulators use 16-bit ones."""
        scale32 = value.dtype is not DType.I48
        pairs = [multiplier(_bound_factor(f, value.dtype, dtype), 31 if scale32 else 15) for f in factors]
        return tosa.rescale(
            self.b,
            value,
            dtype,
            multiplier=[m for m, _ in pairs],
            shift=[s for _, s in pairs],
            in_zp=in_zp,
            out_zp=out_zp,
            scale32=scale32,
            per_channel=len(pairs) > 1,
        )

    @overload
    def quantize(self, t: Stored, q: QParams) -> Stored: ...
    @overload
    def quantize(self, t: Const, q: QParams) -> Const: ...
    @overload
    def quantize(self, t: Tensor, q: QParams) -> Tensor: ...
    def quantize(self, t: Tensor, q: QParams) -> Tensor:
        """Quantize a tensor: emit its pending function and bounds; its layout stays pending."""
        return self._quantize_stored(t, q) if isinstance(t, Stored) else self._quantize_const(t, q)

    def _quantize_const(self, t: Const, q: QParams) -> Const:
        """Quantize a constant."""
        reals = t.real().astype(np.float32)
        if np.isnan(reals).any():
            raise Unsupported("a constant contains NaN", "remove NaN from the parameters and buffers of the model")
        return Const(quantize(reals, q).astype(NUMPY[q.dtype]), q.dtype)

    def _quantize_stored(self, t: Stored, q: QParams) -> Stored:
        """Quantize a computed tensor: by TABLE, RESCALE or CLAMP; emit nothing if it already has these qparams."""
        if t.q is None:
            raise InputRefused(
                "the float input is quantized on the CPU before it reaches the NPU",
                QUANTIZED_IO,
                kind="float",
            )
        if q.dtype is DType.I32:
            return self._quantize_to_int32(t, q)
        if t.lut is not None:
            return with_value(t, self._tabulate(t.value, t.lut, q))
        if t.is_code:
            same = t.q.same_grid(q)
            value = t.value if same else self.rescale(t.value, q.dtype, [t.q.s / q.s], t.q.zp, q.zp)
            return with_value(t, self._bound(value, q, None, t.q if same else None))
        if t.q.axis is not None and t.q.axis != t.value.rank - 1:
            raise Unsupported("a per-channel result can only be quantized with its channels last")
        value = self.rescale(t.value, q.dtype, [s / q.s for s in t.q.scale], 0, q.zp)
        return with_value(t, self._bound(value, q, t.clamp, None))

    def _quantize_to_int32(self, t: Stored, q: QParams) -> Stored:
        """Quantize to 32 bits a tensor whose largest number is known: RESCALE is not defined beyond 30 bits."""
        if not self.target.stores_int32:
            raise Unsupported("the target does not store numbers that are quantized to 32 bits", _USE_INT16)
        most = find_most(t)
        if most is None or t.clamp is not None:
            raise Unsupported("only sums and functions of 8 or 16 bits can be quantized to 32 bits", _USE_INT16)
        if q.zp:
            raise Unsupported("32-bit numbers have no zero point", "use a symmetric quantization")
        if most / q.s > _REACH:
            raise Unsupported(
                f"numbers up to {most:g} in steps of {q.s:g} need more than 30 bits",
                "give the observer a larger `eps`, its smallest scale",
            )
        if t.lut is not None:
            tables, fine = self.fit(t.lut, q), _find_finest(t.lut)
            value = self._add_tables(t.value, tables)
            value = self.rescale(value, DType.I32, [fine.s * 2.0**-interpolation.FRACTION / q.s])
        else:
            value = self.rescale(t.value, DType.I32, [t.qparams.s / q.s], t.qparams.zp)
        return replace(with_value(t, value), reach=most / q.s + 1.0)

    def _add_tables(self, value: Value, tables: Sequence[interpolation.Table]) -> Value:
        """Emit tables and their sum, with all bits of TABLE."""
        if value.dtype is DType.I8:
            value = self.rescale(value, DType.I16, [256.0])
        total, *others = (tosa.table(self.b, self._approach(value, table), table.entries) for table in tables)
        for other in others:
            total = tosa.add(self.b, total, other)
        return total

    def _tabulate(self, value: Value, lut: npt.NDArray[np.float32], q: QParams) -> Value:
        if not {value.dtype, q.dtype} <= {DType.I8, DType.I16}:
            raise Unsupported(
                f"there is no lookup table from {value.dtype.torch_name} to {q.dtype.torch_name}", "quantize to int8"
            )
        if value.dtype is DType.I16 or q.dtype is DType.I16:
            return self._interpolate(value, lut, q)
        codes = quantize(fill_gaps(lut), q)
        low, high = int(codes.min()), int(codes.max())
        if np.array_equal(codes, np.clip(np.arange(-128, 128), low, high)):
            return value if (low, high) == (-128, 127) else tosa.clamp(self.b, value, low, high)
        return tosa.table(self.b, value, codes.astype(np.int8))

    def fit(self, lut: npt.NDArray[np.float32], q: QParams) -> Sequence[interpolation.Table]:
        """Find the tables for a function of 16-bit values; their sum has finer steps if the result has 8 bits."""
        q = _find_finest(lut) if q.dtype is DType.I32 else q
        with np.errstate(over="ignore"):
            steps = np.clip(fill_gaps(lut).astype(np.float64) / q.s, q.qmin - q.zp, q.qmax - q.zp) * _refine(q)
        key = steps.tobytes()
        if key not in self._fitted:
            self._fitted[key] = interpolation.fit(steps) if len(steps) > 256 else [interpolation.exact(steps)]
        return self._fitted[key]

    def _interpolate(self, value: Value, lut: npt.NDArray[np.float32], q: QParams) -> Value:
        """Emit tables of 16 bits, and their sum."""
        tables = self.fit(lut, q)
        if value.dtype is DType.I8:
            value = self.rescale(value, DType.I16, [256.0])
        return self._sum_up([self._look_up(self._approach(value, table), table.entries) for table in tables], q)

    def apply_to_sum(
        self, t: Stored, function: Callable[[interpolation.Steps], interpolation.Steps], q: QParams
    ) -> Stored:
        """Emit tables for a function of a sum of 32 bits, which is not negative, and quantize its result."""
        assert t.reach is not None

        def count_steps(numbers: interpolation.Steps) -> interpolation.Steps:
            return function(numbers * t.qparams.s) * (_refine(q) / q.s)

        bounds = ((q.qmin - q.zp) * _refine(q), (q.qmax - q.zp) * _refine(q))
        parts = interpolation.fit_parts(count_steps, t.reach, bounds)
        found = [self._look_up(self._enter(t.value, part, t.reach), part.entries) for part in parts]
        return replace(with_value(t, self._sum_up(found, q), q), reach=None)

    def _enter(self, value: Value, part: interpolation.Part, most: float) -> Value:
        """Emit numbers of 32 bits in the steps of a part: RESCALE is not defined for all that would saturate."""
        if part.end < most:
            end = self.b.number(math.ceil(part.end), value, DType.I32)
            value = tosa.minimum(self.b, value, end)
        return self.rescale(value, DType.I16, [2.0**15 / part.end])

    def _sum_up(self, found: Sequence[Value], q: QParams) -> Value:
        """Emit the sum of what was found in tables, in the steps of the result."""
        first, *others = found
        if not others and q.dtype is DType.I16:
            return first
        total = self.rescale(first, DType.I32, [1.0])
        for other in others:
            total = tosa.add(self.b, total, self.rescale(other, DType.I32, [1.0]))
        return self._bound(self.rescale(total, q.dtype, [1.0 / _refine(q)], 0, q.zp), q, None, None)

    def _look_up(self, value: Value, entries: npt.NDArray[np.int16]) -> Value:
        """Emit TABLE and the rounding of its result to 16 bits."""
        return self.rescale(tosa.table(self.b, value, entries), DType.I16, [2.0**-interpolation.FRACTION])

    def _approach(self, value: Value, table: interpolation.Table) -> Value:
        """Emit the distance of numbers from the center of a table, in its steps."""
        if table.center:
            # Vela makes one command of a difference of two rescaled operands.
            center = self.b.number(table.center, value, DType.I16)
            operands = (self.rescale(v, DType.I32, [1.0]) for v in (value, center))
            return self.rescale(tosa.sub(self.b, *operands), DType.I16, [2.0**table.zoom])
        return self.rescale(value, DType.I16, [2.0**table.zoom]) if table.zoom else value

    def emit_table(self, t: Stored) -> Value:
        """Emit a TABLE for a pending function whose results are int8 numbers or booleans."""
        assert t.lut is not None
        return tosa.table(self.b, t.value, t.lut.astype(np.int8))

    def _bound(self, value: Value, q: QParams, clamp: tuple[float, float] | None, known: QParams | None) -> Value:
        """Emit CLAMP to the range of `q` and to pending real bounds, if that is tighter than saturation."""
        least, most = RANGES[q.dtype]
        low, high = q.qmin, q.qmax
        if clamp is not None:
            codes = quantize(np.asarray(clamp, np.float32), q)
            low, high = max(low, int(codes[0])), min(high, int(codes[1]))
        if known is not None and known.qmin >= low and known.qmax <= high:
            return value
        if low <= least and high >= most:
            return value
        return tosa.clamp(self.b, value, low, high)

    def codes(self, t: AnyTensor, what: str = "input") -> AnyTensor:
        """Return the tensor itself if it is quantized to 8 or 16 bits; else raise with the reason."""
        if t.is_code or (t.is_const and t.q is not None):
            return t
        if t.is_float:
            raise Unsupported(
                f"its {what} is float, and the NPU only computes with integers", "quantize this part of the model"
            )
        if t.q is None:
            raise Unsupported(f"its {what} is {t.dtype.torch_name} and not quantized", "cast it to float32 before")
        raise Unsupported(
            f"its {what} is not quantized", "quantize the output of the operator before it, as Tosaic's quantizer does"
        )

    def out_q(self, of: str = "operator") -> QParams:
        """Return what the current node's result is quantized to, for a lowering that depends on it."""
        if self.next_q is None:
            raise Unsupported("its result is not quantized", f"quantize the output of the {of}")
        return self.next_q


def find_most(t: Tensor) -> float | None:
    """Find a bound of the magnitude of quantized numbers; None if it is not known, as that of a sum of products."""
    if isinstance(t, Const):
        return float(np.abs(t.real()).max(initial=0.0))
    if t.lut is not None:
        return float(np.abs(fill_gaps(t.lut.astype(np.float32))).max())
    if t.is_code:
        return max(t.qparams.qmax - t.qparams.zp, t.qparams.zp - t.qparams.qmin) * t.qparams.s
    return None if t.reach is None else t.reach * t.qparams.s


def _find_finest(lut: npt.NDArray[np.float32]) -> QParams:
    """Find the qparams of 16 bits that hold all results of a function."""
    least, most = RANGES[DType.I16]
    largest = float(np.abs(fill_gaps(lut)).max()) or 1.0
    return QParams((largest / most,), (0,), DType.I16, least, most)


def _refine(q: QParams) -> float:
    """Return how much finer the steps of 16-bit tables are than those of their result."""
    return 1.0 if q.dtype is DType.I16 else 128.0


_USE_INT16 = "quantize its result to int16"

#: the largest number that RESCALE is used for
_REACH = 2.0**29

#: the longest dimension that Vela 5.2 transposes
_LONGEST = 1 << 16

#: the largest factors with which RESCALE is defined for all numbers of a type
_MOST = {DType.I8: 2.0**22 * (1.0 - 2.0**-31), DType.I16: 2.0**15 * (1.0 - 2.0**-31)}


def _bound_factor(factor: float, before: DType, after: DType) -> float:
    """Bound a factor to what RESCALE can apply to all numbers of a type; 8 and 16 bits saturate beyond that anyway."""
    most = _MOST.get(before, math.inf)
    if factor > most and after not in (DType.I8, DType.I16):
        raise Unsupported(f"a rescale by {factor:g} is out of range ({most:g} at most)", "check the calibration data")
    return min(factor, most)


#: Vela 5.2 splits an operation on more dimensions into several commands, and in all but the first of them it reads past
#: a scalar that is not the last operand.
_VELA_RANK = 4


def _starts_with_number(tensors: Sequence[Tensor], size: int) -> bool:
    """Tell whether an operand before the last has one element, and the others have all of the result's."""
    return (
        any(t.size == 1 for t in tensors[:-1])
        and tensors[-1].size == size
        and all(t.size in (1, size) for t in tensors)
    )


def _same_view(a: Tensor, b: Stored) -> bool:
    return isinstance(a, Stored) and (a.value.shape, a.perm, a.shape) == (b.value.shape, b.perm, b.shape)


def _keeps_order(shape: tuple[int, ...], perm: tuple[int, ...]) -> bool:
    """Tell whether a permutation only moves dimensions of size one, and so is a reshape."""
    kept = [p for p in perm if shape[p] != 1]
    return kept == sorted(kept)


def _pad_rank(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _reshape_axis(t: Const, shape: tuple[int, ...]) -> QParams | None:
    """Return the qparams of a reshaped per-channel constant: its channel axis must survive the reshape."""
    if t.q is None or t.q.axis is None:
        return t.q
    before = int(np.prod(t.shape[: t.q.axis], dtype=np.int64))
    seen = 1
    for axis, size in enumerate(shape):
        if seen == before and size == t.shape[t.q.axis]:
            return replace(t.q, axis=axis)
        seen *= size
    raise Unsupported("a per-channel constant is reshaped across its channels")
