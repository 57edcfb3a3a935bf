"""Operator records, one module per family. Importing this package fills the registry and freezes it."""

from tosaic.lower.registry import registry
from tosaic.ops import (
    activation,
    attention,
    cast,
    compare,
    constant,
    conv,
    conv_transpose,
    division,
    elementwise,
    functions,
    index,
    linear,
    norm,
    pad,
    pool,
    reduce,
    resize,
    scatter,
    shape,
    shuffle,
    window,
)

__all__ = [
    "activation",
    "attention",
    "cast",
    "compare",
    "constant",
    "conv",
    "conv_transpose",
    "division",
    "elementwise",
    "functions",
    "index",
    "linear",
    "norm",
    "pad",
    "pool",
    "reduce",
    "registry",
    "resize",
    "scatter",
    "shape",
    "shuffle",
    "window",
]

registry().freeze()
