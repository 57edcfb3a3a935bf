"""Observers of PT2E, with types."""

from __future__ import annotations

from torchao.quantization.pt2e import FakeQuantizeBase, ObserverBase, PartialWrapper


def with_args(observer: type[ObserverBase] | type[FakeQuantizeBase], /, **arguments: object) -> PartialWrapper:
    """Return a constructor of an observer with some of its arguments given."""
    return observer.with_args(**arguments)
