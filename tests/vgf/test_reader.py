"""The .vgf reader: what a file holds, and Invalid for whatever is no .vgf file."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tosaic.backends import converter
from tosaic.core.errors import Invalid
from tosaic.formats import vgf as reader
from tosaic.formats.tosa_writer import serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Type


@pytest.fixture(scope="module")
def vgf() -> bytes:
    """A convolution with a weight (small constants would go into the SPIR-V), and a second output."""
    builder = Builder()
    x = builder.input(Type(DType.F32, (1, 4, 4, 16)))
    weight = builder.const(np.arange(3 * 16, dtype=np.float32).reshape(3, 1, 1, 16), DType.F32)
    bias = builder.const(np.arange(3, dtype=np.float32), DType.F32)
    y = ops.conv2d(builder, x, weight, bias, pad=(0,) * 4, stride=(1, 1), dilation=(1, 1), acc_type=DType.F32)
    return converter.compile(serialize(builder.finish([y, ops.abs(builder, y)])))


def test_reads_all_sections(vgf: bytes) -> None:
    found = reader.read(vgf)
    assert found.version == (0, 4, 0)
    (module,) = found.modules
    assert (module.kind, module.entry_point) == ("graph", "graph_partition_0")
    assert module.spirv[:4] == bytes.fromhex("03022307")
    (segment,) = found.segments
    assert (segment.kind, segment.module, segment.inputs) == ("graph", 0, found.inputs)
    assert [found.resources[i].shape for i in found.inputs] == [(1, 4, 4, 16)]
    assert [found.resources[i].shape for i in found.outputs] == [(1, 4, 4, 3)] * 2
    assert {found.resources[i].category for i in found.outputs} == {"output"}
    data = {found.resources[c.resource].shape: vgf[c.offset : c.offset + c.size] for c in found.constants}
    assert np.array_equal(np.frombuffer(data[3, 1, 1, 16], np.float32), np.arange(48))
    assert len(segment.constants) == len(found.constants)


@pytest.mark.parametrize("data", [b"", b"VGF", b"VGF1", b"TOSA" * 100, b"VGF1" + bytes(200)])
def test_refuses_what_is_no_vgf(data: bytes) -> None:
    with pytest.raises(Invalid):
        reader.read(data)


def test_refuses_a_newer_version(vgf: bytes) -> None:
    with pytest.raises(Invalid, match=r"version 0\.5\.0"):
        reader.read(vgf[:9] + b"\x05" + vgf[10:])


def test_refuses_every_cut(vgf: bytes) -> None:
    for size in range(0, len(vgf), 7):
        with pytest.raises(Invalid):
            reader.read(vgf[:size])


def test_survives_damage(vgf: bytes) -> None:
    dice = random.Random(5)
    for _ in range(3000):
        data = bytearray(vgf)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            reader.read(bytes(data))
        except Invalid as error:
            assert error.what
