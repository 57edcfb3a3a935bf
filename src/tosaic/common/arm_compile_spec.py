"""The compile spec base class under the path that ExecuTorch scripts import it from."""

from tosaic.core.compile_spec import ArmCompileSpec

# Signatures and pickles show the path that users know.
ArmCompileSpec.__module__ = ArmCompileSpec.DebugMode.__module__ = __name__

__all__ = ["ArmCompileSpec"]
