"""Options of Vela: accelerator, configuration file, memory mode and extra flags, checked before it runs."""

from __future__ import annotations

import configparser
import difflib
import importlib.util
import re
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from tosaic.core.errors import Invalid, ToolFailed
from tosaic.core.targets import Target, find

#: The configuration file inside the Vela package, by the name that Vela itself uses.
BUNDLED_INI = "Arm/vela.ini"
_MAX_INI_BYTES = 1 << 20

_SWITCHES = (
    "--disable-buffering",
    "--disable-cascading",
    "--disable-chaining",
    "--disable-fwd",
    "--disable-ifm-reuse",
    "--enable-debug-db",
    "--force-symmetric-int-weights",
    "--separate-io-regions",
    "--show-cpu-operations",
    "--verbose-all",
    "--verbose-allocation",
    "--verbose-config",
    "--verbose-cycle-estimate",
    "--verbose-graph",
    "--verbose-high-level-command-stream",
    "--verbose-performance",
    "--verbose-quantization",
    "--verbose-register-command-stream",
    "--verbose-schedule",
    "--verbose-tensor-format",
    "--verbose-weights",
)
_VALUES = (
    "--arena-cache-size",
    "--cop-format",
    "--cpu-tensor-alignment",
    "--experimental-softmax-int16-neg-exp-range",
    "--ignore-ops",
    "--optimise",
    "--tensor-allocator",
)
#: Flags that repeat a field of VelaOptions, with the name of that field.
_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "--accelerator-config": "accelerator",
        "--config": "config_ini",
        "--memory-mode": "memory_mode",
        "--output-format": "output_format",
        "--system-config": "system_config",
    }
)
#: Flags without effect on TOSA input in Vela 5.2; the boolean says whether a value follows.
_OBSOLETE: Mapping[str, bool] = MappingProxyType(
    {
        "--debug-force-legacy-core": False,
        "--debug-force-regor": False,
        "--hillclimb-max-iterations": True,
        "--max-block-dependency": True,
        "--recursion-limit": True,
        "--show-subgraph-io-summary": False,
        "--timing": False,
        "--verbose-operators": False,
        "--verbose-packing": False,
        "--verbose-progress": False,
        "--verbose-tensor-purpose": False,
    }
)
_FAMILY = re.compile(r"Ethos_(U55|U65|U85)_", re.IGNORECASE)
_ENDS_EARLY = "Vela would print information and exit without compiling"
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "--api-version": _ENDS_EARLY,
        "--help": _ENDS_EARLY,
        "--list-config-files": _ENDS_EARLY,
        "--list-configs": _ENDS_EARLY,
        "--output-dir": "Vela runs in a temporary folder, where its results are read",
        "--supported-ops-report": _ENDS_EARLY,
        "--version": _ENDS_EARLY,
    }
)
#: Every flag that Vela 5.2 has.
FLAGS = (*_SWITCHES, *_VALUES, *_FIELDS, *_OBSOLETE, *_REFUSED)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A Vela configuration file, read and parsed."""

    name: str
    data: bytes
    sections: configparser.ConfigParser

    def list_names(self, prefix: str) -> tuple[str, ...]:
        """List the names of the sections of one kind."""
        found = (section for section in self.sections.sections() if section.startswith(prefix))
        return tuple(section.removeprefix(prefix) for section in found)

    def read_option(self, section: str, key: str) -> str:
        """Read an option of a section or of the nearest one it inherits from; empty if there is none."""
        seen: list[str] = []
        while section not in seen:
            seen.append(section)
            try:
                if self.sections.has_option(section, key):
                    return self.sections.get(section, key)
                if not self.sections.has_option(section, "inherit"):
                    return ""
                section = self.sections.get(section, "inherit")
            except configparser.Error as error:
                raise Invalid(f"`{self.name}` is not a usable Vela configuration file", why=_one_line(error)) from None
            if not self.sections.has_section(section):
                raise Invalid(f"`[{seen[-1]}]` in `{self.name}` inherits from `[{section}]`, which does not exist")
        raise Invalid(f"`[{section}]` in `{self.name}` inherits from itself", why=" -> ".join([*seen, section]))


@dataclass(frozen=True, slots=True)
class VelaOptions:
    """The options of one compile, with normalized flags.

    config_ini  the configuration file: a path, or the name of a file inside the Vela package
    config      the content of that file, if it has been read
    """

    accelerator: str
    system_config: str
    memory_mode: str
    config_ini: str = BUNDLED_INI
    extra_flags: tuple[str, ...] = ()
    config: ConfigFile | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra_flags", normalize_flags(self.extra_flags))

    def with_config(self) -> VelaOptions:
        """Return the options with their configuration file, which is read at most once."""
        return self if self.config is not None else replace(self, config=load_config(self.config_ini))

    def get_config(self) -> ConfigFile:
        """Return the configuration file."""
        return self.config or load_config(self.config_ini)


def default_options(target: Target) -> VelaOptions:
    """Return the default options for an accelerator."""
    return VelaOptions(target.name, target.system_config, target.memory_mode)


def normalize_flags(flags: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return Vela flags as `--name` or `--name=value`, each once (the last one wins), without obsolete ones."""
    tokens = list(split_flags(flags))
    chosen: dict[str, str] = {}
    while tokens:
        name, equals, value = tokens.pop(0).partition("=")
        name = _full_name(name)
        takes_value = name in _VALUES or name in _FIELDS or _OBSOLETE.get(name, False)
        if name in _REFUSED:
            raise Invalid(f"the Vela flag `{name}` cannot be used here", why=_REFUSED[name], fix="remove it")
        if takes_value and not equals:
            if not tokens or tokens[0].startswith("--"):
                raise Invalid(f"the Vela flag `{name}` needs a value", fix=f"write `{name}=...`")
            value = tokens.pop(0)
        if equals and not takes_value:
            raise Invalid(f"the Vela flag `{name}` takes no value, but was given `{value}`")
        if name in _OBSOLETE:
            warnings.warn(f"dropped the obsolete Vela flag `{name}`: it has no effect on TOSA input", stacklevel=2)
        else:
            chosen[name] = f"{name}={value}" if takes_value else name
    return tuple(chosen.values())


