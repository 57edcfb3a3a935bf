"""Constraints that operators of several families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tosaic.lower.arguments import pair
from tosaic.lower.lowering import Lowering
from tosaic.lower.registry import NPU_FAMILIES, Limit


def _fits_strides(lo: Lowering, a: Mapping[str, Any]) -> bool:
    """Whether every stride above 3, along a dimension with several results, is one that Vela has a form for."""
    x, kernel = a["input"], a["weight"].shape[2:]
    if a.get("transposed") or len(kernel) > 2:
        return True
    stride, dilation = pair(a["stride"]), pair(a["dilation"])
    pad = (0, 0) if isinstance(a["padding"], str) else pair(a["padding"])
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=False)]
    if reach == list(kernel) and not a["groups"] == x.shape[-1 - len(kernel)] > 1:
        return True
    sizes = zip(x.shape[-len(kernel) :], reach, stride, pad, strict=False)
    return all(step <= 3 or size + 2 * p < wide + step for size, wide, step, p in sizes)


STRIDES = Limit(
    "Ethos-U55 and Ethos-U65 take strides above 3 only in convolutions that are neither depthwise nor dilated",
    _fits_strides,
    ("u55", "u65"),
    "use strides of at most 3, or an Ethos-U85",
)
INPUT_CHANNELS = Limit(
    "an Ethos-U takes at most 65536 input channels or features",
    lambda lo, a: bool(a.get("transposed")) or a["weight"].shape[1] <= 1 << 16,
    NPU_FAMILIES,
    "divide them between several layers and add the results",
)
#: of a convolution
CONVOLUTION = (STRIDES, INPUT_CHANNELS)
