"""What can be compiled for: the Ethos-U accelerators with their defaults, VGF (Vulkan), and plain TOSA."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification

Family: TypeAlias = Literal["u55", "u65", "u85", "vgf", "tosa"]


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to compile for. Only an Ethos-U has MACs, a system configuration and a memory mode."""

    name: str
    family: Family
    macs: int
    tosa_spec: str
    system_config: str = ""
    memory_mode: str = ""

    @property
    def is_npu(self) -> bool:
        """Whether it is an Ethos-U: an integer device with a command stream of its own."""
        return self.family not in ("vgf", "tosa")

    @property
    def has_booleans(self) -> bool:
        """Whether tensors may be bool. Vela compares one with zero first, which Ethos-U55 and U65 cannot."""
        return self.family not in ("u55", "u65")


def _u55(macs: int) -> Target:
    spec = "TOSA-1.0+INT+int16+int4+u55"
    return Target(f"ethos-u55-{macs}", "u55", macs, spec, "Ethos_U55_High_End_Embedded", "Shared_Sram")


def _u65(macs: int) -> Target:
    # Vela takes the same operators on U65 as on U55, so both share the +u55 limits.
    spec = "TOSA-1.0+INT+int16+int4+u55"
    return Target(f"ethos-u65-{macs}", "u65", macs, spec, "Ethos_U65_High_End", "Dedicated_Sram_384KB")


def _u85(macs: int) -> Target:
    spec = "TOSA-1.0+INT+int16+int4+cf"
    return Target(f"ethos-u85-{macs}", "u85", macs, spec, "Ethos_U85_SYS_DRAM_Mid", "Sram_Only")


#: The eleven accelerators that Vela knows, by name.
ACCELERATORS: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            *(_u55(macs) for macs in (32, 64, 128, 256)),
            *(_u65(macs) for macs in (256, 512)),
            *(_u85(macs) for macs in (128, 256, 512, 1024, 2048)),
        )
    }
)

#: Vulkan devices; what they execute is as wide as TOSA itself.
VGF = Target("vgf", "vgf", 0, str(Specification.parse("TOSA-1.0+FP+INT+int4+int16")))

_NAMED: Mapping[str, Target] = MappingProxyType({**ACCELERATORS, VGF.name: VGF})


def find(name: str) -> Target:
    """The target of that name: `ethos-u55-128`, `vgf`, or a TOSA string such as `TOSA-1.0+INT`."""
    target = _NAMED.get(name.lower())
    if target is not None:
        return target
    if name.upper().startswith("TOSA"):
        spec = str(Specification.parse(name))
        return Target(spec, "tosa", 0, spec)
    part = [known for known in _NAMED if name.lower() in known]
    near = difflib.get_close_matches(name.lower(), _NAMED, n=3, cutoff=0.5) or part or list(_NAMED)
    raise Invalid(
        f"unknown target `{name}`",
        fix=f"did you mean {_either(near)}? A TOSA target is written `TOSA-1.0+INT` or `TOSA-1.0+FP`",
    )


def _either(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
