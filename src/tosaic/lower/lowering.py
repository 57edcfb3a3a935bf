"""The context of a lowering: a TOSA builder that also knows layout, constants and quantized meaning.

Records receive it as their first argument. It is made anew for every region, so nothing leaks between regions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from tosaic.core.errors import FloatInput, Unsupported
from tosaic.core.hints import Hint
from tosaic.core.specification import Specification
from tosaic.core.targets import Target
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.encode import encode
from tosaic.ir.graph import NUMPY, RANGES, Array, DType, Value
from tosaic.ir.qparams import QParams, multiplier, quantize
from tosaic.lower.layout import join, simplify
from tosaic.lower.tensor import Tensor, broadcast, fill_gaps, inverse, of_array, of_value, with_value

View: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]

#: torch's NCHW seen on a value that TOSA keeps as NHWC
NHWC = (0, 3, 1, 2)


@dataclass
class Lowering:
    """Builds one TOSA graph. `next_q` is what the current node's result is quantized to, if that is known."""

    target: Target
    spec: Specification
    b: Builder = field(default_factory=Builder)
    next_q: QParams | None = None
    _moved: dict[tuple[Value, tuple[int, ...]], Value] = field(default_factory=dict)
    _shaped: dict[tuple[Value, tuple[int, ...]], Value] = field(default_factory=dict)

    @property
    def has_float(self) -> bool:
        return "FP" in self.spec.profiles

    # -- views ---------------------------------------------------------------------------------------------------

    def reshape(self, t: Tensor, shape: Sequence[int]) -> Tensor:
        """A view with another shape; nothing is emitted."""
        new = tuple(int(d) for d in shape)
        if t.is_const:
            assert t.array is not None
            return replace(t, shape=new, array=t.array.reshape(new), q=_reshape_axis(t, new))
        return replace(t, shape=new)

    def permute(self, t: Tensor, dims: Sequence[int]) -> Tensor:
        """A view with permuted dimensions; nothing is emitted unless a reshape was pending."""
        order = tuple(int(d) % max(t.rank, 1) for d in dims)
        shape = tuple(t.shape[d] for d in order)
        if t.is_const:
            assert t.array is not None
            q = t.q if t.q is None or t.q.axis is None else replace(t.q, axis=order.index(t.q.axis))
            return replace(t, shape=shape, array=np.asarray(t.array.transpose(order), order="C"), q=q)
        if t.has_reshape and _keeps_order(t.shape, order):
            return replace(t, shape=shape)
        t = self.unfold(t)
        return replace(t, shape=shape, perm=tuple(t.perm[d] for d in order))

    def unfold(self, t: Tensor) -> Tensor:
        """The same tensor without a pending reshape: the value's own, where that only cuts and joins neighbors."""
        if not t.has_reshape:
            return t
        axes = None if t.q is not None and t.q.axis is not None else join(t.viewed, t.perm, t.shape)
        if axes is None:
            return self.settle(t)
        assert t.value is not None
        return replace(t, value=self._shape(t.value, tuple(t.shape[a] for a in axes)), perm=inverse(axes))

    def settle(self, t: Tensor) -> Tensor:
        """The same tensor with nothing pending in its view."""
        if t.is_settled:
            return t
        assert t.value is not None
        value = self._shape(self._move(t.value, t.perm), t.shape)
        q = t.q
        if q is not None and q.axis is not None:
            axis = t.perm.index(q.axis)
            if t.viewed[axis:] != t.shape[len(t.shape) - (len(t.viewed) - axis) :]:
                raise Unsupported("a per-channel accumulator cannot be reshaped across its channels")
            q = replace(q, axis=axis - len(t.viewed) + len(t.shape))
        return replace(t, value=value, perm=tuple(range(value.rank)), q=q)

    def arrange(self, t: Tensor, perm: tuple[int, ...]) -> Value:
        """A value v with `transpose(v, perm)` equal to the tensor."""
        if t.is_const:
            assert t.array is not None
            return self.constant(t.array.transpose(inverse(perm)), t.dtype)
        t = self.unfold(t)
        assert t.value is not None
        back = inverse(perm)
        return self._move(t.value, tuple(t.perm[i] for i in back))

    def emit(self, t: Tensor) -> Value:
        """The value in logical layout (a constant is emitted)."""
        if t.is_const:
            assert t.array is not None
            return self.constant(t.array, t.dtype)
        value = self.settle(t).value
        assert value is not None
        return value

    def _move(self, value: Value, perm: tuple[int, ...]) -> Value:
        if perm == tuple(range(value.rank)):
            return value
        if _keeps_order(value.shape, perm):
            return self._shape(value, tuple(value.shape[p] for p in perm))
        key = (value, perm)
        if key not in self._moved:
            shape, order = (value.shape, perm) if value.rank <= 4 else simplify(value.shape, perm)
            moved = tosa.transpose(self.b, self._shape(value, shape), order)
            self._moved[key] = self._shape(moved, tuple(value.shape[p] for p in perm))
        return self._moved[key]

    def _shape(self, value: Value, shape: tuple[int, ...]) -> Value:
        if value.shape == shape:
            return value
        if value.op is not None and value.op.kind == "RESHAPE":
            return self._shape(value.op.inputs[0], shape)
        key = (value, shape)
        if key not in self._shaped:
            self._shaped[key] = tosa.reshape(self.b, value, shape)
        return self._shaped[key]

    # -- constants -----------------------------------------------------------------------------------------------

    def constant(self, array: Array, dtype: DType) -> Value:
        # ascontiguousarray would give a number a dimension.
        return self.b.const(np.asarray(array, order="C"), dtype)

    def scalar(self, number: float, like: Tensor) -> Tensor:
        """A constant of one element with the dtype and rank of another tensor."""
        kind = np.float64 if like.is_float else NUMPY[like.dtype]
        return of_array(encode(np.full((1,) * like.rank, number, kind), like.dtype), like.dtype)

    # -- operands of elementwise ops -----------------------------------------------------------------------------

    def align(self, *tensors: Tensor) -> tuple[list[Value], Tensor]:
        """Values of equal rank that broadcast in TOSA, and a tensor that shows the view of their result."""
        shape = broadcast(*(t.shape for t in tensors))
        if self.target.is_npu and len(shape) > _VELA_RANK and _starts_with_number(tensors, math.prod(shape)):
            flat = (math.prod(shape[:-3]), *shape[-3:])
            values = [self.emit(self.reshape(t, (1,) * len(flat) if t.size == 1 else flat)) for t in tensors]
            return values, Tensor(shape, values[-1].dtype, values[-1], perm=tuple(range(len(flat))))
        lead = self._lead(tensors, shape)
        if lead is None:
            values = [self.emit(self.reshape(t, _pad_rank(t.shape, len(shape)))) for t in tensors]
            out = Tensor(shape, values[0].dtype, values[0], perm=tuple(range(len(shape))))
        else:
            values = [self._follow(t, lead) for t in tensors]
            out = lead
        return values, out

    def _lead(self, tensors: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor | None:
        """The tensor whose pending view all others can take over, None where everything has to be settled."""
        moving = [t for t in tensors if not t.is_const]
        for lead in moving:
            if lead.is_settled or lead.shape != shape:
                continue
            if not lead.has_reshape or all(_same_view(t, lead) or t.size == 1 for t in tensors):
                return lead
        return None

    def _follow(self, t: Tensor, lead: Tensor) -> Value:
        assert lead.value is not None
        if t.value is not None and _same_view(t, lead):
            return t.value
        rank = lead.value.rank
        if t.size == 1:
            return self.emit(self.reshape(t, (1,) * rank))
        return self.arrange(self.reshape(t, _pad_rank(t.shape, rank)), lead.perm)

    # -- rescaling -----------------------------------------------------------------------------------------------

    def rescale(
        self,
        value: Value,
        dtype: DType,
        factors: Sequence[float],
        in_zp: int = 0,
        out_zp: int = 0,
    ) -> Value:
        """RESCALE by one factor, or by one per element of the last axis. Sums of 48 bits take factors of 16 bits."""
        scale32 = value.dtype is not DType.I48
        pairs = [multiplier(_bounded(f, value.dtype, dtype), 31 if scale32 else 15) for f in factors]
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

    def quantize(self, t: Tensor, q: QParams) -> Tensor:
        """The codes of a tensor under `q`: the place where everything pending becomes an operator."""
        if t.is_const:
            reals = t.real().astype(np.float32)
            if np.isnan(reals).any():
                raise Unsupported("a constant holds NaN", "remove NaN from the parameters and buffers of the model")
            codes = quantize(reals, q)
            return of_array(codes.astype(NUMPY[q.dtype]), q.dtype)
        assert t.value is not None
        if t.q is None:
            raise FloatInput(
                "an input of the model is quantized here, on the border of the NPU",
                Hint(
                    'compile with `io="int8"` to feed the NPU directly',
                    "compile with `--io int8` to feed the NPU directly",
                ),
            )
        if t.lut is not None:
            return with_value(t, self._tabulate(t, q))
        if t.is_code:
            same = t.q.same_grid(q)
            value = t.value if same else self.rescale(t.value, q.dtype, [t.q.s / q.s], t.q.zp, q.zp)
            return with_value(t, self._bound(value, q, None, t.q if same else None))
        if t.q.axis is not None and t.q.axis != t.value.rank - 1:
            raise Unsupported("a per-channel result can only be quantized with its channels last")
        value = self.rescale(t.value, q.dtype, [s / q.s for s in t.q.scale], 0, q.zp)
        return with_value(t, self._bound(value, q, t.clamp, None))

    def _tabulate(self, t: Tensor, q: QParams) -> Value:
        assert t.value is not None and t.lut is not None
        if t.dtype is not DType.I8 or q.dtype is not DType.I8:
            raise Unsupported(
                f"a table from {t.dtype.torch_name} to {q.dtype.torch_name} is not available", "quantize to int8"
            )
        codes = quantize(fill_gaps(t.lut), q)
        low, high = int(codes.min()), int(codes.max())
        if np.array_equal(codes, np.clip(np.arange(-128, 128), low, high)):
            return t.value if (low, high) == (-128, 127) else tosa.clamp(self.b, t.value, low, high)
        return tosa.table(self.b, t.value, codes.astype(np.int8))

    def _bound(self, value: Value, q: QParams, clamp: tuple[float, float] | None, known: QParams | None) -> Value:
        """CLAMP codes to the range of `q` and to pending real bounds, where that says more than saturation does."""
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

    def codes(self, t: Tensor, what: str = "input") -> Tensor:
        """The tensor itself if it is quantized to 8 or 16 bits; else the reason why the op cannot be here."""
        if t.is_code or (t.is_const and t.q is not None):
            return t
        if t.is_float:
            raise Unsupported(
                f"its {what} is float and the NPU is an integer device", "quantize this part of the model"
            )
        raise Unsupported(f"its {what} is not quantized", "let the quantizer annotate the operator before it")


#: the largest factors with which RESCALE is defined for all numbers of a type
_MOST = {DType.I8: 2.0**22 * (1.0 - 2.0**-31), DType.I16: 2.0**15 * (1.0 - 2.0**-31)}


def _bounded(factor: float, before: DType, after: DType) -> float:
    """A factor that RESCALE can apply to every number of a type: one that is larger saturates 8 and 16 bits as well."""
    most = _MOST.get(before, math.inf)
    if factor > most and after not in (DType.I8, DType.I16):
        raise Unsupported(f"a rescale by {factor:g} is out of range ({most:g} at most)", "check the calibration data")
    return min(factor, most)


#: Vela 5.2 makes several commands of an operation on more dimensions, and in all but the first of them it reads past a
#: number that is not the last operand.
_VELA_RANK = 4


def _starts_with_number(tensors: Sequence[Tensor], size: int) -> bool:
    """Whether an operand before the last has one element, and the others have all of the result's."""
    return (
        any(t.size == 1 for t in tensors[:-1])
        and tensors[-1].size == size
        and all(t.size in (1, size) for t in tensors)
    )


def _same_view(a: Tensor, b: Tensor) -> bool:
    if a.value is None or b.value is None:
        return False
    return (a.value.shape, a.perm, a.shape) == (b.value.shape, b.perm, b.shape)


def _keeps_order(shape: tuple[int, ...], perm: tuple[int, ...]) -> bool:
    """Whether a permutation only moves dimensions of size one, and so is a reshape."""
    kept = [p for p in perm if shape[p] != 1]
    return kept == sorted(kept)


def _pad_rank(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _reshape_axis(t: Tensor, shape: tuple[int, ...]) -> QParams | None:
    """The parameters of a reshaped per-channel constant: its channel axis must survive the reshape."""
    if t.q is None or t.q.axis is None:
        return t.q
    before = int(np.prod(t.shape[: t.q.axis], dtype=np.int64))
    seen = 1
    for axis, size in enumerate(shape):
        if seen == before and size == t.shape[t.q.axis]:
            return replace(t.q, axis=axis)
        seen *= size
    raise Unsupported("a per-channel constant is reshaped across its channels")


__all__ = ["NHWC", "Lowering", "Tensor", "of_array", "of_value"]
