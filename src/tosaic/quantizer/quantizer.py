"""The quantizers of the ExecuTorch API, one for each compile spec."""

from __future__ import annotations

from executorch.exir.backend.compile_spec_schema import CompileSpec

from tosaic.backends.ethosu import EthosUCompileSpec
from tosaic.backends.tosa import TosaCompileSpec
from tosaic.backends.vgf import VgfCompileSpec
from tosaic.core.compile_spec import coerce
from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification
from tosaic.quantization.quantizer import TosaQuantizer


class EthosUQuantizer(TosaQuantizer):
    """Quantizes for an Ethos-U."""

    def __init__(self, compile_spec: EthosUCompileSpec | list[CompileSpec]) -> None:
        super().__init__()
        self.compile_spec = coerce(compile_spec, EthosUCompileSpec)


class VgfQuantizer(TosaQuantizer):
    """Quantizes for a Vulkan device; parts that are left in float may stay in the same delegate."""

    def __init__(self, compile_spec: VgfCompileSpec | list[CompileSpec]) -> None:
        super().__init__()
        self.compile_spec = coerce(compile_spec, VgfCompileSpec)
        _refuse_float_only(self.compile_spec.target.tosa_spec)


class TOSAQuantizer(TosaQuantizer):
    """Quantizes for a TOSA specification; a compile spec or the specification itself may be given."""

    def __init__(self, compile_spec_or_tosa_spec: TosaCompileSpec | Specification | str | list[CompileSpec]) -> None:
        super().__init__()
        given = compile_spec_or_tosa_spec
        spec = TosaCompileSpec(given) if isinstance(given, (Specification, str)) else coerce(given, TosaCompileSpec)
        _refuse_float_only(spec.target.tosa_spec)
        self.compile_spec = spec


def _refuse_float_only(tosa_spec: str) -> None:
    if not Specification.parse(tosa_spec).support_integer():
        raise Invalid(f"{tosa_spec} has no integer profile to quantize for", fix="use TOSA-1.0+INT")
