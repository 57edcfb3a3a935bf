"""Small TOSA files for the tools."""

import numpy as np
import pytest

from tosaic.formats.tosa_writer import serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Type


@pytest.fixture(scope="session")
def conv_graph() -> Graph:
    """A 3x3 convolution of 8 into 16 channels, int8 in and out."""
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input(Type(DType.I8, (1, 8, 8, 8)))
    weight = b.const(rng.integers(-127, 128, (16, 3, 3, 8)), DType.I8)
    bias = b.const(rng.integers(-1000, 1000, 16), DType.I32)
    acc = ops.conv2d(b, x, weight, bias, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1), acc_type=DType.I32, x_zp=3)
    return b.finish([ops.rescale(b, acc, DType.I8, multiplier=[1 << 30], shift=[38], out_zp=-5)])


@pytest.fixture(scope="session")
def conv(conv_graph: Graph) -> bytes:
    return serialize(conv_graph)
