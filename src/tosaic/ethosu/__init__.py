"""The Ethos-U target: compile spec, partitioner and backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.core.lazy import exports

if TYPE_CHECKING:
    from tosaic.backends.ethosu import EthosUCompileSpec
    from tosaic.ethosu.backend import EthosUBackend
    from tosaic.ethosu.partitioner import EthosUPartitioner

__all__ = ["EthosUBackend", "EthosUCompileSpec", "EthosUPartitioner"]

__getattr__ = exports(
    __name__,
    {
        "EthosUBackend": "tosaic.ethosu.backend",
        "EthosUCompileSpec": "tosaic.backends.ethosu",
        "EthosUPartitioner": "tosaic.ethosu.partitioner",
    },
)
