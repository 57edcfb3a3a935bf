"""EthosUPartitioner: decides what runs on the Ethos-U."""

from __future__ import annotations

from collections.abc import Sequence

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.fx.passes.operator_support import OperatorSupportBase

from tosaic.core.compile_spec import coerce
from tosaic.driver.exir import TosaicPartitioner
from tosaic.ethosu.backend import EthosUBackend
from tosaic.ethosu.compile_spec import EthosUCompileSpec


class EthosUPartitioner(TosaicPartitioner):
    """Delegates as much as the accelerator supports; `additional_checks` keep more of it on the CPU."""

    backend = EthosUBackend

    def __init__(
        self,
        compile_spec: EthosUCompileSpec | list[CompileSpec],
        additional_checks: Sequence[OperatorSupportBase] | None = None,
    ) -> None:
        super().__init__(coerce(compile_spec, EthosUCompileSpec), additional_checks)
