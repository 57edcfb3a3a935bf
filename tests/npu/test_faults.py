"""What a damaged or wrong stream ends in: a typed error that says where."""

from __future__ import annotations

import random
import struct
import time
from typing import Any

import numpy as np
import pytest

from support import graphs
from support.npu_bench import Bench, patch_stream
from tosaic import npu
from tosaic.core.errors import TosaicError
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Type
from tosaic.npu.operation import Kind
from tosaic.npu.stream import parse

U55, U65, U85 = "ethos-u55-128", "ethos-u65-512", "ethos-u85-256"


def _run(bench: Bench, name: str, target: str, cmd_data: bytes | None = None, **options: Any) -> Any:
    case = graphs.make(name)
    compiled = bench.compile(case.tosa, target)
    return npu.run(
        cmd_data or compiled.cmd_data,
        options.pop("weight_data", compiled.weight_data),
        options.pop("scratch_size", compiled.scratch_size),
        case.inputs(),
        compiled.inputs,
        compiled.outputs,
        fast_scratch_size=compiled.fast_scratch_size,
        **options,
    )


def _stream(bench: Bench, name: str, target: str) -> bytes:
    return bench.compile(graphs.make(name).tosa, target).cmd_data


def test_addresses_outside_a_region(bench: Bench) -> None:
    cmd_data = patch_stream(_stream(bench, "conv_1x1", U55), "SET_OFM_BASE0", payload=1 << 20)
    with pytest.raises(npu.OutOfRange, match="are outside region 1") as caught:
        _run(bench, "conv_1x1", U55, cmd_data)
    fault = caught.value
    assert (fault.address, fault.region) == (1 << 20, "region 1")
    assert fault.size >= 5 * 7 * 24
    assert fault.offset is not None and f"0x{fault.offset:06x}" in str(fault)


def test_strides_that_lead_outside(bench: Bench) -> None:
    cmd_data = patch_stream(_stream(bench, "conv_1x1", U55), "SET_IFM_STRIDE_Y", param=0xFF, payload=0xFFFF0000)
    with pytest.raises(npu.OutOfRange):
        _run(bench, "conv_1x1", U55, cmd_data)


def test_weights_are_read_only(bench: Bench) -> None:
    cmd_data = patch_stream(_stream(bench, "conv_1x1", U55), "SET_OFM_REGION", param=0)
    cmd_data = patch_stream(cmd_data, "SET_OFM_BASE0", payload=0)
    with pytest.raises(npu.Fault, match="can only be read"):
        _run(bench, "conv_1x1", U55, cmd_data)


def test_regions_that_do_not_exist(bench: Bench) -> None:
    cmd_data = patch_stream(_stream(bench, "conv_1x1", U55), "SET_IFM_REGION", param=6)
    with pytest.raises(npu.Fault, match="no region 6"):
        _run(bench, "conv_1x1", U55, cmd_data)


