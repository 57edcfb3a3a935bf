"""The backend for Vulkan devices: the ML SDK's model converter writes the .vgf file that is the delegate."""

# Annotations are evaluated here (no `from __future__`), so that inspect.signature shows types and not strings.
import json
import math
from dataclasses import replace
from typing import Self

from tosaic.backends import converter
from tosaic.backends.protocol import Artifact, Backend
from tosaic.core.compile_spec import ArmCompileSpec, coerce
from tosaic.core.specification import Specification
from tosaic.core.targets import VGF, Target
from tosaic.formats import vgf as reader


class VgfCompileSpec(ArmCompileSpec):
    """Compile for a Vulkan device. Without `tosa_spec` a delegate may mix float and integer operators."""

    _output_format = "vgf"

    def __init__(self, tosa_spec: Specification | str | None = None, compiler_flags: list[str] | None = None):
        super().__init__()
        spec = VGF.tosa_spec if tosa_spec is None else str(Specification.parse(str(tosa_spec)))
        self.target = replace(VGF, tosa_spec=spec)
        self.compiler_flags = converter.check_flags(compiler_flags or ())

    def _entries(self) -> dict[str, str]:
        return super()._entries() | {"compile_flags": json.dumps(list(self.compiler_flags))}

    @classmethod
    def _from_entries(cls, entries: dict[str, str], config_ini: str) -> Self:
        return cls(entries["tosa_spec"], json.loads(entries["compile_flags"]))


class VgfCompiler(Backend):
    """The model converter."""

    id = "VgfBackend"
    tool = "model-converter"
    engine = "vulkan"
    spec_class = VgfCompileSpec

    def accepts(self, target: Target) -> bool:
        return target.family == "vgf"

    def make_spec(self, target: Target) -> VgfCompileSpec:
        return VgfCompileSpec()

    def compile(self, tosa: bytes, spec: ArmCompileSpec) -> Artifact:
        blob = converter.compile_cached(tosa, coerce(spec, VgfCompileSpec).compiler_flags)
        vgf = reader.read(blob)
        inputs, outputs = (tuple(_measure(vgf.resources[i]) for i in side) for side in (vgf.inputs, vgf.outputs))
        return Artifact(blob, (inputs, outputs), {".vgf": blob})


def _measure(resource: reader.Resource) -> tuple[int, int]:
    """Return the bytes per element and the number of elements; 0 bytes for a format that no tensor has."""
    return resource.item_size, math.prod(resource.shape)
