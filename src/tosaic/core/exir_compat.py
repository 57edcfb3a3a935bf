"""Two tricks that exir has no API for.

Both hold for the versions in VERSIONS; tests/driver/test_exir_compat.py shows that each is needed and works. Names of
exir that come without a promise are also used in driver/exir.py, pack.py, named_data.py, tagging.py and exported.py,
and in engines/vgf_pack.py, executorch_child.py and runtime_backend.py.
"""

# Annotations are evaluated here (no `from __future__`), as in the compile specs that use this module.
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

#: the releases of ExecuTorch for which this was checked
VERSIONS = ("1.4",)


class LocalSpec(CompileSpec):
    """A compile spec with additional attributes, for `preprocess` in this process.

    exir passes the specs of a partitioner to `preprocess` as they are, and writes only key and value into the .pte. It
    finds the flatbuffer table of an object by the name of its class, so a subclass must be called `CompileSpec` too.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__name__ = CompileSpec.__name__


def replace_class(program: ExportedProgram, kind: type[ExportedProgram]) -> None:
    """Change the class of a program to a subclass, in place.

    `to_edge_transform_and_lower` calls `run_decompositions` of the program that the user passes: only another class can
    override that call.
    """
    program.__class__ = kind
