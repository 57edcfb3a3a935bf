"""TOSAPartitioner: decides what a TOSA specification can express."""

from __future__ import annotations

from collections.abc import Sequence

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.fx.passes.operator_support import OperatorSupportBase

from tosaic.core.compile_spec import coerce
from tosaic.driver.exir import TosaicPartitioner
from tosaic.tosa.backend import TOSABackend
from tosaic.tosa.compile_spec import TosaCompileSpec


class TOSAPartitioner(TosaicPartitioner):
    """Delegates as much as the specification allows; `additional_checks` keep more of it on the CPU."""

    backend = TOSABackend

    def __init__(
        self,
        compile_spec: TosaCompileSpec | list[CompileSpec],
        additional_checks: Sequence[OperatorSupportBase] | None = None,
    ) -> None:
        super().__init__(coerce(compile_spec, TosaCompileSpec), additional_checks)
