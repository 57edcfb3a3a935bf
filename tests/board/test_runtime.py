"""The firmware's runtime on the host: the same bytes as engine `npu`, and a status for every refusal."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
import torch
from executorch.exir import schema
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary, serialize_pte_binary
from torch.export import export

from support.firmware import GCC, STATUSES, Firmware, Npu, simulate_job
from support.firmware_models import Counter, Offset, Relu, compile_sandwich, compile_small
from support.handmade import Spec, Step, call, make_program
from support.programs import compile_front, emit
from tosaic.board import fields
from tosaic.board.build import design
from tosaic.board.kernels import FIRMWARE
from tosaic.core.errors import Invalid
from tosaic.engines import engine
from tosaic.formats import blob as ethosu_blob
from tosaic.formats import pte
from tosaic.formats.npy import Array

pytestmark = pytest.mark.skipif(GCC is None, reason="there is no gcc: install the package gcc")
QUANTIZE, DEQUANTIZE = (f"quantized_decomposed::{name}_per_tensor" for name in ("quantize", "dequantize"))


def run(firmware: Firmware, data: bytes, **options) -> str:
    return STATUSES[firmware.run(data, **options).status]


def compare(firmware: Firmware, data: bytes, inputs: list[Array]) -> None:
    """The same bytes as the engine that interprets the file in Python."""
    expected = engine.run(data, inputs, engine="npu").outputs
    ended = firmware.run(data, inputs, npu=simulate_job)
    assert STATUSES[ended.status] == "OK", ended
    assert len(ended.outputs) == len(expected)
    for ours, theirs in zip(ended.outputs, expected, strict=True):
        assert np.array_equal(ours, theirs)


def test_fields_are_generated() -> None:
    assert (FIRMWARE / "fields.h").read_text() == fields.make_header()


def test_every_status_has_a_sentence() -> None:
    sentences = re.findall(r'\[TOSAIC_(\w+)\] = "', (FIRMWARE / "status.c").read_text())
    assert sentences == STATUSES


def test_public_functions() -> None:
    """A header that is read in one sitting."""
    texts = [
        re.sub(r"/\*.*?\*/", "", (FIRMWARE / name).read_text(), flags=re.DOTALL) for name in ("tosaic.h", "ethosu.h")
    ]
    functions = [name for text in texts for name in re.findall(r"^\w[\w \*]*\b(tosaic_\w+)\(", text, re.MULTILINE)]
    assert 10 < len(functions) <= 20


@pytest.mark.parametrize("form", ["inline", "segment"])
def test_delegate(firmware: Firmware, add_pte: dict[str, bytes], form: str) -> None:
    compare(firmware, add_pte[form], [np.array([1, -2, 3, 1 << 30, -5], np.int32)])


@pytest.mark.parametrize("target", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
def test_float_model(firmware: Firmware, target: str) -> None:
    """Quantize, NPU, dequantize."""
    made = compile_small(target)
    for data in made.pte.values():
        compare(firmware, data, [np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)])


def test_two_delegates(firmware: Firmware) -> None:
    """CPU operators between two delegates."""
    data = compile_sandwich("ethos-u55-128").pte["segment"]
    plan = pte.read(data).find()
    assert len(plan.delegates) == 2 and "aten::add.out" in map(str, plan.operators)
    compare(firmware, data, [np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)])


def test_constants(firmware: Firmware) -> None:
    data = emit(export(Offset(), (torch.zeros(3, 4),)), forms=("segment",))["segment"]
    assert pte.read(data).segments
    compare(firmware, data, [np.arange(12, dtype=np.float32).reshape(3, 4)])


def set_output(data: bytes, columns: int) -> bytes:
    """Change the last dimension of the delegate's output in its blob; the scratch memory is large enough for it."""
    blob = pte.read(data).find().delegates[0].blob
    changed = bytearray(blob)
    struct.pack_into("<I", changed, blob.index(b"scratch_size".ljust(16, b"\0")) + 32, 1024)
    struct.pack_into("<i", changed, blob.index(b"outputs".ljust(16, b"\0")) + 32 + 4 + 5 * 4, columns)
    return data.replace(blob, bytes(changed))


