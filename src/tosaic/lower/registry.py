"""The table of operator records: everything Tosaic knows about an operator stands in one record.

This module and all record files import without torch: overloads are strings, samples are functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tosaic.lower.lowering import Lowering
    from tosaic.lower.samples import Sample

#: how the quantizer treats an op: observe its inputs and output, but not parameters that are used as exact as they are,
#: share one range, weights too, or leave it alone
Quant: TypeAlias = str
QUANT_KINDS = ("observe", "exact", "share", "weight", "none")

NPU_FAMILIES = ("u55", "u65", "u85")


@dataclass(frozen=True, slots=True)
class Limit:
    """One sentence that is the check, the reason in a report, and a line of the manual."""

    sentence: str
    holds: Callable[[Lowering, Mapping[str, Any]], bool]
    families: tuple[str, ...] = (*NPU_FAMILIES, "vgf", "tosa")
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """All about one operator.

    lower      makes TOSA of the schema-bound arguments
    expand     rewrites the op into simpler aten ops before calibration, where inner ranges need observers
    quant      a kind of QUANT_KINDS, or a function of the bound arguments that answers with one
    pointwise  a function of single elements: between one dequantize and one quantize it becomes a TABLE
    bounds     clamps its input, so it may be fused into the operator before it
    moves      only moves data: never a reason for a delegate of its own
    """

    name: str
    family: str
    overloads: tuple[str, ...]
    lower: Callable[..., Any] | None = None
    expand: Callable[..., Any] | None = None
    quant: Quant | Callable[[Mapping[str, Any]], Quant] = "observe"
    pointwise: bool = False
    bounds: bool = False
    moves: bool = False
    limits: tuple[Limit, ...] = ()
    samples: Callable[[], Sequence[Sample]] = field(default=lambda: ())


class Registry:
    """Filled while the family modules are imported, then only read. Refuses duplicates and says why."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._by_overload: dict[str, Record] = {}
        self._frozen = False

    def add(self, record: Record) -> None:
        if self._frozen:
            raise RuntimeError(f"`{record.name}` comes too late: the registry is read-only once it was used")
        if record.name in self._records:
            raise RuntimeError(f"two records are called `{record.name}`; give one of them another name")
        if isinstance(record.quant, str) and record.quant not in QUANT_KINDS:
            raise RuntimeError(f"`{record.name}`: quant is `{record.quant}`, expected one of {', '.join(QUANT_KINDS)}")
        for overload in record.overloads:
            other = self._by_overload.get(overload)
            if other is not None:
                raise RuntimeError(f"`{overload}` stands in `{record.name}` and in `{other.name}`; keep one")
            self._by_overload[overload] = record
        self._records[record.name] = record

    def freeze(self) -> None:
        self._frozen = True

    @property
    def records(self) -> Mapping[str, Record]:
        return MappingProxyType(self._records)

    def find(self, overload: str) -> Record | None:
        return self._by_overload.get(overload)


_REGISTRY = Registry()


def op(
    name: str,
    *overloads: str,
    expand: Callable[..., Any] | None = None,
    quant: Quant | Callable[[Mapping[str, Any]], Quant] = "observe",
    pointwise: bool = False,
    bounds: bool = False,
    moves: bool = False,
    limits: Sequence[Limit] = (),
    samples: Callable[[], Sequence[Sample]] = lambda: (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the lowering of an operator."""

    def register(lower: Callable[..., Any]) -> Callable[..., Any]:
        family = lower.__module__.rsplit(".", 1)[-1]
        _REGISTRY.add(
            Record(name, family, overloads, lower, expand, quant, pointwise, bounds, moves, tuple(limits), samples)
        )
        return lower

    return register


def composite(
    name: str,
    *overloads: str,
    expand: Callable[..., Any],
    limits: Sequence[Limit] = (),
    samples: Callable[[], Sequence[Sample]] = lambda: (),
) -> None:
    """Register an operator that is an ordinary function of other operators."""
    family = expand.__module__.rsplit(".", 1)[-1]
    _REGISTRY.add(Record(name, family, overloads, None, expand, "none", limits=tuple(limits), samples=samples))


def registry() -> Registry:
    """The registry; complete once `tosaic.ops` is imported."""
    return _REGISTRY
