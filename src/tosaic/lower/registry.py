"""The table of operator records: everything about an operator is in one record.

This module and all record files import without torch: overloads are strings, samples are functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack

from tosaic.core.errors import Unsupported
from tosaic.core.targets import Target

if TYPE_CHECKING:
    from tosaic.lower.lowering import Lowering
    from tosaic.lower.samples import Sample

#: how the quantizer treats an op: observe its inputs and output, but not parameters that are used without quantization;
#: share one range, weights too; or leave it alone
Quant: TypeAlias = str
QUANT_KINDS = ("observe", "exact", "share", "weight", "none")
#: what the record of an operator in the norm of a vector does there
NormStep: TypeAlias = Literal["multiplied", "raised", "summed", "added", "rooted"]

#: the arguments of a call by the names in the operator's schema, with nodes replaced by their lowered tensors
Arguments: TypeAlias = Mapping[str, Any]
#: returns "" if a call satisfies a constraint, else what was found instead
Check: TypeAlias = "Callable[[Lowering, Arguments], str]"

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Constraint:
    """A restriction of a target or of its compiler: a check, the reason in a report, and a line of the manual.

    sentence  what the target can do
    check     "" if a call satisfies it, else what was found instead: "the stride is 5x5"
    targets   the targets that have the restriction
    """

    sentence: str
    check: Check
    fix: str
    targets: Callable[[Target], bool] = lambda target: True

    def enforce(self, lo: Lowering, arguments: Arguments) -> None:
        """Raise Unsupported for a call that the target of a lowering does not support."""
        found = self.check(lo, arguments) if self.targets(lo.target) else ""
        if found:
            raise Unsupported(f"{self.sentence}; here {found}", self.fix)


@dataclass(frozen=True, slots=True)
class Record:
    """Everything about one operator.

    lower                emits TOSA for the schema-bound arguments
    decompose            writes the op as simpler aten ops: before calibration, if inner ranges need observers, and in
                         a float lowering without `lower` (`lower.aten` names both interpreters)
    quant                a kind of QUANT_KINDS, or a function of the bound arguments that returns one
    constraints          what targets do not support; checked before `lower` is called
    pointwise            a function of single elements: between one dequantize and one quantize it becomes a TABLE
    bounds               clamps its input, so it may be fused into its producer
    moves                only moves data: never a reason for a delegate
    is_qdq               quantizes or dequantizes: a constant that goes through it stays quantized and is not folded
    looks_up             reads its first input at positions given by its other inputs
    is_sum, is_product   a sum or difference of two operands; a product of two
    is_steep             changes fast near zero: it reads a sum of products with 16 bits
    in_norm              what it does in the norm of a vector, whose squares of 16 bits have a sum of 32 bits
    reads_int16          accepts an operand of 16 bits next to operands of 8
    computes_int16       has a lowering for 16-bit values that is more precise than a table
    reads_weight_matrix  a constant operand is a weight matrix and is quantized like weights
    folds_into_producer  becomes part of the previous layer, so nothing is observed between them
    computes_in_float32  has 16-bit floats computed in float32 and rounded once, as torch does
    fits_int32           if its result is int64 in torch, 32 bits hold it
    """

    name: str
    family: str
    overloads: tuple[str, ...]
    lower: Callable[..., Any] | None = None
    decompose: Callable[..., Any] | None = None
    quant: Quant | Callable[[Arguments], Quant] = "observe"
    constraints: Sequence[Constraint] = ()
    samples: Callable[[], Sequence[Sample]] = lambda: ()
    pointwise: bool = False
    bounds: bool = False
    moves: bool = False
    is_qdq: bool = False
    looks_up: bool = False
    is_sum: bool = False
    is_product: bool = False
    is_steep: bool = False
    in_norm: NormStep | None = None
    reads_int16: bool = False
    computes_int16: bool = False
    reads_weight_matrix: bool = False
    folds_into_producer: bool = False
    computes_in_float32: bool = False
    fits_int32: bool = False


class Fields(TypedDict, total=False):
    """The optional fields of a record, as keywords; `Record` explains them."""

    decompose: Callable[..., Any]
    quant: Quant | Callable[[Arguments], Quant]
    constraints: Sequence[Constraint]
    samples: Callable[[], Sequence[Sample]]
    pointwise: bool
    bounds: bool
    moves: bool
    is_qdq: bool
    looks_up: bool
    is_sum: bool
    is_product: bool
    is_steep: bool
    in_norm: NormStep
    reads_int16: bool
    computes_int16: bool
    reads_weight_matrix: bool
    folds_into_producer: bool
    computes_in_float32: bool
    fits_int32: bool


class Registry:
    """Filled while the family modules are imported, then read-only. Rejects duplicates and explains why."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._by_overload: dict[str, Record] = {}
        self._frozen = False

    def add(self, record: Record) -> None:
        """Add a record; raise on a second one of its name or overloads."""
        if self._frozen:
            raise RuntimeError(f"`{record.name}` was added too late: the registry is read-only after its first use")
        if record.name in self._records:
            raise RuntimeError(f"two records are called `{record.name}`; rename one of them")
        if isinstance(record.quant, str) and record.quant not in QUANT_KINDS:
            raise RuntimeError(f"`{record.name}`: quant is `{record.quant}`, expected one of {', '.join(QUANT_KINDS)}")
        for overload in record.overloads:
            other = self._by_overload.get(overload)
            if other is not None:
                raise RuntimeError(f"`{overload}` is in `{record.name}` and in `{other.name}`; keep one")
            self._by_overload[overload] = record
        self._records[record.name] = record

    def freeze(self) -> None:
        """Reject records from now on."""
        self._frozen = True

    @property
    def records(self) -> Mapping[str, Record]:
        return MappingProxyType(self._records)

    def find(self, overload: str) -> Record | None:
        """Return the record of an overload such as `aten.add.Tensor`."""
        return self._by_overload.get(overload)