def write_pattern(data: bytes, pattern: Array) -> Npu:
    """An NPU that writes a pattern to the delegate's output."""
    (slot,) = ethosu_blob.unpack(pte.read(data).find().delegates[0].blob).outputs
    raw = pattern.tobytes()
    return lambda _commands, _weights, scratch, _fast: scratch[: slot.offset] + raw + scratch[slot.offset + len(raw) :]


def test_padded_output(firmware: Firmware) -> None:
    """Rows of the output with padding behind them, which Vela adds."""
    data = make_int8()
    padded = np.arange(5 * 8).reshape(5, 8).astype(np.int8)
    ended = firmware.run(set_output(data, 8), npu=write_pattern(data, padded))
    assert np.array_equal(ended.outputs[0].reshape(5, 6), padded[:, :6])


def test_output_of_4_bits(firmware: Firmware) -> None:
    """Two numbers in each byte, the lower half first."""
    data = make_int8()
    codes = np.resize(np.arange(-8, 8), 30)
    packed = (codes[::2] & 15 | (codes[1::2] & 15) << 4).astype(np.uint8)
    ended = firmware.run(set_output(data, 3), npu=write_pattern(data, packed))
    assert np.array_equal(ended.outputs[0].reshape(-1), codes)


def make_int8() -> bytes:
    """A program of one delegate, with int8 inputs and outputs of 5 x 6."""
    return compile_front(Relu(), (torch.arange(30, dtype=torch.int8).reshape(5, 6),), "ethos-u55-128").pte["inline"]


@pytest.mark.parametrize("block", ["cmd_data", "weight_data"])
def test_external_block(firmware: Firmware, block: str) -> None:
    """A block of the blob whose data is among the program's named data."""
    data, key = compile_small("ethos-u55-128").pte["segment"], "0123456789abcdef" * 4
    blob = pte.read(data).find().delegates[0].blob
    at = blob.index(block.encode().ljust(16, b"\0"))
    size = int.from_bytes(blob[at + 16 : at + 20], "little")
    payload, end = blob[at + 32 : at + 32 + size], at + 32 + size + -size % 16
    header = blob[at : at + 16] + struct.pack("<IB11x", 64, 1)
    external = blob[:at] + header + key.encode() + blob[end:]
    moved = move_to_named_data(data, external, key, payload)
    assert pte.read(moved).named_data[key] == payload
    image = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    expected = engine.run(data, [image], engine="npu").outputs
    ended = firmware.run(moved, [image], npu=simulate_job)
    assert STATUSES[ended.status] == "OK" and np.array_equal(ended.outputs[0], expected[0])
    lost = moved.replace(key.encode(), b"f" * 64, 1)
    assert run(firmware, lost) == "EXTERNAL_DATA"


def move_to_named_data(data: bytes, blob: bytes, key: str, payload: bytes) -> bytes:
    """Replace the blob of a program, and add a piece of named data."""
    content = deserialize_pte_binary(data)
    content.program.backend_delegate_data[0].data = blob
    store = NamedDataStore()
    store.add_named_data(key, payload, alignment=16)
    named = PTEFile(content.program, content.mutable_data, store.get_named_data_store_output())
    return bytes(serialize_pte_binary(named, extract_delegate_segments=True))


def test_second_method(firmware: Firmware, add_pte: dict[str, bytes]) -> None:
    """Methods have their own values; one that returns a constant has no instructions."""
    names = [plan.name for plan in pte.read(add_pte["inline"]).plans]
    assert names == ["forward", "note"]
    assert run(firmware, add_pte["inline"], method=1) == "OK"
    assert run(firmware, add_pte["inline"], method=2) == "NO_METHOD"


def test_quantize_rounds_as_the_engine(firmware: Firmware) -> None:
    x = Spec((1, 4, 5))
    ties = np.array([0.5, 1.5, -0.5, -2.5, 3e38, -3e38, 0.1, 12.7, 12.75, np.inf, -np.inf, 8388607.5, 1e-40])
    values = np.resize(ties, x.shape).astype(np.float32)
    for scale, zero in ((1.0, 0), (0.1, -3), (3.7e-3, 100)):
        for dtype, low, high, code in (
            (torch.int8, -128, 127, 1),
            (torch.int8, -127, 127, 1),
            (torch.int32, -999, 999, 3),
        ):
            out = Spec(x.shape, dtype)
            compare(firmware, call(QUANTIZE, "out", (x, scale, zero, low, high, code), out), [values])


