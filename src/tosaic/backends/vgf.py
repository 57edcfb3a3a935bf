"""VgfCompileSpec: which part of TOSA the Vulkan device has, and flags for the model converter."""

# Annotations are evaluated here (no `from __future__`), so that inspect.signature shows types and not strings.
import json
from dataclasses import replace
from typing import Self

from tosaic.backends.converter import check_flags
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.specification import Specification
from tosaic.core.targets import VGF


class VgfCompileSpec(ArmCompileSpec):
    """Compile for a Vulkan device. Without `tosa_spec` float and integer operators may stand in one delegate."""

    _output_format = "vgf"

    def __init__(self, tosa_spec: Specification | str | None = None, compiler_flags: list[str] | None = None):
        super().__init__()
        spec = VGF.tosa_spec if tosa_spec is None else str(Specification.parse(str(tosa_spec)))
        self.target = replace(VGF, tosa_spec=spec)
        self.compiler_flags = check_flags(compiler_flags or ())

    def _entries(self) -> dict[str, str]:
        return super()._entries() | {"compile_flags": json.dumps(list(self.compiler_flags))}

    @classmethod
    def _from_entries(cls, entries: dict[str, str], config_ini: str) -> Self:
        return cls(entries["tosa_spec"], json.loads(entries["compile_flags"]))
