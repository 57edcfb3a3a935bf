"""The targets of a compile: the Ethos-U accelerators with their defaults, VGF (Vulkan), and plain TOSA."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from tosaic.core.errors import Invalid
from tosaic.core.specification import Specification

Family: TypeAlias = Literal["u55", "u65", "u85", "vgf", "tosa"]


@dataclass(frozen=True, slots=True)
class Target:
    """A target of a compile. Only an Ethos-U has MACs, a system configuration and a memory mode.

    Capabilities that differ between targets; the defaults are TOSA's own:

    has_booleans         tensors of booleans. Vela compares one with zero first, which Ethos-U55 and U65 cannot
    has_select           a choice between two tensors by a computed third one
    has_gather           a look-up by computed indices
    has_resize           RESIZE by any ratio
    multiplies_int16     MATMUL of 16 bits
    divides_integers     a division of int32 tensors
    has_reduce_min       REDUCE_MIN. Vela 5.2.0 miscompiles it before a RESHAPE for Ethos-U55 and U65
    reduces_int32        REDUCE_MAX and REDUCE_MIN in 32 bits
    stores_int32         numbers that are quantized to 32 bits. Vela 5.2.0 rescales them wrongly for Ethos-U55 and U65
    wraps_casts          CAST to an integer of fewer bits. Vela 5.2.0 fuses it for Ethos-U55 and U65, and saturates
    has_shifts           shifts of all integers. Ethos-U55 and U65 shift int32 only, and round where they shift right
    reverses_any_axis    REVERSE along any axis and in 32 bits, not only of the rows and columns of an image
    averages_batches     AVG_POOL2D of more than one image
    longest_stride       the largest stride of a convolution that is depthwise or dilated; None if any
    longest_argmax       the most numbers in one ARGMAX; None if any
    most_argmaxes        the most results of one ARGMAX; None if any
    most_input_channels  of a convolution; None if any
    scatters_any_stride  TRANSPOSE_CONV2D with strides that are not powers of 2. The emulation layer 0.9 for Vulkan
                         divides negative numbers there, and the remainder depends on the driver

    Which of several lowerings is fast on it:

    sums_by_convolution     a sum is faster as a convolution with ones
    weight_read_speed       how many weights it reads while an Ethos-U55 reads one
    weight_channel_padding  the granularity of output channels in stored weights
    """

    name: str
    family: Family
    macs: int
    tosa_spec: str
    system_config: str = ""
    memory_mode: str = ""
    has_booleans: bool = True
    has_select: bool = True
    has_gather: bool = True
    has_resize: bool = True
    multiplies_int16: bool = True
    divides_integers: bool = True
    has_reduce_min: bool = True
    reduces_int32: bool = True
    stores_int32: bool = True
    wraps_casts: bool = True
    has_shifts: bool = True
    reverses_any_axis: bool = True
    averages_batches: bool = True
    longest_stride: int | None = None
    longest_argmax: int | None = None
    most_argmaxes: int | None = None
    most_input_channels: int | None = None
    scatters_any_stride: bool = True
    sums_by_convolution: bool = True
    weight_read_speed: int = 1
    weight_channel_padding: int = 8

    def __str__(self) -> str:
        return self.name

    @property
    def is_npu(self) -> bool:
        """Whether it is an Ethos-U: an integer device with a command stream."""
        return self.family not in ("vgf", "tosa")


#: of every Ethos-U
_MOST_INPUT_CHANNELS = 1 << 16


def _u55(macs: int) -> Target:
    return Target(
        f"ethos-u55-{macs}",
        "u55",
        macs,
        "TOSA-1.0+INT+int16+int4+u55",
        "Ethos_U55_High_End_Embedded",
        "Shared_Sram",
        has_booleans=False,
        has_select=False,
        has_gather=False,
        has_resize=False,
        multiplies_int16=False,
        divides_integers=False,
        has_reduce_min=False,
        reduces_int32=False,
        stores_int32=False,
        wraps_casts=False,
        has_shifts=False,
        reverses_any_axis=False,
        averages_batches=False,
        longest_stride=3,
        longest_argmax=127,
        most_argmaxes=1 << 16,
        most_input_channels=_MOST_INPUT_CHANNELS,
    )


def _u65(macs: int) -> Target:
    # Vela supports the same operators on U65 as on U55, so both have the same capabilities and the extension +u55.
    return replace(
        _u55(macs),
        name=f"ethos-u65-{macs}",
        family="u65",
        system_config="Ethos_U65_High_End",
        memory_mode="Dedicated_Sram_384KB",
    )


def _u85(macs: int) -> Target:
    return Target(
        f"ethos-u85-{macs}",
        "u85",
        macs,
        "TOSA-1.0+INT+int16+int4+cf",
        "Ethos_U85_SYS_DRAM_Mid",
        "Sram_Only",
        most_input_channels=_MOST_INPUT_CHANNELS,
        weight_read_speed=8,
        weight_channel_padding=16,
    )


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

#: Vulkan devices, which execute all of TOSA.
VGF = Target(
    "vgf",
    "vgf",
    0,
    str(Specification.parse("TOSA-1.0+FP+INT+int4+int16")),
    scatters_any_stride=False,
    sums_by_convolution=False,
)

#: plain TOSA, with any profiles
_TOSA = Target("TOSA-1.0+INT+FP", "tosa", 0, str(Specification.parse("TOSA-1.0+INT+FP")))

_NAMED: Mapping[str, Target] = MappingProxyType({**ACCELERATORS, VGF.name: VGF})


def find(name: str) -> Target:
    """Return the target of that name: `ethos-u55-128`, `vgf`, or a TOSA string such as `TOSA-1.0+INT`."""
    target = _NAMED.get(name.lower())
    if target is not None:
        return target
    if name.upper().startswith("TOSA"):
        spec = str(Specification.parse(name))
        return Target(spec, "tosa", 0, spec)
    part = [known for known in _NAMED if name and name.lower() in known]
    near = difflib.get_close_matches(name.lower(), _NAMED, n=3, cutoff=0.5) or part
    likely = (
        f"did you mean {_either(near)}?" if near else f"pass the NPU of a chip or a board: {_either(list(_NAMED))}."
    )
    raise Invalid(f"unknown target `{name}`", fix=f"{likely} A TOSA target is written `TOSA-1.0+INT` or `TOSA-1.0+FP`")


def list_families(takes: Callable[[Target], bool]) -> list[Family]:
    """List the families with a target that fulfills a condition."""
    return list(dict.fromkeys(target.family for target in (*ACCELERATORS.values(), VGF, _TOSA) if takes(target)))


def _either(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
