"""TOSA: the typed graph, and the door that ends at a .tosa file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic._lazy import exports

if TYPE_CHECKING:
    from tosaic.tosa.backend import TOSABackend
    from tosaic.tosa.compile_spec import TosaCompileSpec
    from tosaic.tosa.partitioner import TOSAPartitioner
    from tosaic.tosa.spec import TosaSpecification

__all__ = ["TOSABackend", "TOSAPartitioner", "TosaCompileSpec", "TosaSpecification"]

__getattr__ = exports(
    __name__,
    {
        "TOSABackend": "tosaic.tosa.backend",
        "TOSAPartitioner": "tosaic.tosa.partitioner",
        "TosaCompileSpec": "tosaic.tosa.compile_spec",
        "TosaSpecification": "tosaic.tosa.spec",
    },
)
