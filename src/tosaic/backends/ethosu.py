"""The backend for Ethos-U: Vela compiles the command stream and the weights that are the delegate."""

# Annotations are evaluated here (no `from __future__`), so that inspect.signature shows types and not strings.
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tosaic.backends.protocol import Artifact, Backend, MemoryUse, Sizes
from tosaic.core.compile_spec import ArmCompileSpec, coerce
from tosaic.core.errors import Invalid
from tosaic.core.targets import ACCELERATORS, Target, find
from tosaic.formats import blob
from tosaic.npu.perf import Estimate, estimate
from tosaic.tools import vela
from tosaic.tools.vela_options import (
    BUNDLED_INI,
    VelaOptions,
    build_arguments,
    check_options,
    place_regions,
    split_flags,
)


class EthosUCompileSpec(ArmCompileSpec):
    """Compile for an Ethos-U; options that are not given have the default of the accelerator's family."""

    _output_format = "vela"

    def __init__(
        self, target: str, system_config: str | None = None, memory_mode: str | None = None,
        extra_flags: list[str] | None = None, config_ini: str | None = "Arm/vela.ini",
    ):  # fmt: skip
        super().__init__()
        self.target = find(target)
        if self.target.name not in ACCELERATORS:
            raise Invalid(f"`{target}` is not an Ethos-U", fix=f"use one of {', '.join(ACCELERATORS)}")
        options = VelaOptions(
            self.target.name,
            system_config or self.target.system_config,
            memory_mode or self.target.memory_mode,
            config_ini or BUNDLED_INI,
            tuple(split_flags(extra_flags)),
        )
        self.options = options.with_config()
        check_options(self.options)

    @property
    def compiler_flags(self) -> list[str]:
        """The flags of Vela."""
        return build_arguments(self.options, self.options.config_ini)

    def _entries(self) -> dict[str, str]:
        options = self.options
        flags = {
            "system_config": options.system_config,
            "memory_mode": options.memory_mode,
            "extra_flags": list(options.extra_flags),
        }
        return super()._entries() | {"compile_flags": json.dumps(flags, sort_keys=True)}

    def _config_ini(self) -> str:
        return "" if self.options.config_ini == BUNDLED_INI else self.options.config_ini

    @classmethod
    def _from_entries(cls, entries: dict[str, str], config_ini: str) -> Self:
        flags = json.loads(entries["compile_flags"])
        ini = config_ini or BUNDLED_INI
        return cls(entries["target"], flags["system_config"], flags["memory_mode"], flags["extra_flags"], ini)


@dataclass(frozen=True, slots=True, kw_only=True)
class EthosUArtifact(Artifact):
    """A delegate with all of Vela's reports about it."""

    compiled: vela.Compiled
    options: VelaOptions

    def estimate_cycles(self) -> Estimate:
        return estimate(self.compiled.cmd_data, self.options)


class EthosUCompiler(Backend):
    """Vela."""

    id = "EthosUBackend"
    tool = "Vela"
    engine = "npu"
    spec_class = EthosUCompileSpec

    def accepts(self, target: Target) -> bool:
        return target.is_npu

    def make_spec(self, target: Target) -> EthosUCompileSpec:
        return EthosUCompileSpec(target.name)

    def make_system_spec(self, target: Target, system_config: str | None, memory_mode: str | None) -> EthosUCompileSpec:
        return EthosUCompileSpec(target.name, system_config, memory_mode)

    def compile(self, tosa: bytes, spec: ArmCompileSpec) -> EthosUArtifact:
        options = coerce(spec, EthosUCompileSpec).options
        compiled = vela.compile_cached(tosa, options)
        packed = blob.pack(compiled)
        return EthosUArtifact(
            blob=packed,
            io=(_measure(compiled.inputs), _measure(compiled.outputs)),
            files={
                ".vela.bin": packed,
                ".summary.json": json.dumps(compiled.summary, indent=1, sort_keys=True).encode(),
                ".debug.xml": compiled.debug_db.encode(),
                ".vela.log": compiled.log.encode(),
            },
            summary=compiled.summary,
            debug_db=compiled.debug_db,
            compiled=compiled,
            options=options,
        )

    def describe_options(self, spec: ArmCompileSpec) -> dict[str, str]:
        options = coerce(spec, EthosUCompileSpec).options
        return {
            "system_config": options.system_config,
            "memory_mode": options.memory_mode,
            "extra_flags": " ".join(options.extra_flags),
        }

    def measure_memory(self, spec: ArmCompileSpec, artifacts: Sequence[Artifact]) -> MemoryUse:
        compiled = [one.compiled for one in artifacts if isinstance(one, EthosUArtifact)]
        place = place_regions(coerce(spec, EthosUCompileSpec).options)
        return MemoryUse(
            network=sum(len(c.weight_data) for c in compiled),
            network_in=place.network,
            scratch=max((c.scratch_size for c in compiled), default=0),
            scratch_in=place.scratch,
            fast_scratch=max((c.fast_scratch_size for c in compiled), default=0),
            fast_scratch_in=place.fast_scratch,
            commands=sum(len(c.cmd_data) for c in compiled),
        )


def _measure(slots: Sequence[vela.Slot]) -> Sizes:
    return tuple((slot.element_bytes, math.prod(slot.shape)) for slot in slots)