@pytest.mark.parametrize(
    ("name", "target", "command", "param", "field", "value"),
    [
        ("conv_1x1", U55, "SET_OFM_PRECISION", 0x4001, "OFM_PRECISION.round_mode", "TRUNCATE"),
        ("conv_1x1", U55, "SET_OFM_PRECISION", 0x0007, "OFM_PRECISION.activation_precision", 3),
        ("conv_1x1", U55, "SET_IFM_PRECISION", 0x0009, "IFM_PRECISION.activation_precision", 2),
        ("conv_1x1", U55, "SET_ACTIVATION", 3, "ACTIVATION.activation_function", 3),
        ("conv_1x1", U55, "SET_ACTIVATION", 1, "ACTIVATION.activation_function", 1),
        ("conv_1x1", U55, "SET_ACTIVATION", 0x2000, "ACTIVATION.activation_clip_range", 2),
        ("conv_1x1", U55, "SET_ACTIVATION", 0x5000, "ACTIVATION.activation_clip_range", 5),
        ("conv_clamped_to_8_of_32_bits", U55, "SET_ACTIVATION", 0x3000, "ACTIVATION.activation_clip_range", 3),
        ("conv_clamped_to_8_of_32_bits", U55, "SET_ACTIVATION", 0x5010, "ACTIVATION.activation_function", 16),
        ("conv_1x1", U55, "SET_ACC_FORMAT", 2, "ACC_FORMAT.acc_format", 2),
        ("conv_1x1", U55, "SET_KERNEL_STRIDE", 0x20, "KERNEL_STRIDE.decomposition", 1),
        ("conv_1x1", U55, "SET_IFM_REGION", 0x100, "SET_IFM_REGION reserved bits", "0x100"),
        ("depthwise", U55, "SET_IFM_DEPTH_M1", 22, "IFM_DEPTH_M1", 22),
        ("max_pool", U55, "SET_IFM_DEPTH_M1", 16, "IFM_DEPTH_M1", 16),
        ("add_int32", U55, "OP_ELEMENTWISE", 5, "elementwise_mode", "LRELU"),
        ("conv_1x1", U65, "SET_PARALLEL_MODE", 0, "PARALLEL_MODE", 0),
        ("conv_1x1", U85, "SET_IFM_PRECISION", 0x4001, "IFM_PRECISION.activation_storage", 1),
        ("conv_1x1", U85, "SET_ACTIVATION", 10, "ACTIVATION.activation_function", "LUT_TANH"),
        ("conv_1x1", U85, "SET_OFM_SCALE", 0x6000, "OFM_SCALE.round_mode", "SYMMETRIC"),
        ("mul_int8", U85, "SET_OFM_SCALE", 0x2040, "OFM_SCALE.dbl_rnd", 1),
        ("resize_bilinear", U85, "OP_RESIZE", 1, "resize_mode", "REPLICATE"),
        ("matmul", U85, "SET_KERNEL_HEIGHT_M1", 1, "KERNEL_HEIGHT_M1", 1),
        ("reduce_sum_channels", U55, "SET_KERNEL_HEIGHT_M1", 1, "KERNEL_HEIGHT_M1", 1),
        ("reduce_sum_channels", U55, "SET_KERNEL_WIDTH_M1", 1, "KERNEL_WIDTH_M1", 1),
    ],
)
def test_unknown_fields(
    bench: Bench, name: str, target: str, command: str, param: int, field: str, value: int | str
) -> None:
    cmd_data = patch_stream(_stream(bench, name, target), command, param=param)
    with pytest.raises(npu.UnknownField) as caught:
        _run(bench, name, target, cmd_data)
    assert (field in caught.value.field, caught.value.value) == (True, value)
    assert "is not known" in str(caught.value)


def test_registers_that_nothing_set(bench: Bench) -> None:
    cmd_data = bytearray(_stream(bench, "conv_1x1", U55))
    struct.pack_into("<I", cmd_data, 32, 0x00000002)
    with pytest.raises(npu.UnknownField, match="unset"):
        _run(bench, "conv_1x1", U55, bytes(cmd_data))


def test_reads_of_what_nothing_wrote(bench: Bench) -> None:
    cmd_data = patch_stream(_stream(bench, "conv_1x1", U55), "SET_IFM_BASE0", payload=0)
    larger = bench.compile(graphs.make("conv_1x1").tosa, U55).scratch_size + 4096
    _run(bench, "conv_1x1", U55, cmd_data, scratch_size=larger)
    with pytest.raises(npu.Uninitialized, match="never written") as caught:
        _run(bench, "conv_1x1", U55, cmd_data, scratch_size=larger, check_uninitialized=True)
    assert caught.value.address == 0