def test_dequantize(firmware: Firmware) -> None:
    x, values = Spec((256,), torch.int8), np.arange(-128, 128).astype(np.int8)
    for scale, zero in ((1.0, 0), (0.1, -128), (3.7e-3, 127)):
        data = call(DEQUANTIZE, "out", (x, scale, zero, -128, 127, 1, None), Spec((256,)))
        compare(firmware, data, [values])


def test_add_broadcasts(firmware: Firmware) -> None:
    rng = np.random.default_rng(1)
    last = (0, 2, 3, 1)
    for a, b, alpha, orders in (
        ((3, 4), (3, 4), 1, ()),
        ((3, 1), (1, 4), 2, ()),
        ((4,), (2, 3, 4), -1.5, ()),
        ((), (2, 2), 1, ()),
        ((2, 3, 4, 5), (2, 3, 4, 5), 1, (last, (0, 1, 2, 3), last)),
        ((2, 0, 3), (1, 1, 3), 1, ()),
    ):
        shape, order = np.broadcast_shapes(a, b), orders or ((), (), ())
        specs = Spec(a, order=order[0]), Spec(b, order=order[1])
        data = call("aten::add", "out", (*specs, alpha), Spec(shape, order=order[2]))
        arrays = [rng.normal(size=spec.shape).astype(np.float32) for spec in specs]
        expected = engine.run(data, arrays, engine="npu").outputs[0]
        # The runtime takes inputs as they are in memory.
        given = [
            array.transpose(spec.order) if spec.order else array for array, spec in zip(arrays, specs, strict=True)
        ]
        ours = firmware.run(data, given).outputs[0]
        # torch computes `a + alpha * b` with one rounding.
        assert ours.shape == expected.shape
        assert np.all(np.abs(ours - expected) <= 1e-5 * max(1.0, np.abs(expected).max(initial=0)))


def test_move_and_jump(firmware: Firmware) -> None:
    """A value that is moved is the other tensor; a jump that is taken skips the move."""
    x = Spec((4,))
    step = Step("aten::add", "out", (x, x, 1), (x,))
    array = np.arange(4, dtype=np.float32)
    assert firmware.run(make_program(step, moves=[(0, 3)]), [array, array]).outputs[0].tolist() == [0, 1, 2, 3]
    assert run(firmware, make_program(step, moves=[(0, 2)])) == "BAD_VALUE"
    assert run(firmware, make_program(step, jumps=[(0, 0)])) == "BAD_VALUE"
    flag = Spec((3,), torch.bool)
    mixed = make_program(Step("aten::add", "out", (x, x, 1), (x,)), Step("aten::add", "out", (x, x, flag), (x,)))
    assert run(firmware, mixed) == "BAD_ARGUMENT"
    assert run(firmware, make_program(Step("aten::add", "out", (x, x, False), (x,)), jumps=[(2, 0)])) == "TOO_LONG"
    assert run(firmware, make_program(Step("aten::add", "out", (x, x, True), (x,)), jumps=[(2, 0)])) == "OK"
    assert run(firmware, make_program(step, moves=[(0, 99)])) == "BAD_INSTRUCTION"
    assert run(firmware, make_program(step, jumps=[(0, 99)])) == "BAD_INSTRUCTION"


def test_pools(firmware: Firmware) -> None:
    """Every pool that is one unit smaller has its own error, which says how large it must be."""
    data = compile_small("ethos-u65-256").pte["inline"]
    peaks = firmware.run(data).peaks
    assert firmware.run(data, pools=peaks).status == 0
    names = ("METHOD_POOL", "PLANNED_POOL", "SCRATCH_POOL", "FAST_SCRATCH_POOL")
    for index, name in enumerate(names):
        smaller = [peak - 16 * (index == i) for i, peak in enumerate(peaks)]
        ended = firmware.run(data, pools=smaller)
        assert (STATUSES[ended.status], ended.detail) == (name, peaks[index])


