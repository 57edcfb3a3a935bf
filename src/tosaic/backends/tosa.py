"""TosaCompileSpec: compile to a .tosa file and no further."""

# Annotations are evaluated here (no `from __future__`), so that inspect.signature shows types and not strings.
from tosaic.core.compile_spec import ArmCompileSpec
from tosaic.core.specification import Specification
from tosaic.core.targets import find


class TosaCompileSpec(ArmCompileSpec):
    """Compile for a TOSA specification such as `TOSA-1.0+INT`; the delegate is the .tosa itself."""

    _output_format = "tosa"

    def __init__(self, tosa_spec: Specification | str):
        super().__init__()
        self.target = find(str(tosa_spec))
