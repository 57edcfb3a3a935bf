"""Parts of the simulator on their own, where a whole stream would not come to their edges."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from support import graphs
from support.npu_bench import Bench
from tosaic import npu
from tosaic.npu.accelerator import ACCELERATORS, make_name
from tosaic.npu.hazard import Hazards
from tosaic.npu.lut import Table, forget_tables
from tosaic.npu.memory import INTERNAL, Access, make_region
from tosaic.npu.operation import FeatureMap, Kind, Layout, Op, Shape, Storage, read_ofm_shape, read_window
from tosaic.npu.output import Scale, apply_scale
from tosaic.npu.registers import Family
from tosaic.npu.stream import parse
from tosaic.npu.weight_order_u55 import OrderU55
from tosaic.npu.weight_order_u85 import OrderU85

U55, U85 = "ethos-u55-128", "ethos-u85-256"


@pytest.fixture(scope="module")
def conv(bench: Bench) -> Op:
    """Any operation."""
    return npu.decode(bench.compile(graphs.make("conv_1x1").tosa, U55).cmd_data)[-2]


def _round(product: int, shift: int, rounding: str) -> int:
    """What the specification says, in numbers of any size."""
    half = 1 << shift >> 1 if rounding != "floor" else 0
    if rounding == "double" and shift > 31:
        half += (1 << 30) if product >= 0 else -(1 << 30)
    return (product + half) >> shift


@pytest.mark.parametrize("rounding", ["natural", "double", "floor"])
def test_scales_are_exact(conv: Op, rounding: str) -> None:
    rng = np.random.default_rng(1)
    for shift in (0, 1, 2, 15, 30, 31, 32, 33, 40, 62):
        values = np.concatenate([rng.integers(-(1 << 20), 1 << 20, 200), np.arange(-9, 9)])
        factor, bias = int(rng.integers(1, 1 << 31)), int(rng.integers(-(1 << 20), 1 << 20))
        for each in ((factor, bias), (1 << 30, 0), (3, -1)):
            scale = Scale(np.array(each[0]), np.array(shift), np.array(each[1]), rounding)
            wanted = [_round((value + each[1]) * each[0], shift, rounding) - 7 for value in values.tolist()]
            assert apply_scale(values, scale, -7, conv).tolist() == wanted


def test_products_of_the_output_stage_fit(conv: Op) -> None:
    scale = Scale(np.array(1 << 31), np.array(3), np.array(0), "natural")
    for values in ([(1 << 31) - 1], [1 - (1 << 31)], [0, (1 << 31) - 1]):
        apply_scale(np.array(values), scale, 0, conv)
    for values, bias in (([1 << 31, 0], 0), ([0, -(1 << 31)], 0), ([(1 << 31) - 5], 5), ([5 - (1 << 31)], -5)):
        with pytest.raises(npu.Fault, match="more than 64 bits"):
            apply_scale(np.array(values), dataclasses.replace(scale, bias=np.array(bias)), 0, conv)


def test_padding_of_weights_is_zero_in_every_block() -> None:
    # 16 and 8 output channels; nine elements of the kernel are filled up to twelve.
    order = OrderU55(
        outputs=24, inputs=8, taps_y=3, taps_x=3, part_y=8, part_x=8, depthwise=False, part_kernel=True, wide=False,
        block=16, group=8, streams=1,
    )  # fmt: skip
    stream = np.zeros(3 * 12 * 64, np.int16)
    stream[[0, 8 * 64, 2 * 12 * 64]] = 5, 6, 7
    placed = order.arrange([stream], offset=4)
    assert (placed[0, 0, 0, 0], placed[2, 2, 0, 0], placed[0, 0, 0, 16], placed.sum()) == (5, 6, 7, 18)
    for wrong in (9 * 64, 12 * 64 - 1, 23 * 64, 33 * 64, len(stream) - 1):
        damaged = stream.copy()
        damaged[wrong] = 1
        with pytest.raises(npu.Malformed, match="padding") as caught:
            order.arrange([damaged], offset=4)
        assert caught.value.offset == 4


@pytest.mark.parametrize("adjust", [0, 3, -3, 127, -128])
def test_plain_fast_weights_are_relative_to_their_header(bench: Bench, adjust: int) -> None:
    (conv,) = (
        op for op in npu.decode(bench.compile(graphs.make("conv_1x1").tosa, U85).cmd_data) if op.kind is Kind.CONV
    )
    order = OrderU85.of(conv, read_window(conv), conv.get("IFM_DEPTH_M1") + 1, read_ofm_shape(conv))
    header = (1 | (adjust & 0xFF) << 104).to_bytes(32, "little")
    body = np.array([-128, -1, 0, 1, 127], np.int8)
    assert order.expand(header + body.tobytes(), offset=4).tolist() == [number - adjust for number in body.tolist()]
    with pytest.raises(npu.Malformed, match="shorter than its header"):
        order.expand(header[:-1], offset=4)


def test_tables_have_ends() -> None:
    plain = Table(4, np.arange(256) * 3, -128)
    assert plain.look_up(np.array([-128, 0, 127])).tolist() == [0, 384, 765]
    for wrong in (-129, 128):
        with pytest.raises(npu.Fault, match="too large for its lookup table") as caught:
            plain.look_up(np.array([0, wrong]))
        assert caught.value.offset == 4
    slopes = Table(4, np.arange(512), -256, np.full(512, 2))
    assert slopes.look_up(np.array([-32768, 0, 95, 96, 32767])).tolist() == [0, 256, 257, 258, 513]


def make_memory(size: int = 64, *, track: bool = True) -> npu.Memory:
    regions = {
        0: make_region("the weights", 0, data=bytes(i % 256 for i in range(size))),
        1: make_region("region 1", size, track=track),
        2: make_region("region 2", size),
        INTERNAL: make_region("the internal RAM", size, track=track),
    }
    return npu.Memory(regions)


def view(memory: npu.Memory, start: int, shape: Sequence[int], strides: Sequence[int], **more: Any) -> Any:
    return memory.view(
        more.get("region", 0), start, shape, strides, more.get("dtype", "u1"), 8, more.get("write", False)
    )


@pytest.mark.parametrize(
    ("start", "shape", "strides", "dtype", "low", "high"),
    [
        (0, (64,), (1,), "u1", 0, 64),
        (62, (1,), (1,), "<i2", 62, 64),
        (63, (64,), (-1,), "u1", 0, 64),
        (56, (2, 2, 2), (-32, 16, 2), "<i2", 24, 76),
        (4, (3, 5), (0, 2), "u1", 4, 13),
    ],
)
def test_bounds_of_an_access(
    start: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, low: int, high: int
) -> None:
    item = np.dtype(dtype).itemsize
    assert Access(0, start, (*shape, item), (*strides, 1), False).bounds == (low, high)
    if high <= 64:
        assert view(make_memory(), start, shape, strides, dtype=dtype).shape == shape
    for size in (high - 1, 64 if high > 64 else high - 1):
        with pytest.raises(npu.OutOfRange) as caught:
            view(make_memory(size), start, shape, strides, dtype=dtype)
        assert (caught.value.address, caught.value.size, caught.value.offset) == (low, high - low, 8)
    with pytest.raises(npu.OutOfRange):
        view(make_memory(), start - low - 1, shape, strides, dtype=dtype)


def test_memory_knows_what_was_written() -> None:
    memory = make_memory()
    view(memory, 4, (3, 2), (8, 1), region=1, write=True)[...] = 7
    assert view(memory, 4, (3, 2), (8, 1), region=1).sum() == 42
    with pytest.raises(npu.Uninitialized) as caught:
        view(memory, 4, (3, 4), (8, 1), region=1)
    assert (caught.value.address, caught.value.count, caught.value.region) == (6, 6, "region 1")
    # A copy takes along what is known; the weights hold something everywhere.
    memory.copy(Access(1, 4, (4,), (1,), False), Access(INTERNAL, 0, (4,), (1,), True), 0)
    assert view(memory, 0, (2,), (1,), region=INTERNAL).tolist() == [7, 7]
    with pytest.raises(npu.Uninitialized):
        view(memory, 1, (2,), (1,), region=INTERNAL)
    memory.copy(Access(0, 9, (2,), (1,), False), Access(1, 40, (2,), (1,), True), 0)
    assert view(memory, 40, (2,), (1,), region=1).tolist() == [9, 10]
    with pytest.raises(npu.Fault, match="can only be read"):
        view(memory, 0, (1,), (1,), region=0, write=True)


def make_map(bits: int = 8, **changes: Any) -> FeatureMap:
    layout = dataclasses.replace(Layout((0, 0, 0, 0), 9, 9, 9, 8, 1, 0, False), **changes)
    return FeatureMap(bits, True, 0, "IFM", 0, 2, Storage.TILES, layout)


def test_tiles_meet() -> None:
    """Four tiles: 2 rows above on the left, 1 on the right, 3 columns on the left."""
    memory = make_memory()
    memory.regions[2].data[:] = np.arange(64)
    source = make_map(bases=(0, 10, 20, 40), width0=3, height0=2, height1=1, stride_y=4)
    wanted = [[0, 1, 2, 10, 11], [4, 5, 6, 40, 41], [20, 21, 22, 44, 45], [24, 25, 26, 48, 49]]
    assert memory.load(source, Shape(4, 5, 1))[..., 0].tolist() == wanted
    assert memory.load(source, Shape(2, 5, 1), 1)[..., 0].tolist() == wanted[1:3]
    assert memory.load(source, Shape(1, 2, 1), 3)[..., 0].tolist() == [wanted[3][:2]]
    memory.store(source, np.full((4, 5, 1), -1))
    assert memory.load(source, Shape(4, 5, 1)).max() == -1
    assert np.count_nonzero(memory.regions[2].data == 255) == 20


def test_bricks_of_channels() -> None:
    memory = make_memory(512)
    memory.regions[2].data[:] = np.arange(512)
    source = make_map(16, bricks=True, stride_y=64, stride_c=200, bases=(2, 0, 0, 0))
    values = memory.load(source, Shape(2, 2, 18))
    for row, column, channel in ((0, 0, 0), (1, 1, 15), (1, 0, 16), (0, 1, 17)):
        at = 2 + row * 64 + column * 32 + channel // 16 * 200 + channel % 16 * 2
        assert values[row, column, channel] == np.frombuffer(memory.regions[2].data[at : at + 2].tobytes(), "<i2")
    for depth in (16, 2):
        assert np.array_equal(memory.load(source, Shape(2, 2, depth)), values[..., :depth])


def test_tables_are_forgotten_where_their_ram_is_shared(bench: Bench) -> None:
    plain, looked_up = (
        npu.decode(bench.compile(graphs.make(name).tosa, U55).cmd_data)[-2] for name in ("conv_1x1", "conv_with_table")
    )
    for op, name, forgets in (
        (plain, "ethos-u55-32", True),
        (plain, "ethos-u55-64", True),
        (looked_up, "ethos-u55-32", False),
        (plain, "ethos-u55-128", False),
        (plain, "ethos-u55-256", False),
        (plain, "ethos-u65-512", False),
    ):
        memory = make_memory()
        view(memory, 0, (64,), (1,), region=INTERNAL, write=True)
        forget_tables(dataclasses.replace(op, accelerator=ACCELERATORS[name]), memory)
        written = memory.regions[INTERNAL].written
        assert written is not None and written.any() != forgets
    forget_tables(dataclasses.replace(plain, accelerator=ACCELERATORS["ethos-u55-32"]), make_memory(track=False))


def make_op(family: Family, kind: Kind, offset: int, raw: int = 0) -> Op:
    return Op(ACCELERATORS[make_name(family, 256)], offset, kind, raw, {})


def access(start: int, writes: bool = False, region: int = 1) -> list[Access]:
    return [Access(region, start, (4,), (1,), writes)]


@pytest.mark.parametrize(("family", "transfers"), [(Family.U55, 1), (Family.U65, 2), (Family.U85, 4)])
def test_waits(family: Family, transfers: int) -> None:
    """Two kernel operations and some transfers may be under way; a wait leaves only so many."""
    kernel, dma = (make_op(family, kind, 16) for kind in (Kind.CONV, Kind.DMA))

    def follow(*steps: tuple[Op, list[Access]]) -> None:
        hazards = Hazards()
        for op, accesses in steps:
            hazards.take(op, accesses)

    def wait(kind: Kind, left: int) -> tuple[Op, list[Access]]:
        return make_op(family, kind, 20, left), []

    write, read = access(0, writes=True), access(3)
    for first, then, missing in ((kernel, dma, "KERNEL_WAIT"), (dma, kernel, "DMA_WAIT"), (dma, dma, "DMA_WAIT")):
        kind = Kind[missing]
        few = 1 if kind is Kind.KERNEL_WAIT else transfers - 1
        with pytest.raises(npu.Hazard, match=f"{missing} is missing") as caught:
            follow((first, write), (dataclasses.replace(then, offset=99), read))
        assert (caught.value.offset, caught.value.earlier) == (99, 16)
        assert "near address 3 too early" in str(caught.value)
        with pytest.raises(npu.Hazard, match="overwrites"):
            follow((first, read), (then, write))
        # Neither two reads, nor other bytes, nor other regions meet; nor does anything after a wait.
        follow((first, read), (then, read))
        follow((first, write), (then, access(4)))
        follow((first, write), (then, access(0, region=2)))
        follow((first, write), wait(kind, 0), (then, read))
        follow((first, write), (first, access(40)), wait(kind, 1), (then, read))
        if few:
            with pytest.raises(npu.Hazard):
                follow((first, access(40)), (first, write), wait(kind, 1), (then, read))
        # The next of a kind begins only when the oldest has ended.
        follow((first, write), *[(first, access(40))] * (few + 1), (then, read))
        with pytest.raises(npu.Hazard):
            follow((first, write), *[(first, access(40))] * few, (then, read))
    # Two kernel operations order themselves.
    follow((kernel, write), (kernel, read))


def test_strided_accesses_that_miss_each_other() -> None:
    kernel, dma = (make_op(Family.U85, kind, 0) for kind in (Kind.CONV, Kind.DMA))
    even, odd = ([Access(1, start, (8, 1), (4, 1), True)] for start in (0, 2))
    hazards = Hazards()
    hazards.take(kernel, even)
    hazards.take(dma, odd)
    with pytest.raises(npu.Hazard):
        hazards.take(dma, [Access(1, 1, (3, 1), (3, 1), True)])


def test_the_cache_of_weights_drops_the_oldest(bench: Bench) -> None:
    compiled = bench.compile(graphs.make("conv_one_row").tosa, U55)
    order, streams = _find_order(bench, compiled)
    size = 24 * 40 * 4
    for limit, kept in ((2 * size, 2), (2 * size - 1, 1), (1, 1)):
        cache = npu.WeightCache(limit)
        first = cache.get(streams, order, 0)
        assert cache.get(streams, order, 0) is first
        other = cache.get(streams, dataclasses.replace(order, block=order.block + 8), 0)
        assert (cache.get(streams, order, 0) is first) == (kept == 2)
        if kept == 2:
            # What was asked for last stays.
            cache.get(streams, dataclasses.replace(order, block=order.block + 16), 0)
            assert cache.get(streams, order, 0) is first
            assert cache.get(streams, dataclasses.replace(order, block=order.block + 8), 0) is not other


def _find_order(bench: Bench, compiled: Any) -> tuple[Any, tuple[bytes, ...]]:
    """What a run asks the cache for."""
    asked: list[Any] = []

    class Spy(npu.WeightCache):
        def get(self, streams: tuple[bytes, ...], order: Any, offset: int) -> Any:
            asked.append((order, streams))
            return super().get(streams, order, offset)

    bench.run(compiled, graphs.make("conv_one_row").inputs(), cache=Spy())
    (found,) = asked
    return found


def insert(cmd_data: bytes, before: str, words: Sequence[int]) -> bytes:
    """The stream with some words before its first command of this name."""
    stream = parse(cmd_data)
    at = len(cmd_data) - 4 * len(stream.words) + next(i.offset for i in stream if i.command.name == before)
    data = bytearray(cmd_data[:at] + struct.pack(f"<{len(words)}I", *words) + cmd_data[at:])
    count = len(stream.words) + len(words)
    struct.pack_into("<I", data, 28, 2 | (count & 0xFFFF) << 16 | count >> 16 << 8)
    return bytes(data)


def test_transfers_in_rows_and_planes(bench: Bench) -> None:
    """A table that is loaded in pieces is the same table."""
    case = graphs.make("table_int8")
    compiled = bench.compile(case.tosa, U85)
    (wanted,) = bench.run(compiled, case.inputs())
    region = next(op for op in npu.decode(compiled.cmd_data) if op.kind is Kind.DMA).get("DMA0_SRC_REGION")

    def pieces(mode: int, planes: int, rows: int, length: int) -> list[int]:
        # SRC_REGION, SIZE0, SIZE1, LEN, the two strides of each side
        strides = [0x4033, length, 0x4034, length * rows, 0x4035, length, 0x4036, length * rows]
        return [(region | mode << 9) << 16 | 0x130, rows << 16 | 0x132, planes << 16 | 0x133, 0x4032, length, *strides]

    for mode, planes, rows, length in ((1, 1, 8, 32), (2, 4, 2, 32), (2, 2, 4, 32)):
        cmd_data = insert(compiled.cmd_data, "OP_DMA_START", pieces(mode, planes, rows, length))
        (got,) = bench.run(dataclasses.replace(compiled, cmd_data=cmd_data), case.inputs())
        assert np.array_equal(got, wanted)
    nothing = insert(compiled.cmd_data, "OP_DMA_START", pieces(1, 1, 0, 32))
    with pytest.raises(npu.Uninitialized):
        bench.run(dataclasses.replace(compiled, cmd_data=nothing), case.inputs(), check_uninitialized=True)
