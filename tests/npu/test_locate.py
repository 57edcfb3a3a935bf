"""The search for the first wrong command: silent on streams that are right, exact on those that are not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support import graphs
from tosaic import npu
from tosaic.api.locate import locate
from tosaic.backends.ethosu import EthosUCompileSpec
from tosaic.engines import reference
from tosaic.formats import blob
from tosaic.formats.sidecar import DelegateFiles
from tosaic.formats.tosa_writer import read, serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Graph, Type, Value
from tosaic.tools import vela

TARGETS = {"u55": "ethos-u55-128", "u85": "ethos-u85-256"}
#: Cases with copies, slices, several tensors of one name, bools, chains, moved axes, DMA and branches.
QUICK = {
    "u55": ["conv_3x3_padded", "depthwise_multiplied", "matmul_batch", "add_quantized", "transpose_int32"],
    "u85": ["depthwise_multiplied", "logic", "choose", "reverse_channels", "gather_batch", "scatter", "branch"],
}


def compile_graph(tosa: bytes, target: str, *flags: str) -> vela.Compiled:
    options = dataclasses.replace(EthosUCompileSpec(target).options, extra_flags=flags)
    return vela.compile(tosa, options)


def check_silence(family: str, name: str) -> None:
    case = graphs.make(name)
    try:
        compiled = compile_graph(case.tosa, TARGETS[family])
    except vela.Refused as error:
        pytest.skip(error.why)
    data, inputs = blob.pack(compiled), case.inputs(1)
    for got, want in zip(npu.run_blob(data, inputs), reference.run(case.tosa, inputs), strict=True):
        assert got.tobytes() == want.tobytes()
    assert locate(data, inputs, DelegateFiles(case.tosa, (), compiled.debug_db), 0) == {}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family in QUICK for name in QUICK[family]])
def test_silent_where_all_is_right(family: str, name: str) -> None:
    check_silence(family, name)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [(f, n) for f in QUICK for n in graphs.names(f) if n not in QUICK[f]])
def test_silent_on_every_graph(family: str, name: str) -> None:
    check_silence(family, name)


def make_chain(depth: int) -> Graph:
    """Convolutions one after the other, each with a rescale; large enough for Vela to keep only some rows of each."""
    b = Builder()
    rng = np.random.default_rng(3)
    x: Value = b.input(Type(DType.I8, (1, 64, 64, 8)))
    for _ in range(depth):
        w = b.const(rng.integers(-127, 128, (8, 3, 3, 8)), DType.I8)
        bias = b.const(rng.integers(-999, 999, 8), DType.I32)
        acc = ops.conv2d(b, x, w, bias, pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1), acc_type=DType.I32)
        x = ops.rescale(b, acc, DType.I8, multiplier=[1 << 30], shift=[38])
    return b.finish([x])


@pytest.mark.parametrize("flags", [(), ("--optimise=Size",)], ids=["whole", "rolling"])
@pytest.mark.parametrize("wrong", [0, 2, 3])
def test_names_the_first_wrong_operator(flags: tuple[str, ...], wrong: int) -> None:
    tosa = serialize(make_chain(4))
    compiled = compile_graph(tosa, "ethos-u55-128", *flags)
    assert ("OpCascade" in compiled.debug_db) == bool(flags)
    data = blob.pack(compiled)
    inputs = graphs.Case(make_chain(4)).inputs()
    assert locate(data, inputs, DelegateFiles(tosa, (), compiled.debug_db), 0) == {}
    # What the NPU computes stays; what it should compute changes from one operator on.
    graph = read(tosa)
    index = [i for i, op in enumerate(graph.ops) if op.kind == "CONV2D"][wrong]
    bias = graph.ops[index].inputs[2].op
    assert bias is not None
    bias.attrs = {**bias.attrs, "data": np.full(8, 9000, np.int32)}
    found = locate(data, inputs, DelegateFiles(serialize(graph), (), compiled.debug_db), 0)
    assert found["op"] == f"t{index}:CONV2D"
    assert found["through"].endswith(":RESCALE")
