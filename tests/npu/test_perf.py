"""The estimate of cycles: its parts, what it depends on, and how far it is from Vela's own.

`tests/golden/cycles.txt` holds what the rule gives for many operations. Figures that are compared with each other rest
on it, so it must not change unnoticed. `make golden` rewrites it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import MappingProxyType

import pytest

from support import graphs
from support.cycles import estimate_graph, list_cycles
from support.golden import CYCLES
from support.npu_bench import Bench, patch_stream
from tosaic import npu
from tosaic.core.targets import ACCELERATORS, find
from tosaic.npu.accelerator import ACCELERATORS as RECORDS
from tosaic.npu.operation import Kind
from tosaic.npu.perf import Timeline, estimate
from tosaic.npu.system import MemoryPort, System, read_system
from tosaic.tools import vela

TARGETS = ("ethos-u55-32", "ethos-u55-128", "ethos-u65-512", "ethos-u85-256", "ethos-u85-2048")


@pytest.mark.parametrize("target", ACCELERATORS)
def test_nothing_changes_unnoticed(bench: Bench, target: str) -> None:
    blocks = CYCLES.read_text().split("\n\n")
    (block,) = (block for block in blocks if block.startswith(f"{target} "))
    assert list_cycles(bench, target) == block.rstrip().splitlines()


@pytest.mark.parametrize("target", TARGETS)
def test_every_operation_has_a_row(bench: Bench, target: str) -> None:
    for name in ("two_convs", "conv_with_table", "add_quantized", "max_pool", "transpose_int32", "matmul"):
        found = estimate_graph(bench, name, target)
        ops = npu.decode(bench.compile(graphs.make(name).tosa, target).cmd_data)
        assert [row.offset for row in found.rows] == [
            op.offset for op in ops if op.kind.is_kernel or op.kind is Kind.DMA
        ]
        assert found.cycles >= max(row.cycles for row in found.rows) > 0
        assert found.cycles <= sum(row.cycles for row in found.rows)
        assert found.accelerator == target
        assert 0 <= found.utilization <= 1
        names = {"mac", "output", "command", "dma", *(name for row in found.rows for name in row.memory_cycles)}
        assert {row.bottleneck for row in found.rows} <= names
        assert all(row.cycles >= max(row.memory_cycles.values(), default=0) for row in found.rows)


def test_macs_are_counted_from_the_commands(bench: Bench) -> None:
    for target in TARGETS:
        assert estimate_graph(bench, "conv_1x1", target).macs == 5 * 7 * 40 * 24
        assert estimate_graph(bench, "depthwise", target).macs == 9 * 9 * 24 * 9


def test_weights_come_from_their_memory(bench: Bench) -> None:
    compiled = bench.compile(graphs.make("conv_1x1").tosa, "ethos-u55-128")
    (conv,) = (op for op in npu.decode(compiled.cmd_data) if op.kind is Kind.CONV)
    found = estimate_graph(bench, "conv_1x1", "ethos-u55-128")
    assert found.traffic["OffChipFlash"].read == conv.get("WEIGHT_LENGTH") + conv.get("SCALE_LENGTH")
    assert found.traffic["Sram"].written == 5 * 7 * 24
    assert found.rows[0].bottleneck == "OffChipFlash"


def test_the_system_is_read_from_the_options() -> None:
    system = read_system(vela.default_options(find("ethos-u55-128")))
    assert (system.clock, system.find(0).name, system.find(1).name) == (500e6, "OffChipFlash", "Sram")
    assert (system.find(1).bandwidth, system.find(0).bandwidth) == (8.0, 1.0)
    dedicated = read_system(vela.default_options(find("ethos-u65-512")))
    assert [dedicated.find(region).name for region in range(3)] == ["Dram", "Dram", "Sram"]


def test_what_a_system_does_not_say(tmp_path: Path) -> None:
    lines = ["[System_Config.Plain]", "core_clock=1e8", "axi0_port=Sram", "axi1_port=OffChipFlash"]
    lines += ["[Memory_Mode.Plain]", "const_mem_area=Axi1", "arena_mem_area=Axi0", "cache_mem_area=Axi0"]
    ini = tmp_path / "plain.ini"
    ini.write_text("\n".join(lines))
    system = read_system(vela.VelaOptions("ethos-u55-128", "Plain", "Plain", config_ini=str(ini)))
    assert (system.clock, system.find(0).name, system.find(1).name) == (1e8, "OffChipFlash", "Sram")
    wanted = MemoryPort("Sram", 8.0, ports=1, burst=1, read_latency=0, write_latency=0, max_reads=1, max_writes=1)
    assert system.find(1) == wanted


@pytest.mark.parametrize(
    ("accelerator", "kernel_ends"), [("ethos-u55-256", 55), ("ethos-u65-256", 45), ("ethos-u85-256", 25)]
)
def test_so_many_transfers_may_be_under_way(accelerator: str, kernel_ends: int) -> None:
    timeline = Timeline()
    for _ in range(6):
        timeline.start_transfer(10, RECORDS[accelerator])
    timeline.start_kernel(5)
    assert (list(timeline.transfers)[-6:], timeline.kernels[-1]) == ([10, 20, 30, 40, 50, 60], kernel_ends)
    assert timeline.end() == 60


def test_operations_overlap_where_they_may(bench: Bench) -> None:
    compiled = bench.compile(graphs.make("two_convs").tosa, "ethos-u55-128")
    options = vela.default_options(find("ethos-u55-128"))
    found = {
        dependent: estimate(patch_stream(compiled.cmd_data, "SET_BLOCKDEP", param=dependent), options).cycles
        for dependent in range(4)
    }
    assert found[0] > found[1] == found[2] == found[3]


def test_stream_without_operations() -> None:
    words = (0x31504F43, 1, 7, 0, 2)  # the container, a U55 with 128 MACs, and no commands
    found = estimate(
        b"".join(word.to_bytes(4, "little") for word in words), vela.default_options(find("ethos-u55-128"))
    )
    assert (found.rows, found.cycles) == ((), 0)


def test_slower_memory_is_never_faster(bench: Bench) -> None:
    compiled = bench.compile(graphs.make("two_convs").tosa, "ethos-u85-256")
    system = read_system(vela.default_options(find("ethos-u85-256")))
    slow = {region: dataclasses.replace(port, bandwidth=port.bandwidth / 64) for region, port in system.regions.items()}
    before = estimate(compiled.cmd_data, system)
    after = estimate(compiled.cmd_data, System(system.clock, MappingProxyType(slow)))
    assert after.cycles > before.cycles
    assert {row.bottleneck for row in after.rows if row.kind == "CONV"} == {"Sram"}


def test_tables_slow_a_u55_down(bench: Bench) -> None:
    with_table = estimate_graph(bench, "conv_with_table", "ethos-u55-256").rows[-1]
    assert with_table.output_cycles >= 6 * 6 * 16


@pytest.mark.parametrize("name", ["two_convs", "conv_deep", "conv_1x1", "depthwise"])
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_close_to_vela(bench: Bench, target: str, name: str) -> None:
    compiled = bench.compile(graphs.make(name).tosa, target)
    assert 0.6 < estimate_graph(bench, name, target).cycles / compiled.summary["cycles_total"] < 1.5
