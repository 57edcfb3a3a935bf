"""The context of a lowering: a TOSA builder that also tracks layout, constants and qparams.

Records receive it as their first argument. A new one is made for every partition, so partitions share no state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, overload

import numpy as np

from tosaic.core.errors import InputRefused, Unsupported
from tosaic.core.hints import Hint
from tosaic.core.specification import Specification
from tosaic.core.targets import Target
from tosaic.ir import ops as tosa
from tosaic.ir.build import Builder
from tosaic.ir.encode import encode
from tosaic.ir.graph import NUMPY, Array, DType, Value
from tosaic.ir.qparams import QParams, quantize
from tosaic.lower.layout import join, simplify
from tosaic.lower.rescaling import clamp, rescale
from tosaic.lower.tables import Tables
from tosaic.lower.tensor import Const, Stored, Tensor, broadcast, find_most, inverse, of_value, with_value

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

    def __post_init__(self) -> None:
        self.tables = Tables(self.b)

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

    def rescale(self, value: Value, dtype: DType, factors: Sequence[float], in_zp: int = 0, out_zp: int = 0) -> Value:
        """Emit RESCALE by one factor, or by one per element of the last axis."""
        return rescale(self.b, value, dtype, factors, in_zp, out_zp)

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
            return with_value(t, self.tables.emit(t.value, t.lut, q))
        if t.is_plain_quantized:
            same = t.q.same_grid(q)
            value = t.value if same else self.rescale(t.value, q.dtype, [t.q.s / q.s], t.q.zp, q.zp)
            return with_value(t, clamp(self.b, value, q, known=t.q if same else None))
        if t.q.axis is not None and t.q.axis != t.value.rank - 1:
            raise Unsupported("a per-channel result can only be quantized with its channels last")
        value = self.rescale(t.value, q.dtype, [s / q.s for s in t.q.scale], 0, q.zp)
        return with_value(t, clamp(self.b, value, q, t.clamp))

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
            value = self.tables.emit_int32(t.value, t.lut, q)
        else:
            value = self.rescale(t.value, DType.I32, [t.qparams.s / q.s], t.qparams.zp)
        return replace(with_value(t, value), reach=most / q.s + 1.0)

    def emit_table(self, t: Stored) -> Value:
        """Emit a TABLE for a pending function whose results are int8 numbers or booleans."""
        assert t.lut is not None
        return tosa.table(self.b, t.value, t.lut.astype(np.int8))

    def require_quantized(self, t: AnyTensor, what: str = "input") -> AnyTensor:
        """Return the tensor itself if it is quantized to 8 or 16 bits; else raise with the reason."""
        if t.is_plain_quantized or (t.is_const and t.q is not None):
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


_USE_INT16 = "quantize its result to int16"

#: the largest number that RESCALE is used for
_REACH = 2.0**29

#: the longest dimension that Vela 5.2 transposes
_LONGEST = 1 << 16

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
