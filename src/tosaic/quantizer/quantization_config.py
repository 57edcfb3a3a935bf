"""The quantization configuration under the module name that ExecuTorch scripts import it from."""

from tosaic.quantization.recipes import QuantizationConfig

# One class here: the target of a quantizer comes from its compile spec, not from the configuration.
TOSAQuantizationConfig = VGFQuantizationConfig = QuantizationConfig

__all__ = ["QuantizationConfig", "TOSAQuantizationConfig", "VGFQuantizationConfig"]
