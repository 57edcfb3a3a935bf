"""The compile spec base class under the path that ExecuTorch scripts import it from."""

from tosaic.core.compile_spec import ArmCompileSpec

__all__ = ["ArmCompileSpec"]
