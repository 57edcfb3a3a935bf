"""The Ethos-U compile spec under the path that ExecuTorch scripts import it from."""

from tosaic.backends.ethosu import EthosUCompileSpec

__all__ = ["EthosUCompileSpec"]