def test_state_is_kept(firmware: Firmware) -> None:
    """A buffer that the program changes keeps its value from run to run."""
    data = emit(export(Counter(), (torch.zeros(3),)), forms=("segment",))["segment"]
    assert "aten::copy_" in map(str, pte.read(data).find().operators)
    ended = firmware.run(data, [np.zeros(3, np.float32)], runs=3)
    assert ended.outputs[-1].tolist() == [3, 3, 3]


def test_data_in_another_file(firmware: Firmware) -> None:
    content = deserialize_pte_binary(emit(export(Offset(), (torch.zeros(3, 4),)), forms=("segment",))["segment"])
    values = (value.val for value in content.program.execution_plan[0].values)
    constant = next(value for value in values if isinstance(value, schema.Tensor) and value.data_buffer_idx)
    constant.extra_tensor_info = schema.ExtraTensorInfo(
        fully_qualified_name="offset", location=schema.TensorDataLocation.EXTERNAL
    )
    data = bytes(serialize_pte_binary(content))
    assert run(firmware, data) == "EXTERNAL_DATA"
    with pytest.raises(Invalid, match=r"cannot read constants of the CPU from `\.ptd` files.*\n.*needs `offset`"):
        design(data, "corstone-300")


def test_misaligned_blob(firmware: Firmware, add_pte: dict[str, bytes]) -> None:
    """Segments that begin four bytes later than they should."""
    data = add_pte["segment"]
    (base,) = struct.unpack_from("<Q", data, 24)
    later = data[:24] + struct.pack("<Q", base + 4) + data[32:base] + bytes(4) + data[base:]
    ended = firmware.run(later)
    assert (STATUSES[ended.status], ended.detail) == ("MISALIGNED", base + 4)


def test_refusals(firmware: Firmware, add_pte: dict[str, bytes], softmax_pte: dict[str, bytes]) -> None:
    data = add_pte["inline"]
    blob = pte.read(data).find().delegates[0].blob
    assert run(firmware, b"") == run(firmware, b"\0" * 100) == "NOT_A_PROGRAM"
    assert run(firmware, data[:200]) in ("DAMAGED", "BAD_VALUE")
    ended = firmware.run(softmax_pte["inline"].replace(b"aten::_softmax", b"aten::_hardmax"))
    assert (STATUSES[ended.status], ended.name) == ("NO_KERNEL", "aten::_hardmax.out")
    ended = firmware.run(data.replace(b"EthosUBackend", b"OtherBackend2"))
    assert (STATUSES[ended.status], ended.name) == ("NO_BACKEND", "OtherBackend2")
    assert run(firmware, data.replace(blob, blob.replace(b"cmd_data", b"cmd_dat2"))) == "BAD_BLOB"
    assert run(firmware, data.replace(b"COP1", b"COP2")) == "BAD_COMMANDS"
    at = blob.index(b"inputs") + 32
    other = blob[: at + 24] + b"\6" + blob[at + 25 :]
    assert run(firmware, data.replace(blob, other)) == "BAD_DELEGATE_IO"
    assert STATUSES[firmware.run(data, [np.zeros(4, np.int32)]).status] == "BAD_INPUT"
    assert run(firmware, call("aten::add", "out", (Spec((4,), planned=False), Spec((4,)), 1), Spec((4,)))) == "OK"
    unset = call("aten::add", "out", (Spec((4,)), Spec((4,)), 1), Spec((4,), planned=False))
    assert run(firmware, unset) == "NO_DATA"
    assert run(firmware, call("aten::add", "out", (Spec((4,)), Spec((3,)), 1), Spec((4,)))) == "BAD_SHAPE"
    halves = Spec((4,), torch.float16)
    assert run(firmware, call("aten::add", "out", (halves, halves, 1), halves)) == "BAD_TYPE"
    assert run(firmware, call("aten::add", "out", (Spec((1,) * 17), Spec((4,)), 1), Spec((4,)))) == "BAD_TENSOR"
