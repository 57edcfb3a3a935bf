"""Quantizers and the configurations they take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.core.lazy import exports

if TYPE_CHECKING:
    from tosaic.quantization.recipes import QuantizationConfig, get_symmetric_quantization_config
    from tosaic.quantizer.quantizer import EthosUQuantizer, TOSAQuantizer, VgfQuantizer

__all__ = [
    "EthosUQuantizer",
    "QuantizationConfig",
    "TOSAQuantizer",
    "VgfQuantizer",
    "get_symmetric_quantization_config",
]

__getattr__ = exports(
    __name__,
    {
        "EthosUQuantizer": "tosaic.quantizer.quantizer",
        "QuantizationConfig": "tosaic.quantization.recipes",
        "TOSAQuantizer": "tosaic.quantizer.quantizer",
        "VgfQuantizer": "tosaic.quantizer.quantizer",
        "get_symmetric_quantization_config": "tosaic.quantization.recipes",
    },
)
