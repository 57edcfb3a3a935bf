"""The memory that a simulated network may take: counted before it is taken."""

from __future__ import annotations

import resource
import struct
from collections.abc import Callable

import numpy as np
import pytest
from ethosu import mlw_codec

from support import graphs
from support.npu_bench import Bench, patch_stream
from tosaic import npu
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats import blob
from tosaic.tools import vela

U55 = "ethos-u55-128"
MIB = 1 << 20


@pytest.fixture
def compiled(bench: Bench) -> vela.Compiled:
    return bench.compile(graphs.make("conv_1x1").tosa, U55)


def refuse(run: Callable[[], object]) -> Invalid:
    """The error of something that must end before it takes much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Invalid) as caught:
        run()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10
    return caught.value


def with_scratch(compiled: vela.Compiled, size: int) -> bytes:
    """The blob of a network that asks for this much scratch."""
    data, header = blob.pack(compiled), b"scratch_size".ljust(16, b"\0")
    at = data.index(header) + 32
    return data[:at] + struct.pack("<I", size) + data[at + 4 :]


def test_a_small_blob_with_gigabytes_of_scratch(compiled: vela.Compiled) -> None:
    inputs = graphs.make("conv_1x1").inputs()
    data = with_scratch(compiled, 3 << 30)
    assert len(data) < 8192
    error = refuse(lambda: npu.run_blob(data, inputs, fast_scratch_size=compiled.fast_scratch_size))
    assert isinstance(error, npu.TooMuch) and error.why.startswith("322")


@pytest.mark.parametrize("check", [False, True])
def test_scratch_beyond_the_budget(compiled: vela.Compiled, check: bool) -> None:
    inputs = graphs.make("conv_1x1").inputs()
    data, budget = with_scratch(compiled, 100 * MIB), Budget(0, 99 * MIB * (2 if check else 1))
    error = refuse(lambda: npu.run_blob(data, inputs, budget=budget, check_uninitialized=check))
    assert error.what.startswith("the memory of the simulated NPU needs")
    assert budget.left == budget.limit


def test_the_budget_is_whole_again_after_a_run(compiled: vela.Compiled) -> None:
    budget = Budget(0, 8 * MIB)
    options = {"budget": budget, "fast_scratch_size": compiled.fast_scratch_size}
    for _ in range(2):
        npu.run_blob(blob.pack(compiled), graphs.make("conv_1x1").inputs(), cache=npu.WeightCache(), **options)
    assert budget.left == budget.limit


def test_weights_whose_geometry_is_beyond_the_budget(compiled: vela.Compiled) -> None:
    """The registers say how many weights a stream of a few hundred bytes holds."""
    cmd_data = patch_stream(compiled.cmd_data, "SET_IFM_DEPTH_M1", param=0xFFFF)
    sizes = {"SET_OFM_DEPTH_M1": 0xFF, "SET_OFM_HEIGHT0_M1": 0, "SET_OFM_HEIGHT_M1": 0, "SET_OFM_WIDTH_M1": 0}
    for command, value in sizes.items():
        cmd_data = patch_stream(cmd_data, command, param=value)
    budget = Budget(0, 64 * MIB)

    def run() -> None:
        npu.run(
            cmd_data,
            compiled.weight_data,
            compiled.scratch_size,
            graphs.make("conv_1x1").inputs(),
            compiled.inputs,
            compiled.outputs,
            fast_scratch_size=compiled.fast_scratch_size,
            budget=budget,
        )

    assert refuse(run).what.startswith("decoded weights needs 201,326,592 bytes")
    assert budget.left == budget.limit


def test_a_damaged_stream_takes_nothing_from_the_budget(bench: Bench, compiled: vela.Compiled) -> None:
    budget = Budget(0, 64 * MIB)
    cache = npu.WeightCache(budget=budget)
    with pytest.raises(npu.Malformed):
        npu.run(
            compiled.cmd_data,
            bytes(len(compiled.weight_data)),
            compiled.scratch_size,
            graphs.make("conv_1x1").inputs(),
            compiled.inputs,
            compiled.outputs,
            fast_scratch_size=compiled.fast_scratch_size,
            cache=cache,
            budget=budget,
        )
    assert budget.left == budget.limit


def test_a_stream_of_more_weights_than_any_geometry(bench: Bench) -> None:
    """A few kilobytes of zeros decode to any number of weights; the decoder keeps them to itself."""
    from tosaic.npu import weights

    stream = bytes(mlw_codec.encode(np.zeros(MIB, np.int16).tolist()))
    assert len(weights.decode_streams([stream], 0)[0]) == MIB
    request = weights.decoder().request({"most": MIB - 1}, [stream], timeout=20)
    assert "1048576 weights" in request.failure and not request.parts