_REGISTRY = Registry()


def registry() -> Registry:
    """Return the registry; it is complete once `tosaic.ops` is imported."""
    return _REGISTRY


def with_inplace(*overloads: str) -> tuple[str, ...]:
    """Add the in-place form of each overload, which torch calls `add_.Tensor`."""
    return tuple(name for overload in overloads for name in (overload, _append(overload, "_")))


def with_copy(*overloads: str) -> tuple[str, ...]:
    """Add the overload that copies instead of returning a view, which torch calls `view_copy.default`."""
    return tuple(name for overload in overloads for name in (overload, _append(overload, "_copy")))


def _append(overload: str, suffix: str) -> str:
    operator, variant = overload.rsplit(".", 1)
    return f"{operator}{suffix}.{variant}"


def op(name: str, *overloads: str, **fields: Unpack[Fields]) -> Callable[[_Function], _Function]:
    """Register the decorated function as the lowering of an operator.

    An overload without a namespace is one of aten. Without overloads, it is the `default` of the operator's name.
    """

    def register(lower: _Function) -> _Function:
        add(name, *overloads, beside=lower, lower=lower, **fields)
        return lower

    return register


def composite(name: str, *overloads: str, **fields: Unpack[Fields]) -> Callable[[_Function], _Function]:
    """Register the decorated function as the decomposition of an operator that has no lowering."""

    def register(decompose: _Function) -> _Function:
        add(name, *overloads, beside=decompose, **{**fields, "quant": "none", "decompose": decompose})
        return decompose

    return register


def add(
    name: str,
    *overloads: str,
    beside: Callable[..., Any],
    lower: Callable[..., Any] | None = None,
    **fields: Unpack[Fields],
) -> None:
    """Register an operator; its family is the module that defines the function `beside`."""
    family = beside.__module__.rsplit(".", 1)[-1]
    full = tuple(o if o.count(".") > 1 else f"aten.{o}" for o in overloads or (f"{name}.default",))
    _REGISTRY.add(Record(name, family, full, lower, **fields))
