"""Operator records, one module per family. Importing this package fills the registry and freezes it."""

from tosaic.lower.registry import registry
from tosaic.ops import (
    activation,
    adaptive_pool,
    attention,
    cast,
    compare,
    conv,
    conv3d,
    conv_transpose,
    elementwise,
    index,
    linear,
    norm,
    pad,
    pool,
    pool3d,
    reduce,
    resample,
    resize,
    resize3d,
    shape,
    shuffle,
)

__all__ = [
    "activation",
    "adaptive_pool",
    "attention",
    "cast",
    "compare",
    "conv",
    "conv3d",
    "conv_transpose",
    "elementwise",
    "index",
    "linear",
    "norm",
    "pad",
    "pool",
    "pool3d",
    "reduce",
    "registry",
    "resample",
    "resize",
    "resize3d",
    "shape",
    "shuffle",
]

registry().freeze()
