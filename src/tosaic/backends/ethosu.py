"""The backend for Ethos-U: Vela compiles the command stream and the weights that are the delegate."""

# Annotations are evaluated here (no `from __future__`), so that inspect.signature shows types and not strings.
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from tosaic import npu
from tosaic.backends.protocol import Artifact, Backend, MemoryUse, Sizes
from tosaic.core.compile_spec import ArmCompileSpec, coerce
from tosaic.core.errors import Invalid
from tosaic.core.targets import ACCELERATORS, Target, find
from tosaic.formats import blob
from tosaic.formats.external import PLACEMENTS
from tosaic.ir.graph import Array
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


@dataclass(frozen=True)
class VelaExternalBlockPlacements:
    """Parts of a delegate to keep outside the .pte: each placement is a .ptd file; None leaves the part inside."""

    cmd_data: str | None = None
    weight_data: str | None = None

    def __post_init__(self):
        for name in blob.EXTERNAL:
            placement: object = getattr(self, name)
            if placement is not None and not (isinstance(placement, str) and placement and placement.isascii()):
                raise Invalid(f"the placement of `{name}` is {placement!r}", fix="use a name of ASCII characters")

    def to_block_placements(self) -> dict[str, str]:
        """Return the placements by the name of the block in the delegate's blob."""
        found = {name: getattr(self, name) for name in blob.EXTERNAL}
        return {name: placement for name, placement in found.items() if placement is not None}

    def to_json(self) -> str:
        """Return the placements as a compile spec has them."""
        return json.dumps(self.to_block_placements(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Make the placements that `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            blocks = " and ".join(f"`{name}`" for name in blob.EXTERNAL)
            raise Invalid(
                f"the compile spec `{PLACEMENTS}` cannot be used", why=str(error), fix=f"use placements of {blocks}"
            ) from None


class EthosUCompileSpec(ArmCompileSpec):
    """Compile for an Ethos-U; options that are not given have the default of the accelerator's family."""

    _output_format = "vela"

    def __init__(
        self, target: str, system_config: str | None = None, memory_mode: str | None = None,
        extra_flags: list[str] | None = None, config_ini: str | None = "Arm/vela.ini",
        external_block_placements: VelaExternalBlockPlacements | None = None,
    ):  # fmt: skip
        super().__init__()
        self.external_block_placements = external_block_placements or VelaExternalBlockPlacements()
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
        placements = self.external_block_placements
        external = {PLACEMENTS: placements.to_json()} if placements.to_block_placements() else {}
        return super()._entries() | {"compile_flags": json.dumps(flags, sort_keys=True)} | external

    def _config_ini(self) -> str:
        return "" if self.options.config_ini == BUNDLED_INI else self.options.config_ini

    @classmethod
    def _from_entries(cls, entries: dict[str, str], config_ini: str) -> Self:
        flags = json.loads(entries["compile_flags"])
        ini = config_ini or BUNDLED_INI
        placements = VelaExternalBlockPlacements.from_json(entries.get(PLACEMENTS, "{}"))
        return cls(
            entries["target"], flags["system_config"], flags["memory_mode"], flags["extra_flags"], ini, placements
        )


#: The largest delegate that is run before it is accepted, by Vela's estimate of its cycles and its multiplications: a
#: tenth of a second here, of which the TOSA reference model takes most.
MOST_SIMULATED = {"cycles_total": 500_000, "nn_macs": 5_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class EthosUArtifact(Artifact):
    """A delegate with all of Vela's reports about it."""

    compiled: vela.Compiled
    options: VelaOptions

    @property
    def is_simulated(self) -> bool:
        return all(self.summary[name] <= most for name, most in MOST_SIMULATED.items())

    def simulate(self, inputs: Sequence[Array]) -> list[Array]:
        compiled = self.compiled
        return npu.run(
            compiled.cmd_data,
            compiled.weight_data,
            compiled.scratch_size,
            inputs,
            compiled.inputs,
            compiled.outputs,
            fast_scratch_size=compiled.fast_scratch_size,
            check_uninitialized=True,
            check_waits=True,
        )

    def estimate_cycles(self) -> Estimate:
        return estimate(self.compiled.cmd_data, self.options)


class EthosUCompiler(Backend):
    """Vela."""

    id = blob.BACKEND
    tool = "Vela"
    engine = "npu"
    spec_class = EthosUCompileSpec

    def accepts(self, target: Target) -> bool:
        return target.is_npu

    def make_spec(self, target: Target) -> EthosUCompileSpec:
        return EthosUCompileSpec(target.name)

    def make_system_spec(
        self,
        target: Target,
        system_config: str | None,
        memory_mode: str | None,
        external: Collection[str] = (),
        config_ini: str | None = None,
        extra_flags: Sequence[str] = (),
    ) -> EthosUCompileSpec:
        # A part of the delegate is placed in a file with its own name.
        placements = {block: part for block, part in blob.EXTERNAL.items() if part in external}
        return EthosUCompileSpec(
            target.name,
            system_config,
            memory_mode,
            list(extra_flags),
            config_ini,
            VelaExternalBlockPlacements(**placements),
        )

    def compile(self, tosa: bytes, spec: ArmCompileSpec) -> EthosUArtifact:
        ethos = coerce(spec, EthosUCompileSpec)
        options, placements = ethos.options, ethos.external_block_placements.to_block_placements()
        compiled = vela.compile_cached(tosa, options)
        whole = blob.pack(compiled)
        blocks = {"cmd_data": compiled.cmd_data, "weight_data": compiled.weight_data}
        external = tuple(blob.Payload(block, placement, blocks[block]) for block, placement in placements.items())
        return EthosUArtifact(
            blob=blob.pack(compiled, external) if external else whole,
            external=external,
            io=(_measure(compiled.inputs), _measure(compiled.outputs)),
            files={
                # Complete, so that it can be inspected on its own.
                ".vela.bin": whole,
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
        ethos = coerce(spec, EthosUCompileSpec)
        options, placements = ethos.options, ethos.external_block_placements.to_block_placements()
        external = ", ".join(f"{blob.EXTERNAL[block]} in {placement}" for block, placement in placements.items())
        return {
            "system_config": options.system_config,
            "memory_mode": options.memory_mode,
            "extra_flags": " ".join(options.extra_flags),
        } | ({"external": external} if external else {})

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
