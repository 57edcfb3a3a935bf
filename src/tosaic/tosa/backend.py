"""TOSABackend: the delegate is a .tosa file, for the reference model or for a compiler on the device."""

from __future__ import annotations

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from tosaic.driver import exir
from tosaic.tosa.compile_spec import TosaCompileSpec


class TOSABackend(BackendDetails):
    """Lowers a partition to TOSA."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return exir.preprocess(edge_program, TosaCompileSpec.from_list(compile_specs))
