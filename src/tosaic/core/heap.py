"""Memory that large models need for a moment, given back at once."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Generator
from contextlib import contextmanager

LIBC = ctypes.CDLL(None)


@contextmanager
def short_lived() -> Generator[None]:
    """For code whose objects refer to each other in circles, and of which little is left at the end.

    Python's collector waits until it is called: then only what was made here is looked at, and all of it goes.
    """
    automatic = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if automatic:
            gc.enable()
        give_back()


def give_back() -> None:
    """Let the system have the memory that malloc keeps for later; only glibc has a call for that."""
    trim = getattr(LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)
