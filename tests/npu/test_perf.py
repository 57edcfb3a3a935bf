"""The estimate of cycles: its parts, what it depends on, and how far it is from Vela's own.

`cycles.txt` holds what the rule gives for many operations: figures that are compared with each other rest on it, so it
must not change unnoticed. `python tests/npu/test_perf.py` writes it anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import graphs
import pytest

from tosaic import npu
from tosaic.core.targets import ACCELERATORS, find
from tosaic.npu.accelerator import ACCELERATORS as RECORDS
from tosaic.npu.operation import Kind
from tosaic.npu.perf import Estimate, Timeline, estimate
from tosaic.npu.system import MemoryPort, System, read_system
from tosaic.tools import vela

Patch = Callable[..., bytes]
GOLDEN = Path(__file__).with_name("cycles.txt")
#: What depends on the number of MACs; the main accelerators have more.
SENSITIVE = (
    "conv_large_kernel", "conv_int16", "depthwise_strided", "max_pool", "conv_with_table", "add_quantized", "add_int32",
    "mul_int8", "mul_int32_shifted", "abs_int32", "reduce_sum_channels", "conv_one_channel", "conv_one_row",
    "conv_one_odd_row", "conv_three_rows_to_one", "conv_one_pixel", "conv_int16_one_column", "conv_8x8",
)  # fmt: skip
MAIN = {
    "ethos-u55-128": (
        "conv_1x1", "conv_3x3_padded", "conv_deep", "conv_depth_first_strided", "conv_dilated_and_large",
        "conv_in_pieces", "conv_int16_1x1", "depthwise_int16", "transposed_conv", "average_pool_padded", "table_int16",
        "add_int16_quantized", "sub_quantized_broadcast", "sub_int32_scalar", "add_to_constants", "mul_int16",
        "minimum_int32", "rescale_to_int32", "transpose_to_channels_last", "reverse_rows", "matmul", "two_convs",
    ),
    "ethos-u65-512": ("conv_1x1", "conv_deep", "two_convs", "table_int8", "mul_int16", "conv_in_pieces"),
    "ethos-u85-256": (
        "conv_1x1", "conv_3x3_padded", "conv_deep", "conv_depth_first_strided", "conv_sparse", "conv_sparse_3x3",
        "conv_few_weights", "conv_int16_1x1", "depthwise_stride_4", "depthwise_int16", "matmul", "matmul_int16",
        "argmax_rows", "average_pool_int16", "add_int16_quantized", "sub_quantized_reversed", "sub_int32_scalar",
        "add_to_constants", "mul_int16", "compare", "choose", "divide", "bitwise_not_int8", "cast_to_int8",
        "resize_bilinear", "resize_bilinear_int16", "transpose_rows_columns", "transpose_int32", "reverse_rows",
        "gather_batch", "scatter", "two_convs", "rescale_to_int32", "conv_in_pieces", "conv_1x1_shallow",
    ),
    "ethos-u85-1024": (
        "resize_bilinear", "resize_bilinear_int16", "reverse_rows", "mul_int16", "conv_sparse", "conv_deep",
    ),
}  # fmt: skip
DISTANT = ("conv_deep", "conv_few_weights", "add_quantized", "conv_with_table")
TARGETS = ("ethos-u55-32", "ethos-u55-128", "ethos-u65-512", "ethos-u85-256", "ethos-u85-2048")


def _estimate(bench: Any, name: str, target: str) -> Estimate:
    return estimate(bench.compile(graphs.make(name).tosa, target).cmd_data, vela.default_options(find(target)))


def _describe(target: str, name: str, found: Estimate) -> Iterator[str]:
    def traffic(moved: Any) -> str:
        return ", ".join(f"{memory} {t.read}+{t.written}" for memory, t in moved.items())

    used = f"{found.macs} MACs, {found.utilization:.4f}"
    yield f"{target} {name}: {found.cycles} cycles, {used}, {traffic(found.traffic)}"
    for row in found.rows:
        parts = {"mac": row.mac_cycles, "output": row.output_cycles, **row.memory_cycles}
        cycles = ", ".join(f"{part} {number}" for part, number in parts.items() if number)
        used = f"{row.macs} MACs, {row.utilization:.4f}"
        yield f"  {row.offset} {row.name} {row.cycles} ({cycles}), {row.bottleneck}, {used}, {traffic(row.traffic)}"


def _list_golden(bench: Any, target: str) -> list[str]:
    names = (*SENSITIVE, *MAIN.get(target, ()))
    lines = [line for name in names for line in _describe(target, name, _estimate(bench, name, target))]
    return lines + [
        line for name in DISTANT for line in _describe(target, f"{name} far away", _go_far(bench, name, target))
    ]


def _go_far(bench: Any, name: str, target: str) -> Estimate:
    """With memory that takes any number of reads but answers late: what an NPU may have under way decides."""
    system = read_system(vela.default_options(find(target)))
    ports = {
        region: dataclasses.replace(port, max_reads=1 << 20, read_latency=1000)
        for region, port in system.regions.items()
    }
    far = System(system.clock, MappingProxyType(ports))
    return estimate(bench.compile(graphs.make(name).tosa, target).cmd_data, far)


@pytest.mark.parametrize("target", ACCELERATORS)
def test_nothing_changes_unnoticed(bench: Any, target: str) -> None:
    blocks = GOLDEN.read_text().split("\n\n")
    (block,) = (block for block in blocks if block.startswith(f"{target} "))
    assert _list_golden(bench, target) == block.rstrip().splitlines()


@pytest.mark.parametrize("target", TARGETS)
def test_every_operation_has_a_row(bench: Any, target: str) -> None:
    for name in ("two_convs", "conv_with_table", "add_quantized", "max_pool", "transpose_int32", "matmul"):
        found = _estimate(bench, name, target)
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


def test_operations_overlap_where_they_may(bench: Any, patched: Patch) -> None:
    compiled = bench.compile(graphs.make("two_convs").tosa, "ethos-u55-128")
    options = vela.default_options(find("ethos-u55-128"))
    found = {
        dependent: estimate(patched(compiled.cmd_data, "SET_BLOCKDEP", param=dependent), options).cycles
        for dependent in range(4)
    }
    assert found[0] > found[1] == found[2] == found[3]


def test_stream_without_operations() -> None:
    words = (0x31504F43, 1, 7, 0, 2)  # the container, a U55 with 128 MACs, and no commands
    found = estimate(
        b"".join(word.to_bytes(4, "little") for word in words), vela.default_options(find("ethos-u55-128"))
    )
    assert (found.rows, found.cycles) == ((), 0)


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


if __name__ == "__main__":
    from conftest import Bench

    GOLDEN.write_text("\n\n".join("\n".join(_list_golden(Bench(), target)) for target in ACCELERATORS) + "\n")
