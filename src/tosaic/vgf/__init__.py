"""The VGF backend of the ExecuTorch API: compile spec, partitioner and backend."""

from tosaic.core.quiet import quiet_imports

with quiet_imports():
    from tosaic.vgf.backend import VgfBackend
    from tosaic.vgf.compile_spec import VgfCompileSpec
    from tosaic.vgf.partitioner import VgfPartitioner

__all__ = ["VgfBackend", "VgfCompileSpec", "VgfPartitioner"]
