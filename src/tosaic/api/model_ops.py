"""The operators that a .pt2 file may call: those that compute with tensors, and nothing else.

The decision uses the operator registry and torch's properties of an operator. Names are compared before torch loads
the program: some operators read files, and some names below `torch.ops` are not operators.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

from tosaic.core.errors import Invalid
from tosaic.core.hints import Hint
from tosaic.ops import registry

#: unpacking of results, and arithmetic on plain numbers
_PYTHON = re.compile(
    r"_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|not_|and_|or_|xor|lshift|rshift"
    r"|eq|ne|lt|le|gt|ge)"
)
_NAME = re.compile(r"torch\.ops\.([a-z]\w*)\.([A-Za-z_]\w*)(?:\.([A-Za-z]\w*))?", re.ASCII)
#: branches, and the modes that torch.export keeps as regions
_HIGHER_ORDER = ("cond", "wrap_with_set_grad_enabled", "wrap_with_autocast")
_NAMESPACES = ("aten", "quantized_decomposed")
#: private names that exporters write and that torch does not tag as core
_PRIVATE = ("_assert_async", "_assert_scalar", "_convolution", "_safe_softmax", "_shape_as_tensor", "_unsafe_view")
#: on packed weights, other devices or layouts, on the caller's state, on the size of memory, or on files
_REFUSED = re.compile(
    r"(fbgemm|quantized|cudnn|miopen|mps|sparse|nested|record)_.*|.*(mkldnn|sparse|resize).*"
    r"|from_file|set(_data|_)?|requires_grad_|retain_grad"
)
_FOREIGN = re.compile("Storage|Stream|__torch__|QScheme")


def refuse(names: Iterable[str], path: object, allowed: Collection[str] = ()) -> None:
    """Raise Invalid for the first of these operators that an untrusted file may not call."""
    for name in names:
        if not is_allowed(name, allowed):
            short = name.removeprefix("torch.ops.").removesuffix(".default")
            raise Invalid(
                f"`{path}` calls `{short[:80]}`, which Tosaic does not run for an untrusted file",
                fix=Hint(
                    f"if you trust the file, name `{short}` in `allow_ops`",
                    f"if you trust the file, name `{short}` in `--allow-op`",
                )
                if _is_operator(name)
                else "",
            )


def is_allowed(name: str, allowed: Collection[str] = ()) -> bool:
    """Tell whether an operator, named as in the file, only computes with tensors or was allowed by the user."""
    if _PYTHON.fullmatch(name):
        return True
    if not _is_operator(name):
        return False
    namespace, operator, *overload = name.removeprefix("torch.ops.").split(".")
    if {f"{namespace}.{operator}", ".".join([namespace, operator, *overload])} & set(allowed):
        return True
    if namespace == "higher_order":
        return operator in _HIGHER_ORDER
    return _computes(namespace, operator, overload[0])


def _is_operator(name: str) -> bool:
    """Tell whether torch has such an operator: other attributes of torch.ops load libraries and modules."""
    import torch

    from tosaic.fx.torch_compat import HigherOrderOperator

    found = _NAME.fullmatch(name)
    if found is None:
        return False
    namespace, operator, overload = found.groups()
    if namespace == "higher_order":
        return overload is None and isinstance(getattr(torch.ops.higher_order, operator, None), HigherOrderOperator)
    return overload is not None and _find(namespace, operator, overload) is not None


def _find(namespace: str, operator: str, overload: str) -> Any:
    import torch

    from tosaic.fx.torch_compat import OpOverload, OpOverloadPacket

    packet: Any = getattr(getattr(torch.ops, namespace), operator, None)
    found: Any = getattr(packet, overload, None) if issubclass(type(packet), OpOverloadPacket) else None
    return found if issubclass(type(found), OpOverload) else None


def _computes(namespace: str, operator: str, overload: str) -> bool:
    import torch

    found = _find(namespace, operator, overload)
    if found is None:
        return False
    if registry().find(f"{namespace}.{operator}.{overload}") is not None:
        return True
    if namespace not in _NAMESPACES or _REFUSED.fullmatch(operator) or _FOREIGN.search(str(found._schema)):
        return False
    if torch.Tag.core in found.tags:
        return True
    if operator.startswith("_") and operator not in _PRIVATE:
        return False
    if found._schema.is_mutable and not _is_in_place(found, operator):
        return False
    return _is_composed(found) or not any("str" in str(argument.type) for argument in found._schema.arguments)


def _is_in_place(found: Any, operator: str) -> bool:
    """Tell whether an operator writes to its first argument only."""
    written = [argument.alias_info is not None and argument.alias_info.is_write for argument in found._schema.arguments]
    return operator.endswith("_") and written[0] and not any(written[1:])


def _is_composed(found: Any) -> bool:
    """Tell whether torch decomposes an operator: then a string argument is an option, not the name of something."""
    from tosaic.fx.torch_compat import decomposition_table

    return found._can_decompose() or found in decomposition_table
