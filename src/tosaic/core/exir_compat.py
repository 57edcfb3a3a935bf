"""The names of exir that come without a promise, and two tricks that exir has no API for.

All hold for the versions in VERSIONS; tests/driver/test_exir_compat.py shows that each trick is needed and works, and
tests/test_private_names.py that no other module imports a private name of exir. The bindings of the C++ runtime are in
engines/runtime_backend.py.
"""

# Annotations are evaluated here (no `from __future__`), as in the compile specs that use this module.
from executorch.exir._serialize._named_data_store import NamedDataStore, NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch.export import ExportedProgram

__all__ = [
    "VERSIONS",
    "DataEntry",
    "DataPayload",
    "EdgeOpOverload",
    "LocalSpec",
    "NamedDataStore",
    "NamedDataStoreOutput",
    "exir_ops",
    "replace_class",
]

#: the releases of ExecuTorch for which this was checked
VERSIONS = ("1.4", "1.5")


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
