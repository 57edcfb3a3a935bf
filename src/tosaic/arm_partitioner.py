"""The partitioner under the module name that older scripts import it from."""

from tosaic.ethosu.partitioner import EthosUPartitioner as ArmPartitioner

__all__ = ["ArmPartitioner"]
