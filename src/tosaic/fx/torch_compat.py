"""The names of torch that come without a promise, in one place.

They were the same in torch 2.13, 2.14 and 2.15. No other module imports a private name of torch, except the reader of
.pt2 files (api/model_program.py), whose names torch loads late; tests/test_private_names.py checks that.
"""

from typing import Any

from torch._C import DispatchKey
from torch._decomp import core_aten_decompositions
from torch._decomp import decomposition_table as _table
from torch._guards import detect_fake_mode
from torch._ops import HigherOrderOperator, OperatorBase, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, _lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

#: a GraphModule whose code is generated when it is called for the first time
LazyGraphModule: type[GraphModule] = vars(_lazy_graph_module)["_LazyGraphModule"]
#: torch's own type for it is open
decomposition_table: dict[Any, Any] = _table

__all__ = [
    "DispatchKey",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "LazyGraphModule",
    "OpOverload",
    "OpOverloadPacket",
    "OperatorBase",
    "core_aten_decompositions",
    "decomposition_table",
    "detect_fake_mode",
    "make_fx",
    "pytree",
]
