"""The quantizers of the ExecuTorch API, one for each compile spec."""

from __future__ import annotations

from executorch.exir.backend.compile_spec_schema import CompileSpec

from tosaic.backends.ethosu import EthosUCompileSpec
from tosaic.backends.registry import BACKENDS
from tosaic.backends.tosa import TosaCompileSpec
from tosaic.backends.vgf import VgfCompileSpec
from tosaic.core.compile_spec import ArmCompileSpec, coerce
from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification
from tosaic.quantization.quantizer import TosaQuantizer


class TOSAQuantizer(TosaQuantizer):
    """Quantizes for a TOSA specification, or for the target of any compile spec.

    `use_composable_quantizer` chooses between two implementations in ExecuTorch. Here there is one, which composes.
    """

    def __init__(
        self,
        compile_spec_or_tosa_spec: ArmCompileSpec | Specification | str | list[CompileSpec],
        use_composable_quantizer: bool = True,
    ) -> None:
        given = compile_spec_or_tosa_spec
        if isinstance(given, (Specification, str)):
            given = TosaCompileSpec(given)
        self.compile_spec = given if isinstance(given, ArmCompileSpec) else _read(given)
        if not self.tosa_spec.support_integer():
            raise Invalid(f"{self.tosa_spec} has no integer profile to quantize for", fix="use TOSA-1.0+INT")
        super().__init__(stores_int16=self.tosa_spec.supports("int16"))

    @property
    def tosa_spec(self) -> Specification:
        """The TOSA specification that the model is quantized for."""
        return self.compile_spec.tosa_spec


class EthosUQuantizer(TOSAQuantizer):
    """Quantizes for an Ethos-U."""

    def __init__(
        self, compile_spec: EthosUCompileSpec | list[CompileSpec], use_composable_quantizer: bool = True
    ) -> None:
        super().__init__(coerce(compile_spec, EthosUCompileSpec), use_composable_quantizer)


class VgfQuantizer(TOSAQuantizer):
    """Quantizes for a Vulkan device; parts that are left in float may stay in the same delegate."""

    def __init__(self, compile_spec: VgfCompileSpec | list[CompileSpec], use_composable_quantizer: bool = True) -> None:
        super().__init__(coerce(compile_spec, VgfCompileSpec), use_composable_quantizer)


def _read(specs: list[CompileSpec]) -> ArmCompileSpec:
    """Read the list that some compile spec is written as."""
    formats = {backend.spec_class.get_output_format(): backend.spec_class for backend in BACKENDS.values()}
    found = next((s.value.decode() for s in specs if s.key == "output_format"), "")
    if found not in formats:
        raise Invalid("these compile specs have no known output format", fix="pass a compile spec object")
    return formats[found].from_list(specs)
