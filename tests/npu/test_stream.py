"""The decoder: container, commands and their text, against Vela's own listing."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from support import graphs
from support.npu_bench import Bench
from tosaic import npu
from tosaic.npu.operation import Kind
from tosaic.npu.registers import COMMANDS, Family
from tosaic.npu.stream import parse

LISTING = ("--verbose-register-command-stream",)
SPREAD = {
    "ethos-u55-128": ("conv_with_table", "add_quantized", "transpose_int32", "average_pool_padded", "matmul"),
    "ethos-u65-512": ("conv_3x3_padded", "depthwise_strided", "table_int16", "reverse_rows", "sub_int32_scalar"),
    "ethos-u85-256": ("conv_sparse", "matmul", "resize_bilinear", "gather_batch", "scatter", "loop", "argmax_rows"),
    "ethos-u85-1024": (
        "conv_with_table",
        "transpose_to_channels_first",
        "sub_quantized_reversed",
        "depthwise_stride_4",
    ),
}
CASES = [(target, name) for target, names in SPREAD.items() for name in names]


@pytest.mark.parametrize(("target", "name"), CASES)
def test_listing_equals_velas(bench: Bench, target: str, name: str) -> None:
    compiled = bench.compile(graphs.make(name).tosa, target, "", LISTING)
    assert npu.disassemble(compiled.cmd_data).splitlines() == bench.read_listing(compiled.log)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ethos-u55-256", "ethos-u65-256", "ethos-u85-512"])
def test_listing_equals_velas_everywhere(bench: Bench, target: str) -> None:
    for name in graphs.names(bench.family(target)):
        compiled = bench.compile(graphs.make(name).tosa, target, "", LISTING)
        assert npu.disassemble(compiled.cmd_data).splitlines() == bench.read_listing(compiled.log), name


def test_operations_keep_their_registers(bench: Bench) -> None:
    ops = npu.decode(bench.compile(graphs.make("conv_with_table").tosa, "ethos-u55-128").cmd_data)
    assert [op.kind for op in ops] == [Kind.DMA, Kind.DMA_WAIT, Kind.CONV, Kind.STOP]
    conv = ops[2]
    assert (conv.get("OFM_DEPTH_M1"), conv.get("IFM_DEPTH_M1"), conv.get("KERNEL_WIDTH_M1")) == (15, 7, 2)
    assert conv.name("ACTIVATION", "activation_function") == "TABLE_0"
    assert "OFM_DEPTH_M1" not in ops[0].registers
    registers: Any = conv.registers
    with pytest.raises(TypeError):
        registers["OFM_DEPTH_M1"] = 3


def test_accelerator_is_read_from_the_container(bench: Bench) -> None:
    for target in ("ethos-u55-32", "ethos-u65-512", "ethos-u85-2048"):
        assert parse(bench.compile(graphs.make("conv_1x1").tosa, target).cmd_data).accelerator.name == target


def test_both_containers_hold_the_same_stream(bench: Bench) -> None:
    tosa = graphs.make("conv_1x1").tosa
    first, second = (
        parse(bench.compile(tosa, "ethos-u85-256", "", flags).cmd_data) for flags in ((), ("--cop-format=COP2",))
    )
    assert first.words.tolist() == second.words.tolist()
    assert first.accelerator == second.accelerator


def test_every_field_lies_in_its_command() -> None:
    for family in Family:
        for command in COMMANDS[family].values():
            top = 48 if command.has_payload else 16
            taken = 0
            for field in command.fields:
                assert field.mask < 1 << top, command.name
                assert not taken & field.mask, command.name
                taken |= field.mask


_HEADER = [0x31504F43, 1, 0x00001807, 0, 5, 5, 5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([0x39504F43], "not an Ethos-U command stream"),
        (_HEADER, "no command stream"),
        ([*_HEADER, 2 | 9 << 16, 0xFFFF0000], "declares 9 words"),
        ([_HEADER[0], 2 | 1 << 16, 0xFFFF0000], "does not name its accelerator"),
        ([_HEADER[0], 7, 0, 0], "driver action"),
        ([_HEADER[0], 1, 0x30000007, 0], "accelerator configuration"),
        ([_HEADER[0], 1, 0x00001804, 0], "accelerator configuration"),
        ([_HEADER[0], 1], "driver action"),
        ([_HEADER[0], 1, 0x00001807], "no command stream"),
        ([_HEADER[0], 5], "no command stream"),
        ([*_HEADER, 2 | 1 << 16], "declares 1 words"),
        ([*_HEADER, 2 | 1 << 8, 0xFFFF0000], "declares 65536 words"),
        ([0x32504F43, *[0] * 13], "too short"),
        ([0x32504F43, *[0] * 14], "container version"),
    ],
)
def test_damaged_containers(words: list[int], message: str) -> None:
    with pytest.raises(npu.Fault, match=message):
        parse(struct.pack(f"<{len(words)}I", *words))


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7, 8])
def test_damaged_second_container(bench: Bench, at: int) -> None:
    """Version, sizes, kind and mark: one more than it should be."""
    cmd_data = bench.compile(graphs.make("conv_1x1").tosa, "ethos-u85-256", "", ("--cop-format=COP2",)).cmd_data
    words = list(struct.unpack(f"<{len(cmd_data) // 4}I", cmd_data))
    words[at] += 1
    message = {2: "sizes are wrong", 3: "sizes are wrong", 5: "sizes are wrong", 6: "is not aligned"}
    with pytest.raises(npu.Fault, match=message.get(at, "container version")):
        parse(struct.pack(f"<{len(words)}I", *words))


def test_commands_without_their_payload() -> None:
    words = [*_HEADER, 2 | 2 << 16, 0x00010100, 0x00004000]
    with pytest.raises(npu.Malformed, match="SET_IFM_BASE0 has no payload word") as caught:
        npu.disassemble(struct.pack(f"<{len(words)}I", *words))
    assert caught.value.offset == 4
    with pytest.raises(npu.Malformed, match="bad size"):
        parse(bytes(33))


def test_unknown_commands_name_their_offset() -> None:
    words = [*_HEADER, 2 | 2 << 16, 0x00010100, 0x000003FF]
    with pytest.raises(npu.UnknownField, match="opcode") as caught:
        npu.disassemble(struct.pack(f"<{len(words)}I", *words))
    assert caught.value.offset == 4
