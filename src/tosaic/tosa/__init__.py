"""The TOSA backend of the ExecuTorch API, which ends at a .tosa file."""

from tosaic.core.quiet import quiet_imports

with quiet_imports():
    from tosaic.core.specification import TosaSpecification
    from tosaic.tosa.backend import TOSABackend
    from tosaic.tosa.compile_spec import TosaCompileSpec
    from tosaic.tosa.partitioner import TOSAPartitioner

__all__ = ["TOSABackend", "TOSAPartitioner", "TosaCompileSpec", "TosaSpecification"]
