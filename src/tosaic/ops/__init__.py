"""Operator records, one module per family. Importing this package fills the registry and freezes it."""

from tosaic.lower.registry import registry
from tosaic.ops import (
    activation,
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
    reduce,
    resize,
    shape,
    shuffle,
)

__all__ = [
    "activation",
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
    "reduce",
    "registry",
    "resize",
    "shape",
    "shuffle",
]

registry().freeze()
