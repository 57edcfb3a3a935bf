"""The Ethos-U target: compile spec, partitioner and backend."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tosaic.ethosu.backend import EthosUBackend
    from tosaic.ethosu.compile_spec import EthosUCompileSpec
    from tosaic.ethosu.partitioner import EthosUPartitioner

__all__ = ["EthosUBackend", "EthosUCompileSpec", "EthosUPartitioner"]

_HOME = {
    "EthosUBackend": "tosaic.ethosu.backend",
    "EthosUCompileSpec": "tosaic.ethosu.compile_spec",
    "EthosUPartitioner": "tosaic.ethosu.partitioner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOME[name]), name)
