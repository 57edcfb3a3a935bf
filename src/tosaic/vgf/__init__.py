"""The VGF target (SPIR-V graphs for Vulkan): compile spec, partitioner and backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.core.lazy import exports

if TYPE_CHECKING:
    from tosaic.backends.vgf import VgfCompileSpec
    from tosaic.vgf.backend import VgfBackend
    from tosaic.vgf.partitioner import VgfPartitioner

__all__ = ["VgfBackend", "VgfCompileSpec", "VgfPartitioner"]

__getattr__ = exports(
    __name__,
    {
        "VgfBackend": "tosaic.vgf.backend",
        "VgfCompileSpec": "tosaic.backends.vgf",
        "VgfPartitioner": "tosaic.vgf.partitioner",
    },
)