def _sum_to(bias: int, zero: int, dtype: DType) -> graphs.Case:
    """One number plus a bias."""
    b = Builder()
    x, w = b.input(Type(dtype, (1, 1, 1, 1))), b.const(np.ones((1, 1, 1, 1), np.int8), DType.I8)
    wide = dtype is DType.I16
    acc_type = DType.I48 if wide else DType.I32
    once = {"pad": (0, 0, 0, 0), "stride": (1, 1), "dilation": (1, 1), "acc_type": acc_type, "x_zp": zero}
    acc = ops.conv2d(b, x, w, b.const(np.array([bias]), acc_type), **once)
    one, out = (14, dtype) if wide else (30, DType.I32)
    return graphs.Case(b.finish([ops.rescale(b, acc, out, multiplier=[1 << one], shift=[one], scale32=not wide)]))


@pytest.mark.parametrize(("target", "bits"), [(U55, 32), (U85, 32), (U55, 40), (U85, 48)])
@pytest.mark.parametrize(("before", "given", "zero"), [(1, 1, 0), (1, -2, 0), (100, 100, 0), (128, 127, -1)])
def test_sums_that_overflow(bench: Bench, target: str, bits: int, before: int, given: int, zero: int) -> None:
    """The bias is so far from what the accumulator just holds; one less than the given number is not too much."""
    if bits > 32 and zero:
        return
    top = 1 << (bits - 1)
    bias, just = (top - before, given - 1) if given > 0 else (before - top, given + 1)
    dtype, numbers = (DType.I8, np.int8) if bits == 32 else (DType.I16, np.int16)
    compiled = bench.compile(_sum_to(bias, zero, dtype).tosa, target)
    (largest,) = bench.run(compiled, [np.full((1, 1, 1, 1), just, numbers)])
    held = np.iinfo(largest.dtype.name)
    assert largest.reshape(-1).tolist() == [max(held.min, min(held.max, bias + just - zero))]
    with pytest.raises(npu.Fault, match="an accumulator overflows"):
        bench.run(compiled, [np.full((1, 1, 1, 1), given, numbers)])


def test_memory_that_nobody_has(bench: Bench) -> None:
    for size in (1 << 31, -1):
        with pytest.raises(npu.TooMuch, match="too much memory"):
            _run(bench, "conv_1x1", U55, scratch_size=size)


@pytest.mark.parametrize(
    ("name", "target", "index", "wrong", "message"),
    [
        ("gather", U85, 1, 10, "a DMA index is outside 0 to 9"),
        ("gather", U85, 1, -1, "a DMA index is outside 0 to 9"),
        ("shift_right_rounded", U55, 1, 32, "less than 0 or more than 31"),
        ("shift_left", U85, 1, -1, "less than 0 or more than 31"),
        ("divide", U85, 1, 0, "divided by zero"),
    ],
)
def test_numbers_without_a_meaning(bench: Bench, name: str, target: str, index: int, wrong: int, message: str) -> None:
    case = graphs.make(name)
    inputs = case.inputs()
    inputs[index].reshape(-1)[-1] = wrong
    with pytest.raises(npu.Fault, match=message):
        bench.run(bench.compile(case.tosa, target), inputs)


def _drop(cmd_data: bytes, opcode: int) -> bytes:
    """The stream with its wait commands turned into ones that only count."""
    stream = parse(cmd_data)
    header = len(cmd_data) - 4 * len(stream.words)
    data = bytearray(cmd_data)
    for instruction in stream:
        if instruction.command.opcode == opcode:
            struct.pack_into("<I", data, header + instruction.offset, 0x13)
    return bytes(data)


def test_missing_dma_wait(bench: Bench) -> None:
    cmd_data = _drop(_stream(bench, "conv_with_table", U55), 0x11)
    _run(bench, "conv_with_table", U55, cmd_data)
    with pytest.raises(npu.Hazard, match="DMA_WAIT is missing") as caught:
        _run(bench, "conv_with_table", U55, cmd_data, check_waits=True)
    assert caught.value.earlier < (caught.value.offset or 0)


def test_missing_kernel_wait(bench: Bench) -> None:
    cmd_data = _drop(_stream(bench, "loop", U85), 0x12)
    with pytest.raises(npu.Hazard, match="KERNEL_WAIT is missing"):
        _run(bench, "loop", U85, cmd_data, check_waits=True)