def split_flags(flags: str | Sequence[str] | None) -> Iterable[str]:
    """Split flags into words."""
    items: Sequence[str] = [flags] if isinstance(flags, str) else (flags or ())
    for item in items:
        # `--name value` in one list element is split too, `--name=a value` is not: its value has a blank.
        if isinstance(flags, str) or re.match(r"--[\w-]+\s", item):
            try:
                yield from shlex.split(item)
            except ValueError as error:
                raise Invalid(f"the Vela flags `{item}` cannot be split into words", why=str(error)) from None
        elif item:
            yield item


def _full_name(name: str) -> str:
    """Return the full name of a flag or unique prefix: Vela accepts abbreviations too."""
    if name in FLAGS:
        return name
    longer = [flag for flag in FLAGS if flag.startswith(name)] if name.startswith("--") and len(name) > 2 else []
    if len(longer) == 1:
        return longer[0]
    near = longer or difflib.get_close_matches(name, [flag for flag in FLAGS if flag not in _OBSOLETE], n=3)
    raise Invalid(
        f"Vela has no flag `{name}`" if name.startswith("-") else f"`{name}` is not a Vela flag",
        fix=f"did you mean {', '.join(f'`{flag}`' for flag in near)}?" if near else "",
    )


def build_arguments(options: VelaOptions, config_ini: str) -> list[str]:
    """Build Vela's argument list without input and output; `config_ini` is the file's name where Vela runs."""
    flags = [flag for flag in options.extra_flags if flag.partition("=")[0] not in _FIELDS]
    return [
        f"--accelerator-config={options.accelerator}",
        f"--config={config_ini}",
        f"--system-config={options.system_config}",
        f"--memory-mode={options.memory_mode}",
        "--output-format=raw",
        "--enable-debug-db",
        *(flag for flag in flags if flag != "--enable-debug-db"),
    ]


