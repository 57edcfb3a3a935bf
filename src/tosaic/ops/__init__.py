"""Operator records, one module per family. Importing this package fills the registry and freezes it."""

from tosaic.lower.registry import registry
from tosaic.ops import (
    activation,
    attention,
    bitwise,
    cast,
    compare,
    conv,
    conv_transpose,
    cumulative,
    elementwise,
    extremes,
    index,
    linear,
    norm,
    pad,
    pool,
    reduce,
    resize,
    shape,
    shuffle,
    statistics,
)

__all__ = [
    "activation",
    "attention",
    "bitwise",
    "cast",
    "compare",
    "conv",
    "conv_transpose",
    "cumulative",
    "elementwise",
    "extremes",
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
    "statistics",
]

registry().freeze()
