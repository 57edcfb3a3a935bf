"""The TOSA compile spec under the path that ExecuTorch scripts import it from."""

from tosaic.backends.tosa import TosaCompileSpec

__all__ = ["TosaCompileSpec"]
