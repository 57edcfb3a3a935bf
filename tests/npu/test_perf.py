"""The estimate of cycles: its parts, what it depends on, and how far it is from Vela's own."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

import graphs
import pytest

from tosaic import npu
from tosaic.npu.perf import Estimate, estimate
from tosaic.npu.record import Kind
from tosaic.npu.system import System, read_system
from tosaic.targets import find
from tosaic.tools import vela

TARGETS = ("ethos-u55-32", "ethos-u55-128", "ethos-u65-512", "ethos-u85-256", "ethos-u85-2048")


def _estimate(bench: Any, name: str, target: str) -> Estimate:
    return estimate(bench.compile(graphs.make(name).tosa, target).cmd_data, vela.default_options(find(target)))


@pytest.mark.parametrize("target", TARGETS)
def test_every_operation_has_a_row(bench: Any, target: str) -> None:
    for name in ("two_convs", "conv_with_table", "add_quantised", "max_pool", "transpose_int32", "matmul"):
        found = _estimate(bench, name, target)
        ops = npu.decode(bench.compile(graphs.make(name).tosa, target).cmd_data)
        assert [row.offset for row in found.rows] == [
            op.offset for op in ops if op.kind.is_kernel or op.kind is Kind.DMA
        ]
        assert found.cycles >= max(row.cycles for row in found.rows) > 0
        assert found.cycles <= sum(row.cycles for row in found.rows)
        assert found.accelerator == target
        assert 0 <= found.utilisation <= 1
        names = {"mac", "output", "command", "dma", *(name for row in found.rows for name in row.memory_cycles)}
        assert {row.bottleneck for row in found.rows} <= names
        assert all(row.cycles >= max(row.memory_cycles.values(), default=0) for row in found.rows)


def test_macs_are_counted_from_the_commands(bench: Any) -> None:
    for target in TARGETS:
        assert _estimate(bench, "conv_1x1", target).macs == 5 * 7 * 40 * 24
        assert _estimate(bench, "depthwise", target).macs == 9 * 9 * 24 * 9


def test_weights_come_from_their_memory(bench: Any) -> None:
    compiled = bench.compile(graphs.make("conv_1x1").tosa, "ethos-u55-128")
    (conv,) = (op for op in npu.decode(compiled.cmd_data) if op.kind is Kind.CONV)
    found = _estimate(bench, "conv_1x1", "ethos-u55-128")
    assert found.traffic["OffChipFlash"].read == conv.get("WEIGHT_LENGTH") + conv.get("SCALE_LENGTH")
    assert found.traffic["Sram"].written == 5 * 7 * 24
    assert found.rows[0].bottleneck == "OffChipFlash"


def test_the_system_is_read_from_the_options() -> None:
    system = read_system(vela.default_options(find("ethos-u55-128")))
    assert (system.clock, system.find(0).name, system.find(1).name) == (500e6, "OffChipFlash", "Sram")
    assert (system.find(1).bandwidth, system.find(0).bandwidth) == (8.0, 1.0)
    dedicated = read_system(vela.default_options(find("ethos-u65-512")))
    assert [dedicated.find(region).name for region in range(3)] == ["Dram", "Dram", "Sram"]


def test_slower_memory_is_never_faster(bench: Any) -> None:
    compiled = bench.compile(graphs.make("two_convs").tosa, "ethos-u85-256")
    system = read_system(vela.default_options(find("ethos-u85-256")))
    slow = {region: dataclasses.replace(port, bandwidth=port.bandwidth / 64) for region, port in system.regions.items()}
    before = estimate(compiled.cmd_data, system)
    after = estimate(compiled.cmd_data, System(system.clock, MappingProxyType(slow)))
    assert after.cycles > before.cycles
    assert {row.bottleneck for row in after.rows if row.kind == "CONV"} == {"Sram"}


def test_tables_slow_a_u55_down(bench: Any) -> None:
    with_table = _estimate(bench, "conv_with_table", "ethos-u55-256").rows[-1]
    assert with_table.output_cycles >= 6 * 6 * 16


@pytest.mark.parametrize("name", ["two_convs", "conv_deep", "conv_1x1", "depthwise"])
@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u85-256"])
def test_close_to_vela(bench: Any, target: str, name: str) -> None:
    compiled = bench.compile(graphs.make(name).tosa, target)
    assert 0.6 < _estimate(bench, name, target).cycles / compiled.summary["cycles_total"] < 1.5
