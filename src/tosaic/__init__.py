"""Tosaic takes a PyTorch model to an Arm NPU, and proves what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic._lazy import exports

if TYPE_CHECKING:
    from tosaic.api import compile, quantize
    from tosaic.errors import Invalid, ToolFailed, TosaicError, Unsupported
    from tosaic.program import Program

__version__ = "0.1.0"

__all__ = ["Invalid", "Program", "ToolFailed", "TosaicError", "Unsupported", "__version__", "compile", "quantize"]

__getattr__ = exports(
    __name__,
    {
        "Invalid": "tosaic.errors",
        "Program": "tosaic.program",
        "ToolFailed": "tosaic.errors",
        "TosaicError": "tosaic.errors",
        "Unsupported": "tosaic.errors",
        "compile": "tosaic.api",
        "quantize": "tosaic.api",
    },
)
