"""Shortcuts for a process that checks many graphs: torch does again and again what is known or not needed here."""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch._export.utils
import torchao.quantization.pt2e.quantize_pt2e as pt2e

#: graphs between two collections of garbage
GRAPHS_PER_COLLECTION = 20
_graphs = itertools.count(1)


@functools.cache
def prepare() -> None:
    """Install the shortcuts, for good: only in a process that does nothing else."""
    torch.set_num_threads(1)
    _run_once(torch._export.utils, "_materialize_cpp_cia_ops")
    pt2e._fold_conv_bn_qat = lambda module: module
    gc.collect()
    gc.freeze()
    gc.disable()


def collect() -> None:
    """Collect garbage once in some graphs: exported programs are full of cycles."""
    if next(_graphs) % GRAPHS_PER_COLLECTION == 0:
        gc.collect()


def _run_once(module: Any, name: str) -> None:
    """Make a function without arguments and result do its work at its first call only."""
    function: Callable[[], None] = getattr(module, name)
    setattr(module, name, functools.cache(function))
