"""Tosaic takes a PyTorch model to an Arm NPU, and proves what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.core.lazy import exports

if TYPE_CHECKING:
    from tosaic.api.build import compile, quantize
    from tosaic.api.program import Program
    from tosaic.core.errors import Invalid, ToolFailed, TosaicError, Unsupported

__version__ = "0.1.0"

__all__ = ["Invalid", "Program", "ToolFailed", "TosaicError", "Unsupported", "__version__", "compile", "quantize"]

__getattr__ = exports(
    __name__,
    {
        "Invalid": "tosaic.core.errors",
        "Program": "tosaic.api.program",
        "ToolFailed": "tosaic.core.errors",
        "TosaicError": "tosaic.core.errors",
        "Unsupported": "tosaic.core.errors",
        "compile": "tosaic.api.build",
        "quantize": "tosaic.api.build",
    },
)
