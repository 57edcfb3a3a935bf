"""Settings for the passes of ExecuTorch's Arm backend, which scripts written for it pass to a compile spec.

Each of them chooses between decompositions. Tosaic has one: softmax subtracts the maximum and removes masked positions
exactly, leaky_relu is a lookup table, and infinities of a mask need no substitute.
"""

from dataclasses import dataclass, field
from enum import Enum, auto


class SoftmaxDecompositionConfig(Enum):
    """How a softmax with a mask is decomposed."""

    MASKED = auto()
    STABLE = auto()


class LeakyReLULoweringConfig(Enum):
    """How a quantized leaky_relu is lowered."""

    TABLE = auto()
    DECOMPOSE = auto()


@dataclass
class QuantizeInfConfig:
    """The numbers that replace infinities before quantization."""

    neg_inf: float = -256.0
    pos_inf: float = 255.0


@dataclass
class ArmPassPipelineConfig:
    """All settings, with the defaults of ExecuTorch."""

    softmax: SoftmaxDecompositionConfig = SoftmaxDecompositionConfig.MASKED
    leaky_relu: LeakyReLULoweringConfig = LeakyReLULoweringConfig.DECOMPOSE
    quantize_inf: QuantizeInfConfig = field(default_factory=QuantizeInfConfig)
