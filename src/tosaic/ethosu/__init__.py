"""The Ethos-U backend of the ExecuTorch API: compile spec, partitioner and backend."""

from tosaic.core.quiet import quiet_imports

with quiet_imports():
    from tosaic.ethosu.backend import EthosUBackend
    from tosaic.ethosu.compile_spec import EthosUCompileSpec, VelaExternalBlockPlacements
    from tosaic.ethosu.partitioner import EthosUPartitioner

__all__ = ["EthosUBackend", "EthosUCompileSpec", "EthosUPartitioner", "VelaExternalBlockPlacements"]
