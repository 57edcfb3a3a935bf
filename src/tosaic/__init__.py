"""Tosaic compiles PyTorch models for Arm NPUs and verifies the result bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic.core.quiet import import_quietly

if TYPE_CHECKING:
    from tosaic.api.build import compile
    from tosaic.api.prepare import quantize
    from tosaic.api.program import Program
    from tosaic.api.sidecar_file import write_sidecar
    from tosaic.core.errors import Invalid, ToolFailed, TosaicError, Unsupported
    from tosaic.ethosu import EthosUBackend, EthosUCompileSpec, EthosUPartitioner, VelaExternalBlockPlacements
    from tosaic.quantizer import (
        EthosUQuantizer,
        VgfQuantizer,
        get_symmetric_a16w8_quantization_config,
        get_symmetric_quantization_config,
    )
    from tosaic.quantizer.mxfp import MXFPOpConfig, to_mxfp
    from tosaic.vgf import VgfBackend, VgfCompileSpec, VgfPartitioner

__version__ = "0.1.0"

__all__ = [
    "EthosUBackend",
    "EthosUCompileSpec",
    "EthosUPartitioner",
    "EthosUQuantizer",
    "Invalid",
    "MXFPOpConfig",
    "Program",
    "ToolFailed",
    "TosaicError",
    "Unsupported",
    "VelaExternalBlockPlacements",
    "VgfBackend",
    "VgfCompileSpec",
    "VgfPartitioner",
    "VgfQuantizer",
    "__version__",
    "compile",
    "get_symmetric_a16w8_quantization_config",
    "get_symmetric_quantization_config",
    "quantize",
    "to_mxfp",
    "write_sidecar",
]

#: Public names and their modules, which are imported at first use: `import tosaic` stays free of torch.
_HOMES = {
    "EthosUBackend": "tosaic.ethosu",
    "EthosUCompileSpec": "tosaic.ethosu",
    "EthosUPartitioner": "tosaic.ethosu",
    "EthosUQuantizer": "tosaic.quantizer",
    "Invalid": "tosaic.core.errors",
    "MXFPOpConfig": "tosaic.quantizer.mxfp",
    "Program": "tosaic.api.program",
    "ToolFailed": "tosaic.core.errors",
    "TosaicError": "tosaic.core.errors",
    "Unsupported": "tosaic.core.errors",
    "VelaExternalBlockPlacements": "tosaic.ethosu",
    "VgfBackend": "tosaic.vgf",
    "VgfCompileSpec": "tosaic.vgf",
    "VgfPartitioner": "tosaic.vgf",
    "VgfQuantizer": "tosaic.quantizer",
    "compile": "tosaic.api.build",
    "get_symmetric_a16w8_quantization_config": "tosaic.quantizer",
    "get_symmetric_quantization_config": "tosaic.quantizer",
    "quantize": "tosaic.api.prepare",
    "to_mxfp": "tosaic.quantizer.mxfp",
    "write_sidecar": "tosaic.api.sidecar_file",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return getattr(import_quietly(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
