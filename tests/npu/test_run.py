"""Execution, bit for bit as TOSA's reference model."""

from __future__ import annotations

import numpy as np
import pytest

from support import graphs
from support.npu_bench import Bench
from tosaic import npu
from tosaic.core.errors import Invalid
from tosaic.core.targets import ACCELERATORS
from tosaic.engines import reference
from tosaic.formats import blob
from tosaic.npu.operation import Kind, Storage, read_map

MAIN = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")
OTHERS = tuple(target for target in ACCELERATORS if target not in MAIN)
#: What depends most on the number of MACs: the order of weights, and the place of tables.
SENSITIVE = ("conv_3x3_padded", "conv_large_kernel", "conv_sparse_3x3", "depthwise_strided", "conv_int16", "table_int8")


def _cases(targets: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(t, name) for t in targets for name in graphs.names("u85" if "u85" in t else "u55")]


@pytest.mark.parametrize(("target", "name"), _cases(MAIN))
def test_graph(bench: Bench, target: str, name: str) -> None:
    case = graphs.make(name)
    bench.check(case.tosa, case.inputs(), target)


@pytest.mark.parametrize("name", SENSITIVE)
@pytest.mark.parametrize("target", OTHERS)
def test_other_accelerators(bench: Bench, target: str, name: str) -> None:
    case = graphs.make(name)
    bench.check(case.tosa, case.inputs(), target)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "name"), _cases(OTHERS))
def test_every_graph_on_other_accelerators(bench: Bench, target: str, name: str) -> None:
    case = graphs.make(name)
    for seed in range(3):
        bench.check(case.tosa, case.inputs(seed), target)


@pytest.mark.parametrize("name", ["two_convs", "table_int16", "matmul_batch"])
@pytest.mark.parametrize(
    ("target", "mode", "flags"),
    [
        ("ethos-u55-128", "Sram_Only", ()),
        ("ethos-u55-256", "Shared_Sram", ("--optimise=Size",)),
        ("ethos-u65-256", "Shared_Sram", ()),
        ("ethos-u65-512", "Dedicated_Sram_256KB", ()),
        ("ethos-u85-256", "Shared_Sram", ("--optimise=Size",)),
        ("ethos-u85-256", "Dedicated_Sram_384KB", ()),
        ("ethos-u85-512", "Dedicated_Sram_384KB", ("--separate-io-regions", "--cop-format=COP2")),
        ("ethos-u85-256", "Sram_Only", ("--disable-fwd",)),
        ("ethos-u85-1024", "Sram_Only", ("--disable-fwd", "--disable-chaining")),
    ],
)
def test_memory_modes(bench: Bench, name: str, target: str, mode: str, flags: tuple[str, ...]) -> None:
    case = graphs.make(name)
    bench.check(case.tosa, case.inputs(), target, mode, flags)


@pytest.mark.parametrize("taken", [False, True])
def test_both_ways_of_a_branch(bench: Bench, taken: bool) -> None:
    case = graphs.make("branch")
    inputs = [np.array([taken]), case.inputs()[1]]
    bench.check(case.tosa, inputs, "ethos-u85-256")


@pytest.mark.parametrize("count", [0, 5, 9])
def test_loops_end_when_they_should(bench: Bench, count: int) -> None:
    case = graphs.make("loop")
    bench.check(case.tosa, [np.array([count], np.int32), case.inputs()[1]], "ethos-u85-256")


def test_the_graphs_reach_the_rare_features(bench: Bench) -> None:
    """Otherwise a change of Vela's mind would leave code here untested."""

    def ops(name: str, target: str) -> list[npu.Op]:
        return [op for op in npu.decode(bench.compile(graphs.make(name).tosa, target).cmd_data) if op.kind.is_kernel]

    u55, u85 = "ethos-u55-128", "ethos-u85-256"
    assert any(op.name("WEIGHT_FORMAT", "weight_sparsity") == "SPARSE_2_4" for op in ops("conv_sparse", u85))
    formats = {op.name("WEIGHT_FORMAT") for name in ("conv_few_weights", "depthwise") for op in ops(name, u85)}
    assert formats == {"FWD", "SWD"}
    assert {"RESET", "KEEP"} <= {op.name("ACC_FORMAT", "acc_input") for op in ops("depthwise_stride_4", u85)}
    assert any(op.mode.startswith("ARGMAX") for op in ops("argmax_rows", u85))
    assert any(op.kind is Kind.RESIZE for op in ops("resize_bilinear", u85))
    assert any(read_map(op, "OFM").bits == 64 for op in ops("resize_bilinear_int16_by_thirds", u85))
    assert any(read_map(op, "OFM").storage is Storage.CHAINED for op in ops("compare", u85))
    assert any(
        op.name("OFM_PRECISION", "activation_transpose") != "HWC" for op in ops("transpose_to_channels_last", u85)
    )
    assert any(op.name("IFM_UPSCALE") == "ZEROS" for op in ops("transposed_conv", u55))
    assert any(op.name("IFM_UPSCALE") == "NEAREST" for op in ops("resize_nearest", u55))
    assert any(layout.stride_y < 0 for op in ops("reverse_rows", u55) if (layout := read_map(op, "OFM").layout))
    assert any(op.name("IFM_PRECISION", "scale_mode") != "OPA_OPB_16" for op in ops("add_quantized", u55))
    assert any(layout.bricks for op in ops("two_convs", u55) if (layout := read_map(op, "OFM").layout))


def test_blob(bench: Bench) -> None:
    case = graphs.make("conv_with_table")
    compiled = bench.compile(case.tosa, "ethos-u55-128")
    (got,) = npu.run_blob(blob.pack(compiled), case.inputs(), ["int8"])
    (wanted,) = reference.run(case.tosa, case.inputs())
    assert np.array_equal(got.reshape(wanted.shape), wanted)


def test_trace_sees_every_operation(bench: Bench) -> None:
    case = graphs.make("two_convs")
    compiled = bench.compile(case.tosa, "ethos-u55-128")
    seen: list[tuple[int, Kind]] = []
    bench.run(compiled, case.inputs(), trace=lambda offset, op, memory: seen.append((offset, op.kind)))
    wanted = [op for op in npu.decode(compiled.cmd_data) if op.kind.is_kernel or op.kind is Kind.DMA]
    assert seen == [(op.offset, op.kind) for op in wanted]


def test_cached_weights_give_the_same(bench: Bench) -> None:
    case = graphs.make("two_convs")
    compiled = bench.compile(case.tosa, "ethos-u85-256")
    cache = npu.WeightCache(limit=1)
    results = [bench.run(compiled, case.inputs(), cache=cache)[0] for _ in range(2)]
    assert np.array_equal(*results)


def test_wrong_inputs_are_refused(bench: Bench) -> None:
    case = graphs.make("conv_1x1")
    compiled = bench.compile(case.tosa, "ethos-u55-128")
    with pytest.raises(Invalid, match="1 inputs, but 0"):
        bench.run(compiled, [])
    with pytest.raises(Invalid, match="input 0 is int16"):
        bench.run(compiled, [case.inputs()[0].astype(np.int16)])
    for wrong in (case.inputs()[0][:, :4], case.inputs()[0].view(np.int16)):
        with pytest.raises(Invalid, match="the network takes"):
            bench.run(compiled, [wrong])
    with pytest.raises(Invalid, match="1 bytes per element"):
        bench.run(compiled, case.inputs(), output_dtypes=["int16"])
