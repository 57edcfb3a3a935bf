"""Frees memory that large models need for a moment, and spares the collector what stays."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Generator
from contextlib import contextmanager

LIBC = ctypes.CDLL(None)


@contextmanager
def collect_garbage_after(*, gives_back: bool = True) -> Generator[None]:
    """Collect cyclic garbage after code that leaves few of its objects behind.

    Python's collector is off inside: afterwards it scans only what was made here, and frees it.

    gives_back  whether the memory is not needed again soon
    """
    automatic = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if automatic:
            gc.enable()
        if gives_back:
            give_back()


@contextmanager
def import_for_good() -> Generator[None]:
    """Import modules that stay until the process ends: the collector never scans what is made here.

    Only for a process of our own, as garbage that exists by then stays too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def give_back() -> None:
    """Return the memory that malloc keeps to the system; only glibc has a call for that."""
    trim = getattr(LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)
