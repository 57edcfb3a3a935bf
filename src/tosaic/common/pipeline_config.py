"""The pass settings under the path that ExecuTorch scripts import them from."""

from tosaic.core.pipeline_config import (
    ArmPassPipelineConfig,
    LeakyReLULoweringConfig,
    QuantizeInfConfig,
    SoftmaxDecompositionConfig,
)

__all__ = ["ArmPassPipelineConfig", "LeakyReLULoweringConfig", "QuantizeInfConfig", "SoftmaxDecompositionConfig"]
