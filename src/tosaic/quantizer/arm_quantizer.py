"""The quantizers under the module name that older scripts import them from."""

from tosaic.quantizer.quantizer import EthosUQuantizer, TOSAQuantizer, VgfQuantizer
from tosaic.quantizer.recipes import QuantizationConfig, get_symmetric_quantization_config

__all__ = [
    "EthosUQuantizer",
    "QuantizationConfig",
    "TOSAQuantizer",
    "VgfQuantizer",
    "get_symmetric_quantization_config",
]
