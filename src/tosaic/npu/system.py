"""The system around an NPU, as a Vela configuration file describes it: clock, memories, and memory mapping."""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tosaic.core.errors import Invalid
from tosaic.core.targets import find
from tosaic.npu.accelerator import ACCELERATORS
from tosaic.tools.vela_options import VelaOptions, check_options

#: The area of a memory mode for each region of a stream: weights, scratch, fast scratch.
_AREAS = ("const_mem_area", "arena_mem_area", "cache_mem_area")


@dataclass(frozen=True, slots=True)
class MemoryPort:
    """One memory. Bandwidth is in bytes per NPU cycle, latencies in NPU cycles, bursts in bytes."""

    name: str
    bandwidth: float
    ports: int
    burst: int
    read_latency: int
    write_latency: int
    max_reads: int
    max_writes: int


@dataclass(frozen=True, slots=True)
class System:
    """A clock and its memories. `regions` maps regions of a command stream to memories; others are in scratch."""

    clock: float
    regions: Mapping[int, MemoryPort]

    def find(self, region: int) -> MemoryPort:
        return self.regions.get(region, self.regions[1])


def find_options(accelerator: str, specs: Sequence[tuple[str, bytes]] = ()) -> VelaOptions:
    """Return the options in a delegate's compile specs, from any compiler; else the accelerator's defaults."""
    text = b" ".join(value for _, value in specs).decode("ascii", "replace")
    target = find(accelerator)
    system, mode = (re.search(rf"{name}\W+(\w+)", text) for name in ("system.config", "memory.mode"))
    return VelaOptions(
        accelerator, system[1] if system else target.system_config, mode[1] if mode else target.memory_mode
    )


def read_system(options: VelaOptions) -> System:
    """Read the system that the options name."""
    options = options.with_config()
    check_options(options)
    ini, mode = options.get_config().sections, f"Memory_Mode.{options.memory_mode}"
    return place_regions(
        options, {region: _read(ini, mode, area, "Axi0").lower() for region, area in enumerate(_AREAS)}
    )


def place_regions(options: VelaOptions, ports: Mapping[int, str]) -> System:
    """Make the system that the options name, with each region at the port `axi0` or `axi1`."""
    options = options.with_config()
    ini, system = options.get_config().sections, f"System_Config.{options.system_config}"
    beat = ACCELERATORS[find(options.accelerator).name].port_bytes
    regions = {
        region: _read_memory(ini, system, _read(ini, system, f"{port}_port", "Sram"), beat)
        for region, port in ports.items()
    }
    return System(_number(_read(ini, system, "core_clock", "1e9")), MappingProxyType(regions))


def _read_memory(ini: configparser.ConfigParser, system: str, name: str, beat: int) -> MemoryPort:
    def get(key: str, default: int) -> int:
        return int(_number(_read(ini, system, f"{name}_{key}", str(default))))

    scale, ports = _number(_read(ini, system, f"{name}_clock_scale", "1")), get("ports_used", 1)
    return MemoryPort(
        name=name,
        bandwidth=beat * scale * ports,
        ports=ports,
        burst=max(1, get("burst_length", 1)),
        read_latency=get("read_latency", 0),
        write_latency=get("write_latency", 0),
        max_reads=max(1, get("max_reads", 1)),
        max_writes=max(1, get("max_writes", 1)),
    )


def _read(ini: configparser.ConfigParser, section: str, key: str, default: str) -> str:
    """Read an option from a section or from one that it inherits from."""
    for _ in range(len(ini.sections())):
        if ini.has_option(section, key):
            return ini.get(section, key)
        if not ini.has_option(section, "inherit"):
            break
        section = ini.get(section, "inherit")
    return default


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise Invalid(f"`{text}` in the Vela configuration file is not a number that can be used")
    return value
