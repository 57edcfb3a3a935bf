"""Every operator of TOSA 1.0: `DEFINITIONS` by name, and the builders.

A builder is named as its operator in lower case: `ops.add(b, x, y)`. Where several operators have one form, the builder
is the definition itself; where a builder makes operands from plain numbers, the definition is next to it in upper
case. `Builder.emit` makes an op of any definition. A new operator is one definition in one of the modules below.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from tosaic.core.errors import Invalid
from tosaic.ir import ops_const, ops_control, ops_data, ops_elementwise, ops_tensor
from tosaic.ir.definition import OpDef
from tosaic.ir.ops_const import *  # noqa: F403
from tosaic.ir.ops_control import *  # noqa: F403
from tosaic.ir.ops_data import *  # noqa: F403
from tosaic.ir.ops_elementwise import *  # noqa: F403
from tosaic.ir.ops_tensor import *  # noqa: F403


def _collect(*modules: ModuleType) -> Mapping[str, OpDef]:
    table: dict[str, OpDef] = {}
    for module in modules:
        for found in vars(module).values():
            if isinstance(found, OpDef) and table.setdefault(found.name, found) is not found:
                raise ValueError(f"{found.name} is defined twice, the second time in {module.__name__}")
    return MappingProxyType(table)


#: The definition of each operator.
DEFINITIONS: Mapping[str, OpDef] = _collect(ops_tensor, ops_elementwise, ops_data, ops_const, ops_control)


def find(name: str) -> OpDef:
    """Find an operator by its TOSA name."""
    if name not in DEFINITIONS:
        raise Invalid(f"{name} is not an operator of TOSA 1.0")
    return DEFINITIONS[name]
