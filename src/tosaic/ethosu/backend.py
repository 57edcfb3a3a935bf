"""EthosUBackend: compiles the delegate blob that the official runtime executes."""

from __future__ import annotations

from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from tosaic.driver import exir
from tosaic.ethosu.compile_spec import EthosUCompileSpec


class EthosUBackend(BackendDetails):
    """Compiles a partition for an Ethos-U with Vela."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        return exir.preprocess(edge_program, EthosUCompileSpec.from_list(compile_specs))
