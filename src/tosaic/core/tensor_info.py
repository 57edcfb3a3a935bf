"""An input or output of a program, as its caller sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tosaic.core.dtypes import count_item_bytes


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, shape and type of a tensor; scale and zero point if it is quantized.

    `dtype` is torch's name. `layout` is `nchw` or `nhwc` where channels matter, else empty.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = ""
    scale: float | None = None
    zero_point: int | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of its elements; 0 for a type that no tensor has."""
        return math.prod(self.shape) * count_item_bytes(self.dtype)
