"""The compile specification that all targets share, under the name the ExecuTorch documentation gives it.

exir is imported where a list for it is made: what only runs a program does without it.
"""

# Annotations are evaluated here (no `from __future__`), so that inspect.signature shows types and not strings.
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from tosaic.core.errors import Invalid
from tosaic.core.pipeline_config import ArmPassPipelineConfig
from tosaic.core.specification import Specification
from tosaic.core.targets import Target, find

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec


class ArmCompileSpec:
    """The target of a compile, and the intermediate files to keep."""

    class DebugMode(Enum):
        """How the origin of every operator is recorded: a JSON file, or locations inside the .tosa."""

        JSON = 1
        TOSA = 2

    target: Target
    #: verify the graph after every pass, to find the pass that made it invalid
    verify_passes = False
    #: delegate also what only moves data, such as a reshape between two operators on the CPU
    delegate_data_movement = False
    _output_format = "tosa"

    def __init__(self) -> None:
        self._pipeline_config = ArmPassPipelineConfig()
        self._folder: str | None = None
        self._debug_mode: ArmCompileSpec.DebugMode | None = None

    def dump_intermediate_artifacts_to(self, output_path: str | None):
        """Keep the .tosa, the delegate and the compiler's reports of every delegate in this folder."""
        if output_path is not None and Path(output_path).exists() and not Path(output_path).is_dir():
            raise Invalid(f"`{output_path}` is a file", fix="pass a folder for intermediate artifacts")
        self._folder = output_path
        return self

    def dump_debug_info(self, debug_mode: DebugMode | None):
        """Record which torch node every operator came from; needs a folder for intermediate artifacts."""
        self._debug_mode = debug_mode
        return self

    def set_pass_pipeline_config(self, config: ArmPassPipelineConfig) -> None:
        """Keep settings for the passes of ExecuTorch's own Arm backend; they do not change what Tosaic compiles."""
        self._pipeline_config = config

    @property
    def compiler_flags(self) -> list[str]:
        """The flags of the compiler behind TOSA."""
        return []

    @property
    def tosa_spec(self) -> Specification:
        """The TOSA specification that the target supports."""
        return Specification.parse(self.target.tosa_spec)

    def get_intermediate_path(self) -> str | None:
        """Return the folder for intermediate artifacts, None if they are not kept."""
        return self._folder

    @classmethod
    def get_output_format(cls) -> str:
        """Return the format of the delegate: `vela` or `tosa`."""
        return cls._output_format

    @property
    def debug_mode(self) -> DebugMode | None:
        return self._debug_mode

    def to_list(self) -> "list[CompileSpec]":
        """Return the entries for exir; they hold no path of this machine."""
        from tosaic.core.dump import Dump

        specs = self.to_program()
        if self._folder is not None or self._debug_mode is not None or self._config_ini():
            dump = Dump("dump", b"")
            dump.folder, dump.mode, dump.config_ini = self._folder, self._debug_mode, self._config_ini()
            specs.append(dump)
        return specs

    def to_program(self) -> "list[CompileSpec]":
        """Return the entries that belong in a .pte, regardless of the files that are kept."""
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        return [CompileSpec(key, value.encode()) for key, value in self._entries().items()]

    def _config_ini(self) -> str:
        """Return the path of the user's configuration file, empty if there is none."""
        return ""

    def _entries(self) -> dict[str, str]:
        return {
            "output_format": self.get_output_format(),
            "target": self.target.name,
            "tosa_spec": self.target.tosa_spec,
        }

    @classmethod
    def from_list(cls, specs: "list[CompileSpec]") -> Self:
        """Make the specification that `to_list` wrote."""
        from tosaic.core.dump import Dump

        entries = {s.key: s.value.decode() for s in specs}
        made = entries.get("output_format", "")
        if made != cls.get_output_format():
            raise Invalid(
                f"these compile specs are for `{made}`, not for `{cls.get_output_format()}`",
                fix="pass the compile spec of the partitioner that you use",
            )
        inis = [e.config_ini for e in specs if isinstance(e, Dump)]
        spec = cls._from_entries(entries, inis[0] if inis else "")
        for entry in specs:
            if isinstance(entry, Dump):
                spec._folder, spec._debug_mode = entry.folder, entry.mode
        return spec

    @classmethod
    def _from_entries(cls, entries: dict[str, str], config_ini: str) -> Self:
        spec = cls.__new__(cls)
        ArmCompileSpec.__init__(spec)
        spec.target = find(entries["target"])
        return spec

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return (self._entries(), self._folder, self._debug_mode) == (other._entries(), other._folder, other._debug_mode)

    def __hash__(self) -> int:
        return hash(tuple(self._entries().items()))

    def __repr__(self) -> str:
        entries = ", ".join(f"{k}={v!r}" for k, v in self._entries().items())
        return f"{type(self).__name__}({entries})"


Spec = TypeVar("Spec", bound=ArmCompileSpec)


def coerce(spec: "ArmCompileSpec | list[CompileSpec]", kind: type[Spec]) -> Spec:
    """Return a specification; older scripts pass the list that it is written as."""
    if isinstance(spec, ArmCompileSpec):
        if not isinstance(spec, kind):
            raise Invalid(f"`{type(spec).__name__}` was passed, but `{kind.__name__}` is needed")
        return spec
    return kind.from_list(list(spec))
