"""The Ethos-U compile spec and its base class under the path that ExecuTorch scripts import them from."""

from tosaic.backends.ethosu import EthosUCompileSpec, VelaExternalBlockPlacements
from tosaic.common.arm_compile_spec import ArmCompileSpec

__all__ = ["ArmCompileSpec", "EthosUCompileSpec", "VelaExternalBlockPlacements"]