def _find_record(bench: Bench, target: str) -> int:
    (op,) = (op for op in npu.decode(_stream(bench, "conv_1x1", target)) if op.kind is Kind.CONV)
    return op.get("SCALE_BASE")


@pytest.mark.parametrize(
    ("target", "place", "right", "wrong"), [(U55, 9, 63, 64), (U85, 8, 63, 64), (U85, 9, 0, 1), (U85, 7, 127, 128)]
)
def test_bits_of_scale_records(bench: Bench, target: str, place: int, right: int, wrong: int) -> None:
    weights = bytearray(bench.compile(graphs.make("conv_1x1").tosa, target).weight_data)
    at = _find_record(bench, target) + place
    weights[at] = right
    _run(bench, "conv_1x1", target, weight_data=bytes(weights))
    weights[at] = wrong
    with pytest.raises(npu.Malformed, match="unknown bits"):
        _run(bench, "conv_1x1", target, weight_data=bytes(weights))


def test_scale_records_that_are_not_all_there(bench: Bench) -> None:
    cmd_data = patch_stream(_stream(bench, "conv_1x1", U55), "SET_SCALE_LENGTH", payload=240)
    _run(bench, "conv_1x1", U55, cmd_data)
    with pytest.raises(npu.Malformed, match="SCALE_LENGTH is too small for 24 channels"):
        _run(bench, "conv_1x1", U55, patch_stream(cmd_data, "SET_SCALE_LENGTH", payload=239))


def test_damaged_weights(bench: Bench) -> None:
    weights = bench.compile(graphs.make("conv_1x1").tosa, U55).weight_data
    # Zeros are a stream that never ends: the native decoder ends its process there.
    for damaged in (bytes(len(weights)), weights[:300] + bytes(len(weights) - 300)):
        with pytest.raises(npu.Malformed):
            _run(bench, "conv_1x1", U55, weight_data=damaged)
    assert len(_run(bench, "conv_1x1", U55)) == 1


def test_streams_that_do_not_end(bench: Bench) -> None:
    stream = _stream(bench, "loop", U85)
    cmd_data = patch_stream(stream, "OP_BRANCH", param=0, payload=0)
    with pytest.raises(npu.TooMuch):
        _run(bench, "loop", U85, cmd_data, limits=npu.Limits(commands=20_000))


@pytest.mark.parametrize("target", [U55, U85])
def test_sizes_are_checked_before_memory_is_taken(bench: Bench, target: str) -> None:
    cmd_data = _stream(bench, "max_pool", target)
    for command in ("SET_OFM_HEIGHT_M1", "SET_OFM_WIDTH_M1", "SET_OFM_DEPTH_M1", "SET_KERNEL_HEIGHT_M1"):
        cmd_data = patch_stream(cmd_data, command, param=0xFFFF)
    for command in ("SET_IFM_STRIDE_X", "SET_IFM_STRIDE_Y", "SET_OFM_STRIDE_X", "SET_OFM_STRIDE_Y"):
        cmd_data = patch_stream(cmd_data, command, payload=0)
    start = time.process_time()
    with pytest.raises(npu.Fault):
        _run(bench, "max_pool", target, cmd_data)
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("target", [U55, U65, U85])
def test_mutated_streams_end_in_an_error_or_a_result(bench: Bench, target: str) -> None:
    rng = random.Random(target)
    for name in ("conv_3x3_padded", "depthwise_strided", "add_quantized", "table_int16"):
        original = _stream(bench, name, target)
        for _ in range(25):
            cmd_data = bytearray(original)
            for _ in range(rng.choice((1, 2, 4))):
                at = rng.randrange(len(cmd_data))
                cmd_data[at] = rng.choice((0, 0xFF, cmd_data[at] ^ 1 << rng.randrange(8)))
            start = time.process_time()
            try:
                _run(bench, name, target, bytes(cmd_data))
            except TosaicError as error:
                assert str(error)
            assert time.process_time() - start < 5.0
