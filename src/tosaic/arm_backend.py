"""The names that older ExecuTorch scripts import from `arm_backend`."""

from __future__ import annotations

from typing import Self

from tosaic.backends.ethosu import EthosUCompileSpec
from tosaic.backends.tosa import TosaCompileSpec
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid
from tosaic.ethosu.backend import EthosUBackend as ArmBackend
from tosaic.ethosu.partitioner import EthosUPartitioner as ArmPartitioner
from tosaic.fx.torchvision import prepare_torchvision
from tosaic.tools.vela_options import split_flags

# The tutorials import torchvision right after this module, and that import fails with some CPU builds of torch.
prepare_torchvision()

__all__ = [
    "ArmBackend",
    "ArmCompileSpecBuilder",
    "ArmPartitioner",
    "generate_ethosu_compile_spec",
    "generate_tosa_compile_spec",
]


class ArmCompileSpecBuilder:
    """Builds a compile spec step by step, as older scripts do."""

    def __init__(self) -> None:
        self._spec: ArmCompileSpec | None = None
        self._folder: str | None = None

    def ethosu_compile_spec(
        self,
        target: str,
        system_config: str | None = None,
        memory_mode: str | None = None,
        extra_flags: str | None = None,
        config_ini: str | None = "Arm/vela.ini",
    ) -> Self:
        """Compile for an Ethos-U; `extra_flags` is one string here."""
        flags = list(split_flags(extra_flags))
        self._spec = EthosUCompileSpec(target, system_config, memory_mode, flags, config_ini)
        return self

    def tosa_compile_spec(self, tosa_spec: str) -> Self:
        """Compile for a TOSA specification."""
        self._spec = TosaCompileSpec(tosa_spec)
        return self

    def dump_intermediate_artifacts_to(self, output_path: str) -> Self:
        """Keep intermediate files in a folder."""
        self._folder = output_path
        return self

    def build(self) -> ArmCompileSpec:
        """Return the finished compile spec."""
        if self._spec is None:
            raise Invalid("nothing to build", fix="call ethosu_compile_spec(...) or tosa_compile_spec(...) first")
        self._spec.dump_intermediate_artifacts_to(self._folder)
        return self._spec


def generate_ethosu_compile_spec(
    target: str,
    system_config: str | None = None,
    memory_mode: str | None = None,
    extra_flags: str | None = None,
    config_ini: str | None = "Arm/vela.ini",
) -> ArmCompileSpec:
    """Make the compile spec of an Ethos-U."""
    return (
        ArmCompileSpecBuilder().ethosu_compile_spec(target, system_config, memory_mode, extra_flags, config_ini).build()
    )


def generate_tosa_compile_spec(tosa_spec: str, output_path: str | None = None) -> ArmCompileSpec:
    """Make the compile spec of a TOSA specification."""
    builder = ArmCompileSpecBuilder().tosa_compile_spec(tosa_spec)
    return (builder.dump_intermediate_artifacts_to(output_path) if output_path else builder).build()
