"""The interface of a compiler for delegates; the rest of Tosaic does not depend on which one it is.

A backend is a module with a compile spec and a subclass of `Backend`, and one line in `tosaic.backends.registry`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid
from tosaic.core.targets import Target
from tosaic.formats.blob import Payload
from tosaic.ir.graph import Array
from tosaic.npu.perf import Estimate

#: bytes per element and number of elements of each tensor
Sizes: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """The result of a backend for one .tosa file.

    blob      the delegate in the .pte
    io        the inputs and the outputs that the compiler laid out; None if the blob is the graph itself
    files     intermediate files to keep besides the .tosa, by suffix
    summary   the figures of the compiler, by its own names
    debug_db  the compiler's record of the origin of its commands
    external  parts of the delegate that are outside the .pte
    """

    blob: bytes
    io: tuple[Sizes, Sizes] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    summary: Mapping[str, float] = field(default_factory=dict[str, float])
    debug_db: str = ""
    external: tuple[Payload, ...] = ()

    @property
    def is_simulated(self) -> bool:
        """Whether there is a simulator for the delegate that does not take long."""
        return False

    def simulate(self, inputs: Sequence[Array]) -> list[Array]:
        """Run the delegate on its simulator."""
        raise NotImplementedError

    def estimate_cycles(self) -> Estimate | None:
        """Estimate the cycles of the delegate from its commands, if it has commands."""
        return None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that the delegates of a program take, and the memory of each kind."""

    network: int = 0
    network_in: str = ""
    scratch: int = 0
    scratch_in: str = ""
    fast_scratch: int = 0
    fast_scratch_in: str = ""
    commands: int = 0


class Backend(Protocol):
    """One compiler: .tosa in, delegate out.

    id          its name in the runtime
    tool        the compiler's name in messages
    engine      where its delegates run if the user names no engine
    spec_class  the options that it takes
    """

    id: str
    tool: str
    engine: str
    spec_class: type[ArmCompileSpec]

    def accepts(self, target: Target) -> bool:
        """Tell whether the backend is the one for a target that was given by name."""
        ...

    def make_spec(self, target: Target) -> ArmCompileSpec:
        """Make the compile spec of a target, with its defaults."""
        ...

    def make_system_spec(
        self,
        target: Target,
        system_config: str | None,
        memory_mode: str | None,
        external: Collection[str] = (),
        config_ini: str | None = None,
        extra_flags: Sequence[str] = (),
    ) -> ArmCompileSpec:
        """Make the compile spec of a target for a system configuration and a memory mode; `external` parts in files.

        `config_ini` and `extra_flags` are options of the compiler.
        """
        if external:
            what = f"the {' and '.join(external)} of `{target.name}` cannot be outside the .pte"
            raise Invalid(what, fix="remove this option, or use an Ethos-U")
        if system_config or memory_mode:
            what = f"`{target.name}` has no system configuration and no memory mode"
            raise Invalid(what, fix="remove these options")
        if config_ini or extra_flags:
            raise Invalid(f"`{target.name}` is not compiled by Vela", fix="remove the options of Vela")
        return self.make_spec(target)

    def compile(self, tosa: bytes, spec: ArmCompileSpec) -> Artifact:
        """Compile a .tosa file. Raises Refused if the compiler rejects the graph."""
        ...

    def describe_options(self, spec: ArmCompileSpec) -> dict[str, str]:
        """Describe the options for reports and the sidecar."""
        return {"tosa_spec": spec.target.tosa_spec}

    def measure_memory(self, spec: ArmCompileSpec, artifacts: Sequence[Artifact]) -> MemoryUse:
        """Add up the memory of all delegates of a program."""
        return MemoryUse()
