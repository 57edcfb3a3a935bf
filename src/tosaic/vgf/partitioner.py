"""VgfPartitioner: decides what runs on the Vulkan device."""

from __future__ import annotations

from collections.abc import Sequence

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.fx.passes.operator_support import OperatorSupportBase

from tosaic.core.compile_spec import coerce
from tosaic.driver.exir import TosaicPartitioner
from tosaic.vgf.backend import VgfBackend
from tosaic.vgf.compile_spec import VgfCompileSpec


class VgfPartitioner(TosaicPartitioner):
    """Delegates as much as the specification allows; `additional_checks` keep more of it on the CPU."""

    backend = VgfBackend

    def __init__(
        self,
        compile_spec: VgfCompileSpec | list[CompileSpec],
        additional_checks: Sequence[OperatorSupportBase] | None = None,
    ) -> None:
        super().__init__(coerce(compile_spec, VgfCompileSpec), additional_checks)
