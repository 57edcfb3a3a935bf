"""The backend that ends at TOSA: the delegate is the .tosa file itself."""

# Annotations are evaluated here (no `from __future__`), so that inspect.signature shows types and not strings.
from tosaic.backends.protocol import Artifact, Backend
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.specification import Specification
from tosaic.core.targets import Target, find


class TosaCompileSpec(ArmCompileSpec):
    """Compile for a TOSA specification such as `TOSA-1.0+INT`; the delegate is the .tosa itself."""

    _output_format = "tosa"

    def __init__(self, tosa_spec: Specification | str):
        super().__init__()
        self.target = find(str(tosa_spec))


class TosaCompiler(Backend):
    """The backend without a compiler."""

    id = "TOSABackend"
    tool = "TOSA"
    engine = "tosa"
    spec_class = TosaCompileSpec

    def accepts(self, target: Target) -> bool:
        return target.family == "tosa"

    def make_spec(self, target: Target) -> TosaCompileSpec:
        return TosaCompileSpec(target.tosa_spec)

    def compile(self, tosa: bytes, spec: ArmCompileSpec) -> Artifact:
        return Artifact(tosa)
