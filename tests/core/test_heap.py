"""Garbage that goes at once."""

from __future__ import annotations

import gc
import weakref

import pytest

from tosaic.core.heap import collect_garbage_after


class Link:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


def test_circles_are_gone_at_the_end() -> None:
    with collect_garbage_after():
        gone = weakref.ref(Link())
        assert not gc.isenabled()
        assert gone() is not None
    assert gone() is None
    assert gc.isenabled()


def test_the_collector_is_left_as_it_was() -> None:
    with pytest.raises(ValueError, match="inside"), collect_garbage_after():
        raise ValueError("inside")
    assert gc.isenabled()
    gc.disable()
    try:
        with collect_garbage_after():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