def list_sections(config_ini: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """List the names of the system configurations and memory modes in a Vela configuration file."""
    config = load_config(config_ini)
    return config.list_names("System_Config."), config.list_names("Memory_Mode.")


def check_options(options: VelaOptions) -> None:
    """Raise Invalid for options that Vela would reject or silently misread."""
    target = find(options.accelerator)
    if not target.is_npu:
        raise Invalid(f"`{options.accelerator}` is not an accelerator that Vela compiles for")
    _check_repeated(options)
    config = options.get_config()
    _check_section(config, "system configuration", "System_Config.", options.system_config)
    _check_family(target, options, config)
    _check_section(config, "memory mode", "Memory_Mode.", options.memory_mode)
    _check_arena(target, options, config)


def _check_repeated(options: VelaOptions) -> None:
    values = {"output_format": "raw"}
    for flag in options.extra_flags:
        name, _, value = flag.partition("=")
        if name in _FIELDS:
            field = _FIELDS[name]
            chosen = values.get(field) or str(getattr(options, field))
            if value != chosen:
                word = "target" if field == "accelerator" else field
                raise Invalid(
                    f"the Vela flag `{flag}` contradicts `{word}`, which is `{chosen}`",
                    fix="remove the flag" if field in values else f"remove the flag and set `{word}`",
                )


def _check_section(config: ConfigFile, what: str, prefix: str, name: str) -> None:
    present = config.list_names(prefix)
    # The name becomes part of a file name in Vela's output.
    if "/" not in name and name in present:
        return
    near = [other for other in present if other.startswith(name)] or difflib.get_close_matches(name, present, n=1)
    known = f"it has {', '.join(f'`{other}`' for other in present)}" if present else f"it has no {what} at all"
    fix = f"did you mean `{near[0]}`?" if near else f"choose one of the {what}s of this file, or another file"
    raise Invalid(f"no {what} `{name}` in `{config.name}`", why=known, fix=fix)


def _check_family(target: Target, options: VelaOptions, config: ConfigFile) -> None:
    """Check that a system configuration named after a family is for the target's own: clocks and memories differ."""
    named = _FAMILY.match(options.system_config)
    if named is None or named[1].lower() == target.family:
        return
    start = f"Ethos_{target.family.upper()}_"
    fitting = [f"`{name}`" for name in config.list_names("System_Config.") if name.startswith(start)]
    raise Invalid(
        f"system configuration `{options.system_config}` is not for `{target.name}`",
        why=f"by its name it describes a system with an Ethos-{named[1]}",
        fix=f"use one of {', '.join(fitting)}" if fitting else f"use one for an Ethos-{target.family.upper()}",
    )


def _check_arena(target: Target, options: VelaOptions, config: ConfigFile) -> None:
    """Check that the arena, which is written to, is at a port that can write, in writable memory."""
    port = config.read_option(f"Memory_Mode.{options.memory_mode}", "arena_mem_area").lower()
    if port == "axi1" and target.family == "u55":
        raise Invalid(
            f"memory mode `{options.memory_mode}` cannot be used on `{target.name}`",
            why="it puts the tensor arena behind AXI port 1, through which an Ethos-U55 can only read",
            fix="use `Shared_Sram` or `Sram_Only`, which keep the arena in SRAM behind port 0",
        )
    memory = config.read_option(f"System_Config.{options.system_config}", f"{port}_port")
    if memory in ("OnChipFlash", "OffChipFlash"):
        raise Invalid(
            f"memory mode `{options.memory_mode}` does not fit system configuration `{options.system_config}`",
            why=f"it puts the tensor arena in {memory}, which cannot be written",
            fix="use `Shared_Sram` or `Sram_Only`, or a system configuration with DRAM",
        )


def read_ini(config_ini: str) -> bytes:
    """Read a Vela configuration file, from a path or from inside the Vela package."""
    path = _bundled_folder() / config_ini
    if Path(config_ini).is_absolute() or len(Path(config_ini).parts) != 2 or not path.is_file():
        path = Path(config_ini).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_INI_BYTES + 1)
    except (OSError, ValueError) as error:
        raise Invalid(
            f"cannot read the Vela configuration file `{config_ini}`",
            why=error.strerror or "" if isinstance(error, OSError) else str(error),
            fix=f"pass the path of an ini file, or `{BUNDLED_INI}` for the one that comes with Vela",
        ) from None
    if len(data) > _MAX_INI_BYTES:
        raise Invalid(f"`{config_ini}` is not a Vela configuration file: it is larger than {_MAX_INI_BYTES} bytes")
    return data


def _bundled_folder() -> Path:
    spec = importlib.util.find_spec("ethosu")
    if spec is None or not spec.submodule_search_locations:
        raise ToolFailed("Vela is not installed", fix="pip install ethos-u-vela")
    return Path(spec.submodule_search_locations[0]) / "config_files"


def load_config(config_ini: str) -> ConfigFile:
    """Read and parse a Vela configuration file, from a path or from inside the Vela package."""
    data, sections = read_ini(config_ini), configparser.ConfigParser()
    try:
        sections.read_string(data.decode("utf-8"), source=config_ini)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise Invalid(f"`{config_ini}` is not a usable Vela configuration file", why=_one_line(error)) from None
    return ConfigFile(config_ini, data, sections)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@dataclass(frozen=True, slots=True)
class Placement:
    """The memory of each logical region of the NPU, and the size limit of the fast scratch."""

    network: str
    scratch: str
    fast_scratch: str


def place_regions(options: VelaOptions) -> Placement:
    """Find the memory that holds the network, the scratch and the fast scratch under these options."""
    config = options.get_config()
    mode, system = f"Memory_Mode.{options.memory_mode}", f"System_Config.{options.system_config}"

    def memory(area: str) -> str:
        port = config.read_option(mode, area).lower()
        return config.read_option(system, f"{port}_port") if port else ""

    scratch = memory("arena_mem_area")
    cache = memory("cache_mem_area")
    return Placement(memory("const_mem_area"), scratch, cache if cache != scratch else "")
