"""Observers of PT2E, with types."""

from __future__ import annotations

from typing import Any

from torchao.quantization.pt2e import (
    FakeQuantize,
    FakeQuantizeBase,
    FusedMovingAvgObsFakeQuantize,
    ObserverBase,
    PartialWrapper,
)


def with_args(observer: type[ObserverBase] | type[FakeQuantizeBase], /, **arguments: object) -> PartialWrapper:
    """Return a constructor of an observer with some of its arguments given."""
    return observer.with_args(**arguments)


def along(axis: int, constructor: Any) -> Any:
    """Return a constructor of an observer for another dimension than 0: one that it has been given is preferred."""
    kind, given = constructor, dict[str, Any]()
    while isinstance(kind, PartialWrapper):
        wrapped: Any = kind.p
        kind, given = wrapped.func, wrapped.keywords | given
    if kind is FusedMovingAvgObsFakeQuantize:
        # Torch has its kernel for dimension 0 only.
        kind = FakeQuantize
    elif "ch_axis" not in given:
        return constructor
    return with_args(kind, **given | {"ch_axis": axis})
