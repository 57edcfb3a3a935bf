"""Passes for float models with int64 tensors, to run as `transform_passes` of `to_edge_transform_and_lower`.

TOSA has no int64. In a quantized model, and inside a delegate, Tosaic replaces it by int32 without these passes.
"""

from tosaic.core.quiet import quiet_imports

with quiet_imports():
    from tosaic._passes.int64 import (
        ConvertInt64ConstOpsToInt32Pass,
        ConvertInt64OutputOpsToInt32Pass,
        InsertInt32CastsAfterInt64PlaceholdersPass,
    )

__all__ = [
    "ConvertInt64ConstOpsToInt32Pass",
    "ConvertInt64OutputOpsToInt32Pass",
    "InsertInt32CastsAfterInt64PlaceholdersPass",
]
