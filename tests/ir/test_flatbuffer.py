"""Files: same graph same bytes, what is written is read back, and no damaged file does worse than Invalid."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import flatbuffers
import numpy as np
import pytest

from tosaic.core.errors import Invalid
from tosaic.core.specification import EXTENSIONS, PROFILES, Specification
from tosaic.formats import tosa_binding as binding
from tosaic.formats.flatbuffer_writer import Integers, TableData, write_flatbuffer
from tosaic.formats.tosa_writer import names, read, serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import NUMPY, Array, DType, Graph, Op, Type, Value
from tosaic.ir.text import from_text, to_text
from tosaic.ir.verifier import verify

Run = Callable[[Graph, Sequence[Array]], list[Array]]
EVERYTHING = Specification("1.0", PROFILES, tuple(EXTENSIONS))
F32, I32, BOOL = Type(DType.F32, (2, 3)), Type(DType.I32, (2, 3)), Type(DType.BOOL, (2, 3))
I8 = Type(DType.I8, (1, 4, 4, 2))

_FLOAT_UNARY = "ERF SIGMOID TANH CEIL COS EXP FLOOR LOG RECIPROCAL RSQRT SIN"
_INT_BINARY = "ADD SUB BITWISE_AND BITWISE_OR BITWISE_XOR INTDIV LOGICAL_LEFT_SHIFT LOGICAL_RIGHT_SHIFT MAXIMUM MINIMUM"


def call(b: Builder, kinds: str, *operands: Value) -> list[Value]:
    return [getattr(ops, kind.lower())(b, *operands) for kind in kinds.split()]


def add_elementwise(b: Builder) -> list[Value]:
    f, i, p = b.input(F32), b.input(I32), b.input(BOOL)
    outputs = call(b, _FLOAT_UNARY, f) + call(b, _INT_BINARY, i, i) + call(b, "POW", f, f)
    outputs += call(b, "ABS BITWISE_NOT CLZ NEGATE", i) + call(b, "EQUAL GREATER GREATER_EQUAL", i, i)
    outputs += call(b, "LOGICAL_AND LOGICAL_OR LOGICAL_XOR", p, p) + call(b, "LOGICAL_NOT", p)
    outputs += [getattr(ops, f"reduce_{name}")(b, p, 1) for name in ("all", "any")]
    outputs += [getattr(ops, f"reduce_{name}")(b, f, 0) for name in ("max", "min", "product", "sum")]
    outputs += [
        *b.emit(ops.ARITHMETIC_RIGHT_SHIFT, (i, i), round=True),
        ops.clamp(b, f, -0.1, float("inf"), nan_mode="IGNORE"),
        ops.clamp(b, ops.cast(b, f, DType.F16), -1.5, 6.0),
        ops.clamp(b, ops.cast(b, f, DType.BF16), -1.5, 6.0),
        ops.clamp(b, ops.cast(b, i, DType.I16), -300, 300),
        ops.mul(b, i, i, 3),
        ops.select(b, p, f, b.const(np.array([[0.5]]), DType.F32)),
        ops.table(b, ops.cast(b, i, DType.I16), np.arange(513, dtype=np.int16)),
        ops.argmax(b, f, 1),
    ]
    return outputs


def add_tensor(b: Builder) -> list[Value]:
    x = b.input(I8)
    bias = b.const(np.arange(2), DType.I32)
    weight = b.const(np.arange(-7, 1).reshape(2, 2, 1, 2), DType.I4)
    ones, pads = (1, 1), (0, 0, 0, 0)
    x3, f3 = ops.reshape(b, x, (1, 2, 2, 4, 2)), b.input(Type(DType.F32, (1, 4, 4)))
    wide = b.const(np.array([-(1 << 40), 5]), DType.I48)
    kernel = {"stride": ones, "acc_type": DType.I32}
    zero = b.zero_point(0, DType.I8)
    narrow, wide_input = b.const(np.ones((2, 1, 1, 2)), DType.I8), ops.cast(b, x, DType.I16)
    outputs = [
        ops.conv2d(b, x, weight, bias, pad=(1, 0, 0, 0), stride=ones, dilation=ones, acc_type=DType.I32, x_zp=-3),
        ops.conv2d(b, wide_input, narrow, wide, pad=pads, stride=ones, dilation=ones, acc_type=DType.I48),
        *b.emit(
            ops.CONV3D, (x3, b.const(np.ones((2, 1, 1, 1, 2)), DType.I8), bias, zero, zero),
            pad=(0, 0, 0, 0, 0, 0), stride=(1, 1, 1), dilation=(1, 1, 1), acc_type=DType.I32, local_bound=True,
        ),
        ops.depthwise_conv2d(b, x, b.const(np.ones((1, 1, 2, 1)), DType.I8), bias, pad=pads, dilation=ones, **kernel),
        ops.transpose_conv2d(b, x, narrow, bias, out_pad=pads, **kernel),
        ops.avg_pool2d(b, x, kernel=(2, 2), pad=pads, x_zp=1, out_zp=2, **kernel),
        ops.max_pool2d(b, x, kernel=(2, 2), stride=(2, 2), pad=pads),
        ops.matmul(b, *[ops.reshape(b, x, (1, 4, 8)), ops.reshape(b, x, (1, 8, 4))], x_zp=1),
        ops.matmul(b, *[ops.cast(b, f3, DType.F16)] * 2, out_type=DType.F32),
    ]  # fmt: skip
    return [*outputs, *b.emit(ops.FFT2D, (f3, f3), inverse=True), *b.emit(ops.RFFT2D, (f3,), local_bound=True)]


def add_data(b: Builder) -> list[Value]:
    x, i = b.input(I8), b.input(I32)
    values, rows = ops.reshape(b, x, (1, 4, 8)), b.const(np.array([[2, 0]]), DType.I32)
    scale = {"scale": (2, 1, 4, 2), "offset": (-1, 0), "border": (-1, 0)}
    channels = {"multiplier": [1 << 30, 3], "shift": [31, 62], "per_channel": True}
    return [
        ops.concat(b, [x, x], 3),
        ops.pad(b, x, (0, 0, 1, 2, 3, 4, 0, 0), -7),
        ops.pad(b, ops.cast(b, ops.cast(b, i, DType.F32), DType.F8E4M3), (0, 1, 0, 0), 1.5),
        ops.reshape(b, ops.slice(b, i, (1, 2), (1, 1)), ()),
        ops.reverse(b, x, 2),
        ops.tile(b, i, (1, 2)),
        ops.transpose(b, x, (0, 3, 1, 2)),
        ops.gather(b, values, rows),
        *b.emit(ops.SCATTER, (values, rows, ops.gather(b, values, rows))),
        ops.resize(b, x, **scale, mode="BILINEAR"),
        ops.resize(b, x, **scale, mode="NEAREST"),
        ops.rescale(b, x, DType.I32, **channels, in_zp=-128),
        ops.rescale(b, x, DType.I16, multiplier=[1 << 14], shift=[14], scale32=False, rounding="INEXACT_ROUND"),
        ops.rescale(
            b, x, DType.I8, multiplier=[1], shift=[40], out_zp=200, output_unsigned=True, rounding="DOUBLE_ROUND"
        ),
        ops.identity(b, b.const(np.array([True, False, True]), DType.BOOL)),
        ops.identity(b, b.const(np.array(2.5), DType.F16)),
        *b.emit(
            ops.CUSTOM, (x, i),
            operator_name="sört", domain_name="test", implementation_attrs=b"\0\xff", types=(I32, F32),
        ),
    ]  # fmt: skip


def branch(b: Builder, condition: Value, x: Value, body: Graph) -> tuple[Value, ...]:
    return b.emit(ops.COND_IF, (condition, x), then_graph=body, else_graph=body)


def add_control(b: Builder) -> list[Value]:
    one = Type(DType.I32, (1,))

    def make(build: Callable[[Builder, Value], Value]) -> Graph:
        inner = Builder()
        x = inner.input(one)
        return inner.finish([build(inner, x)])

    double = make(lambda s, v: ops.add(s, v, v))
    nested = make(lambda s, v: branch(s, ops.greater(s, v, v), v, double)[0])
    small = make(lambda s, v: ops.greater(s, s.const(np.array([9]), DType.I32), v))
    x, state = b.input(one), Type(DType.F32, (2,))
    b.emit(ops.VARIABLE, (), name="state", type=state, data=np.array([1.0, -2.0], np.float32))
    b.emit(ops.VARIABLE, (), name="zustand ä", type=state)
    b.emit(ops.VARIABLE_WRITE, b.emit(ops.VARIABLE_READ, (), name="state", type=state), name="zustand ä")
    return [
        *b.emit(ops.VARIABLE_READ, (), name="zustand ä", type=state),
        *branch(b, ops.greater(b, x, x), x, nested),
        *b.emit(ops.WHILE_LOOP, (x,), cond_graph=small, body_graph=double),
    ]


def build_all() -> Graph:
    b = Builder()
    outputs = add_elementwise(b) + add_tensor(b) + add_data(b) + add_control(b)
    return b.finish(outputs)


def build_small() -> Graph:
    b = Builder(origin=("model.py:3",))
    x = b.input(I8)
    weight, bias = b.const(np.arange(4).reshape(2, 1, 1, 2), DType.I8), b.const(np.array([7, -7]), DType.I32)
    y = ops.conv2d(
        b, x, weight, bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), acc_type=DType.I32, x_zp=3
    )  # fmt: skip
    y = ops.clamp(b, ops.rescale(b, y, DType.I8, multiplier=[1 << 30], shift=[33]), -5, 5)
    z = ops.reshape(b, y, (32,))
    inner = Builder()
    body = inner.finish([ops.identity(inner, inner.input(z.type))])
    return b.finish(branch(b, b.const(np.array([True]), DType.BOOL), z, body))


def locate(op: Op) -> str:
    return ", ".join(op.origin)


def test_round_trip_of_every_operator() -> None:
    graph = build_all()
    assert {op.kind for op in graph.ops} == set(ops.DEFINITIONS)
    data = serialize(graph)
    again = read(data)
    assert serialize(again) == data
    assert to_text(again) == to_text(graph)
    parsed = from_text(to_text(graph, full=True))
    assert serialize(parsed) == data
    assert to_text(parsed) == to_text(graph)
    for one in (graph, again, parsed):
        verify(one, EVERYTHING)


def test_a_region_whose_input_is_its_output_gets_an_identity() -> None:
    inner = Builder()
    passed = inner.input(I32)
    body = inner.finish([passed])
    b = Builder()
    x = b.input(I32)
    condition = b.const(np.array([False]), DType.BOOL)
    data = serialize(b.finish(branch(b, condition, x, body)))
    read_body = read(data).ops[-1].attrs["then_graph"]
    assert isinstance(read_body, Graph) and [op.kind for op in read_body.ops] == ["IDENTITY"]
    assert body.ops == [] and serialize(read(data)) == data


def test_a_variable_is_known_inside_regions() -> None:
    state = Type(DType.F32, (2,))
    inner = Builder()
    x = inner.input(state)
    old = inner.emit(ops.VARIABLE_READ, (), name="s", type=state)
    inner.emit(ops.VARIABLE_WRITE, (x,), name="s")
    body = inner.finish(old)
    b = Builder()
    x = b.input(state)
    b.emit(ops.VARIABLE, (), name="s", type=state, data=np.array([1.0, 2.0], np.float32))
    condition = b.const(np.array([True]), DType.BOOL)
    graph = b.finish(branch(b, condition, x, body))
    data = serialize(graph)
    assert to_text(read(data)) == to_text(graph) and serialize(read(data)) == data
    verify(read(data), EVERYTHING)


def test_locations_and_bytes_round_trip() -> None:
    data = serialize(build_small(), location=locate)
    again = read(data)
    assert {op.origin for op in again.ops} == {("model.py:3",)}
    assert serialize(again, location=locate) == data
    assert data != serialize(build_small())
    assert b"model.py:3" in data and b"model.py:3" not in serialize(build_small())


def test_bytes_do_not_depend_on_the_process() -> None:
    script = (
        "import importlib.util, sys, hashlib\n"
        "spec = importlib.util.spec_from_file_location('made', sys.argv[1])\n"
        "made = importlib.util.module_from_spec(spec); spec.loader.exec_module(made)\n"
        "print(hashlib.sha256(made.serialize(made.build_all())).hexdigest())\n"
    )
    digests = set[str]()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script, __file__],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1 and len(digests.pop()) == 64


def test_version_is_1_0_0_and_not_a_draft() -> None:
    from tosa.TosaGraph import TosaGraph

    version = TosaGraph.GetRootAs(serialize(build_small()), 0).Version()
    assert version is not None
    assert (version._Major(), version._Minor(), version._Patch(), version._Draft()) == (1, 0, 0, False)


def test_names_are_canonical_and_complete() -> None:
    b = Builder()
    x, y = b.input(I32), b.input(I32)
    inner = ops.add(b, x, y)
    last = ops.abs(b, inner)
    graph = b.finish([last, x, last])
    table = names(graph)
    assert [table[v] for v in (x, y, inner, last)] == ["input_0", "input_1", "t0", "output_0"]
    again = read(serialize(graph))
    assert [op.kind for op in again.ops] == ["ADD", "ABS", "IDENTITY", "IDENTITY"]
    assert len({id(v) for v in again.outputs}) == 3
    assert len(graph.ops) == 2 and graph.outputs == [last, x, last]
    every = names(build_all())
    assert len(set(every.values())) == len(every)


def test_outputs_that_repeat_run(reference: Run) -> None:
    b = Builder()
    x = b.input(I32)
    held = b.const(np.full((2, 3), 4), DType.I32)
    y = ops.add(b, x, held)
    data = np.arange(6, dtype=np.int32).reshape(2, 3)
    outputs = reference(b.finish([x, y, y, x, held]), [data])
    assert [o.tolist() for o in outputs] == [a.tolist() for a in (data, data + 4, data + 4, data, data * 0 + 4)]


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.SHAPE])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5), (8, 4)])
def test_constants_of_every_dtype_round_trip(dtype: DType, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    limit = {DType.I4: 7, DType.BOOL: 1, DType.I48: (1 << 47) - 1}.get(dtype, 100)
    low = 0 if dtype is DType.BOOL or np.dtype(NUMPY[dtype]).kind == "u" else -limit
    data = np.asarray(rng.integers(low, limit + 1, shape)).astype(NUMPY[dtype])
    b = Builder()
    (value,) = read(serialize(b.finish([b.const(data, dtype)]))).outputs
    assert value.type == Type(dtype, shape)
    assert value.data is not None and value.data.dtype == NUMPY[dtype]
    np.testing.assert_array_equal(value.data, data)


def test_extreme_int48_values() -> None:
    data = np.array([-(1 << 47) + 1, -1, 0, (1 << 47) - 1], np.int64)
    b = Builder()
    value = read(serialize(b.finish([b.const(data, DType.I48)]))).outputs[0]
    assert value.data is not None and value.data.tolist() == data.tolist()


def test_a_constant_without_data_cannot_be_written() -> None:
    value = Value(I32)
    value.op = Op(ops.CONST, (), (value,), {"type": I32, "data": None})
    with pytest.raises(Invalid, match=r"CONST i32\[2,3\] has no data"):
        serialize(Graph([], [value], [value.op]))


def test_a_broken_graph_cannot_be_written() -> None:
    b, other = Builder(), Builder()
    with pytest.raises(Invalid, match="ABS reads a value that its graph does not define"):
        serialize(b.finish([ops.abs(b, other.input(I32))]))
    with pytest.raises(Invalid, match="no VARIABLE declares 's'"):
        serialize(Graph([], [], [Op(ops.VARIABLE_READ, (), (), {"name": "s", "type": I32})]))


def test_large_constants_are_written_fast() -> None:
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input(Type(DType.I8, (1, 8, 8, 256)))
    for _ in range(53):
        weight = b.const(rng.integers(-127, 128, (256, 1, 1, 256), dtype=np.int8), DType.I8)
        bias = b.const(rng.integers(0, 9, 256), DType.I32)
        y = ops.conv2d(
            b, x, weight, bias, pad=(0, 0, 0, 0), stride=(1, 1), dilation=(1, 1), acc_type=DType.I32
        )  # fmt: skip
        x = ops.rescale(b, y, DType.I8, multiplier=[1 << 30], shift=[40])
    graph = b.finish([x])
    data, times = b"", list[float]()
    for _ in range(3):
        start = time.process_time()
        data = serialize(graph)
        times.append(time.process_time() - start)
    assert len(data) > 3_400_000
    # A loop over the numbers in Python takes several times this.
    assert min(times) < 0.1


def attempt(data: bytes) -> str:
    """What becomes of a damaged file: anything but Invalid or a Graph fails the test."""
    try:
        graph = read(data)
    except Invalid as error:
        assert error.what
        return "refused"
    try:
        verify(graph, EVERYTHING)
    except Invalid:
        return "illegal"
    to_text(graph)
    return "read"


@pytest.mark.parametrize("build", [build_small, build_all])
def test_random_mutations(build: Callable[[], Graph]) -> None:
    data, rng = serialize(build(), location=locate), random.Random(11)
    results = list[str]()
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(damaged))
            damaged[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        results.append(attempt(bytes(damaged)))
    assert results.count("refused") > 10


def test_every_byte_of_a_small_file() -> None:
    data = serialize(build_small())
    for at in range(len(data)):
        attempt(data[:at] + bytes([data[at] ^ (0x80, 0xFF, 1)[at % 3]]) + data[at + 1 :])


def test_every_offset_of_a_small_file_pointed_elsewhere() -> None:
    data = serialize(build_small())
    for at in range(0, len(data) - 4, 4):
        for word in (0, len(data) - at, 0xFFFFFFFF):
            attempt(data[:at] + struct.pack("<I", word) + data[at + 4 :])


def test_truncations() -> None:
    data = serialize(build_small())
    for size in range(len(data)):
        attempt(data[:size])
    for size in (0, 1, 7, 8, 12, len(data) // 2):
        with pytest.raises(Invalid):
            read(data[:size])
    with pytest.raises(Invalid, match="identifier TOSA is missing at offset 4"):
        read(data[:4] + b"TFL3" + data[8:])


def test_errors_name_offset_or_field() -> None:
    data = serialize(build_small())
    with pytest.raises(Invalid, match=r"at offset \d+"):
        read(struct.pack("<I", len(data)) + data[4:])
    # The operators come first, then the tensors.
    at = data.index(b"\0input_0\0", data.index(b"\0input_0\0") + 1) + 1
    with pytest.raises(Invalid, match="not UTF-8 text at offset"):
        read(data[:at] + b"\xff" + data[at + 1 :])
    with pytest.raises(Invalid, match="contains a NUL at offset"):
        read(data[:at] + b"\0" + data[at + 1 :])
    with pytest.raises(Invalid, match="no tensor named 'input_0'"):
        read(data[:at] + b"inpuT_0" + data[at + 7 :])


def write_regions(calls: dict[str, str]) -> bytes:
    """A file of regions whose only op is a COND_IF with both branches in the region that `calls` names (or empty)."""
    code = binding.OPS["COND_IF"].value
    tensor = TableData({0: "c", 1: Integers([1]), 2: ("I", binding.DTYPES[DType.BOOL].value)})
    regions: list[TableData] = []
    for name, called in calls.items():
        attribute = TableData({0: called, 1: called})
        operator = TableData({0: ("I", code), 1: ("B", code), 2: attribute, 3: ["c"], 4: list[str]()})
        block = TableData({0: name, 1: [operator] if called else [], 2: [tensor], 3: ["c"]})
        regions.append(TableData({0: name, 1: [block]}))
    return write_flatbuffer(TableData({0: TableData({0: ("i", 1)}), 1: regions}), b"TOSA")


def test_regions_that_contain_themselves_are_refused() -> None:
    with pytest.raises(Invalid, match=r"region 'main' of the \.tosa file contains itself"):
        read(write_regions({"main": "main"}))
    with pytest.raises(Invalid, match=r"region 'a' of the \.tosa file contains itself"):
        read(write_regions({"main": "a", "a": "b", "b": "a"}))
    with pytest.raises(Invalid, match="no region named 'b'"):
        read(write_regions({"main": "a", "a": "b"}))


def test_regions_that_multiply_are_refused_soon() -> None:
    start = time.process_time()
    with pytest.raises(Invalid, match="shared far too often"):
        read(write_regions({"main": "r0", **{f"r{i}": f"r{i + 1}" for i in range(40)}, "r40": ""}))
    assert time.process_time() - start < 2


def write_shared_tables(count: int) -> bytes:
    """A file that names one operator `count` times, and the operator one input `count` times."""
    f = flatbuffers.Builder(0)

    def make_vector(offsets: list[int]) -> int:
        f.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            f.PrependUOffsetTRelative(offset)
        return f.EndVector()

    def make_table(**fields: int) -> int:
        f.StartObject(6)
        for slot, value in fields.items():
            f.PrependUOffsetTRelativeSlot(int(slot[1:]), value, 0)
        return f.EndObject()

    name, main = f.CreateString("x" * 50), f.CreateString("main")
    names_vector = make_vector([name] * count)
    attribute = make_table()
    f.StartObject(6)
    f.PrependUint32Slot(0, binding.OPS["CONCAT"].value, 0)
    f.PrependUint8Slot(1, binding.OPS["CONCAT"].value, 0)
    f.PrependUOffsetTRelativeSlot(2, attribute, 0)
    f.PrependUOffsetTRelativeSlot(3, names_vector, 0)
    operators = make_vector([f.EndObject()] * count)
    block = make_table(s0=main, s1=operators)
    region = make_table(s0=main, s1=make_vector([block]))
    f.StartObject(4)
    f.PrependInt32Slot(0, 1, -1)
    version = f.EndObject()
    f.Finish(make_table(s0=version, s1=make_vector([region])), b"TOSA")
    return bytes(f.Output())


def test_shared_tables_are_refused_soon() -> None:
    data = write_shared_tables(20_000)
    assert len(data) < 200_000
    start = time.process_time()
    with pytest.raises(Invalid, match="shared far too often"):
        read(data)
    assert time.process_time() - start < 2


def test_claimed_sizes_do_not_allocate() -> None:
    data = serialize(build_small())
    shape = struct.pack("<4i", 1, 4, 4, 2)
    huge = data.replace(shape, struct.pack("<4i", 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF, 2))
    assert huge != data
    assert attempt(huge) in ("refused", "illegal")
    weight = struct.pack("<4i", 2, 1, 1, 2)
    with pytest.raises(Invalid, match="has 4 bytes, which is wrong for i8"):
        read(data.replace(weight, struct.pack("<4i", 0x7FFFFFFF, 1, 1, 2)))
