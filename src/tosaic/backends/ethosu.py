"""EthosUCompileSpec: accelerator, system configuration, memory mode and Vela flags."""

# Annotations are evaluated here (no `from __future__`), so that inspect.signature shows types and not strings.
import json
from typing import Self

from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.errors import Invalid
from tosaic.core.targets import ACCELERATORS, find
from tosaic.tools.vela import VelaOptions, check_options, normalize_flags
from tosaic.tools.vela_options import BUNDLED_INI


class EthosUCompileSpec(ArmCompileSpec):
    """Compile for an Ethos-U; what is left out takes the default of the accelerator's family."""

    _output_format = "vela"

    def __init__(
        self, target: str, system_config: str | None = None, memory_mode: str | None = None,
        extra_flags: list[str] | None = None, config_ini: str | None = "Arm/vela.ini",
    ):  # fmt: skip
        super().__init__()
        self.target = find(target)
        if self.target.name not in ACCELERATORS:
            raise Invalid(f"`{target}` is not an Ethos-U", fix=f"use one of {', '.join(ACCELERATORS)}")
        self.options = VelaOptions(
            self.target.name,
            system_config or self.target.system_config,
            memory_mode or self.target.memory_mode,
            config_ini or BUNDLED_INI,
            normalize_flags(extra_flags),
        )
        check_options(self.options)

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
