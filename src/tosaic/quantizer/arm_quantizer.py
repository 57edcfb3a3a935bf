"""The quantizers under the module name that older scripts import them from."""

from tosaic.quantization.recipes import (
    QuantizationConfig,
    get_symmetric_a8w4_quantization_config,
    get_symmetric_a16w8_quantization_config,
    get_symmetric_quantization_config,
    get_uint8_io_quantization_config,
    get_vgf_snorm_quantization_config,
)
from tosaic.quantizer.quantizer import EthosUQuantizer, TOSAQuantizer, VgfQuantizer

__all__ = [
    "EthosUQuantizer",
    "QuantizationConfig",
    "TOSAQuantizer",
    "VgfQuantizer",
    "get_symmetric_a8w4_quantization_config",
    "get_symmetric_a16w8_quantization_config",
    "get_symmetric_quantization_config",
    "get_uint8_io_quantization_config",
    "get_vgf_snorm_quantization_config",
]
