"""Estimated cycles of many operations on every accelerator, as lines of text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from support import graphs
from support.npu_bench import Bench
from tosaic.core.targets import find
from tosaic.npu.perf import Estimate, estimate
from tosaic.npu.system import System, read_system
from tosaic.tools import vela

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


def estimate_graph(bench: Bench, name: str, target: str) -> Estimate:
    """Estimate one of the test graphs."""
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


def list_cycles(bench: Bench, target: str) -> list[str]:
    """List what the estimate gives for this accelerator."""
    names = (*SENSITIVE, *MAIN.get(target, ()))
    lines = [line for name in names for line in _describe(target, name, estimate_graph(bench, name, target))]
    return lines + [
        line for name in DISTANT for line in _describe(target, f"{name} far away", _go_far(bench, name, target))
    ]


def _go_far(bench: Bench, name: str, target: str) -> Estimate:
    """Estimate with memory that takes any number of reads but answers late: what an NPU may have under way decides."""
    system = read_system(vela.default_options(find(target)))
    ports = {
        region: dataclasses.replace(port, max_reads=1 << 20, read_latency=1000)
        for region, port in system.regions.items()
    }
    far = System(system.clock, MappingProxyType(ports))
    return estimate(bench.compile(graphs.make(name).tosa, target).cmd_data, far)
