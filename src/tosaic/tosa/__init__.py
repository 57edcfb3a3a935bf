"""TOSA: the typed graph, and the door that ends at a .tosa file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.core.lazy import exports

if TYPE_CHECKING:
    from tosaic.backends.tosa import TosaCompileSpec
    from tosaic.core.specification import TosaSpecification
    from tosaic.tosa.backend import TOSABackend
    from tosaic.tosa.partitioner import TOSAPartitioner

__all__ = ["TOSABackend", "TOSAPartitioner", "TosaCompileSpec", "TosaSpecification"]

__getattr__ = exports(
    __name__,
    {
        "TOSABackend": "tosaic.tosa.backend",
        "TOSAPartitioner": "tosaic.tosa.partitioner",
        "TosaCompileSpec": "tosaic.backends.tosa",
        "TosaSpecification": "tosaic.core.specification",
    },
)
