"""The backend for Vulkan devices: the ML SDK's model converter writes the .vgf file that is the delegate."""

# Annotations are evaluated here (no `from __future__`), so that inspect.signature shows types and not strings.
import json
import math
from dataclasses import replace
from typing import Self

from tosaic.backends import converter
from tosaic.backends.protocol import Artifact, Backend
from tosaic.core.compile_spec import ArmCompileSpec, coerce
from tosaic.core.errors import Invalid, Refused
from tosaic.core.specification import Specification
from tosaic.core.targets import VGF, Target
from tosaic.formats import vgf as reader
from tosaic.formats.spirv import find_zero_outputs


class VgfCompileSpec(ArmCompileSpec):
    """Compile for a Vulkan device. Without `tosa_spec` a delegate may mix float and integer operators."""

    _output_format = "vgf"

    def __init__(self, tosa_spec: Specification | str | None = None, compiler_flags: list[str] | None = None):
        super().__init__()
        spec = VGF.tosa_spec if tosa_spec is None else str(Specification.parse(str(tosa_spec)))
        self.target = replace(VGF, tosa_spec=spec)
        self._flags = converter.check_flags(compiler_flags or ())

    @property
    def compiler_flags(self) -> list[str]:
        """The flags of the model converter."""
        return list(self._flags)

    def validate_environment(
        self, build_dir: str | None = None, *, require_runtime_build: bool = False
    ) -> dict[str, str]:
        """Check that the model converter starts, and return its version; raise ToolFailed with a fix if it does not.

        `build_dir` and `require_runtime_build` are for a source build of ExecuTorch, which Tosaic does not need.
        """
        if build_dir is not None or require_runtime_build:
            raise Invalid(
                "Tosaic does not check source builds of ExecuTorch",
                why="it runs .vgf files with the runtime of the installed package",
                fix="leave out `build_dir` and `require_runtime_build`; `tosaic doctor` checks the runtime",
            )
        return {"model-converter": converter.probe()}

    def _entries(self) -> dict[str, str]:
        return super()._entries() | {"compile_flags": json.dumps(list(self._flags))}

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
        if zeros := _find_zero_outputs(vgf):
            raise ZeroOutput(zeros)
        inputs, outputs = (tuple(_measure(vgf.resources[i]) for i in side) for side in (vgf.inputs, vgf.outputs))
        return Artifact(blob, (inputs, outputs), {".vgf": blob})


class ZeroOutput(Refused):
    """An output that the converter folded to zeros: the Vulkan layers leave its memory as it was."""

    def __init__(self, outputs: tuple[int, ...]) -> None:
        super().__init__(
            "the graph has a constant output",
            why="its result is always zero, which no Vulkan layer writes",
            fix="leave it out of the model: it is a constant",
        )
        self.outputs = outputs


def _find_zero_outputs(vgf: reader.Vgf) -> tuple[int, ...]:
    """Return the outputs of the program that a graph sets to a constant of zeros."""
    zeros = {s.outputs[i] for s in vgf.segments for i in find_zero_outputs(vgf.modules[s.module].spirv)}
    return tuple(i for i, resource in enumerate(vgf.outputs) if resource in zeros)


def _measure(resource: reader.Resource) -> tuple[int, int]:
    """Return the bytes per element and the number of elements; 0 bytes for a format that no tensor has."""
    return resource.item_size, math.prod(resource.shape)
