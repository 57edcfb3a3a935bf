"""Tosaic compiles PyTorch models for Arm NPUs and verifies the result bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic.core.quiet import import_quietly

if TYPE_CHECKING:
    from tosaic.api.build import compile, quantize
    from tosaic.api.program import Program
    from tosaic.core.errors import Invalid, ToolFailed, TosaicError, Unsupported

__version__ = "0.1.0"

__all__ = ["Invalid", "Program", "ToolFailed", "TosaicError", "Unsupported", "__version__", "compile", "quantize"]

#: Public names and their modules, which are imported at first use: `import tosaic` stays free of torch.
_HOMES = {
    "Invalid": "tosaic.core.errors",
    "Program": "tosaic.api.program",
    "ToolFailed": "tosaic.core.errors",
    "TosaicError": "tosaic.core.errors",
    "Unsupported": "tosaic.core.errors",
    "compile": "tosaic.api.build",
    "quantize": "tosaic.api.build",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    return getattr(import_quietly(_HOMES[name]), name)
