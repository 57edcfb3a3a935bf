"""The names of ExecuTorch's block-scaled floats (MXFP), which no target of Tosaic has."""

from __future__ import annotations

from typing import NoReturn

from tosaic.core.errors import Unsupported

_FIX = "quantize to int8 with get_symmetric_quantization_config(), or compile the model in float"


class MXFPOpConfig:
    """The configuration of an operator with block-scaled weights; making one raises Unsupported."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        _refuse()


def to_mxfp(*args: object, **kwargs: object) -> NoReturn:
    """Raise Unsupported: block-scaled floats belong to TOSA 1.1."""
    _refuse()


def _refuse() -> NoReturn:
    raise Unsupported("block-scaled floats (MXFP) need TOSA 1.1, and no target supports it", _FIX)
