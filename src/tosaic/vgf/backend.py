"""VgfBackend: compiles the .vgf file that the official runtime executes."""

from __future__ import annotations

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from tosaic.driver import exir
from tosaic.vgf.compile_spec import VgfCompileSpec


class VgfBackend(BackendDetails):
    """Compiles a partition for Vulkan with the ML SDK's model converter."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return exir.preprocess(edge_program, VgfCompileSpec.from_list(compile_specs))
