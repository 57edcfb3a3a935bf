"""The VGF compile spec under the path that ExecuTorch scripts import it from."""

from tosaic.backends.vgf import VgfCompileSpec

__all__ = ["VgfCompileSpec"]
