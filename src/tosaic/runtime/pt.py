"""Reads .pt files of torch.save that nobody vouches for: tensors in lists and dicts, within bounds."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import Any

from tosaic.errors import Invalid
from tosaic.runtime.archive import MAX_BYTES, unpack

_MEMBERS = re.compile(r"[^/\\]+/(data\.pkl|data/\d+|\.data/serialization_id|\.?[a-z_]+)")
#: what a pickle may call; torch's own list has bytearray in it, which takes any amount of memory
_CALLS = re.compile(
    r"torch [A-Za-z0-9]+Storage|torch Size|collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)"
)


def read_pt(data: bytes, what: str) -> Any:
    """The content of a .pt file; `what` names the file in errors."""
    import torch
    from torch.utils._pytree import tree_leaves

    for name, member in unpack(data, _MEMBERS, what).items():
        if name.endswith("/data.pkl"):
            _check_calls(member, what)
    try:
        content: Any = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise Invalid(f"{what} cannot be read", why=f"torch does not load it as plain tensors ({why})") from None
    # A tensor may repeat the few numbers that the file holds any number of times.
    size = sum(x.numel() * x.element_size() for x in tree_leaves(content) if isinstance(x, torch.Tensor))
    if size > MAX_BYTES:
        raise Invalid(f"{what} is too large", why=f"its tensors take {size} bytes; at most {MAX_BYTES} are read")
    return content


def _check_calls(data: bytes, what: str) -> None:
    try:
        calls = [str(argument) for code, argument, _ in pickletools.genops(data) if "GLOBAL" in code.name]
    except (ValueError, pickle.UnpicklingError) as error:
        raise Invalid(f"{what} is damaged", why=str(error)) from None
    for call in calls:
        if not _CALLS.fullmatch(call):
            raise Invalid(f"{what} cannot be read", why=f"it holds a `{call.replace(' ', '.')}`, which is no tensor")
