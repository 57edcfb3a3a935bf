"""The delegate blob: its exact layout, and a reader that names what is wrong."""

import hashlib
import struct
from dataclasses import replace

import pytest

from tosaic.core.errors import Invalid
from tosaic.core.targets import ACCELERATORS, find
from tosaic.formats.blob import Payload, list_keys, pack, unpack
from tosaic.formats.tosa_writer import serialize
from tosaic.ir import ops
from tosaic.ir.build import Builder
from tosaic.ir.graph import DType, Type
from tosaic.tools import vela
from tosaic.tools.vela import Compiled, Slot

NAMES = ["vela_bin_stream", "cmd_data", "weight_data", "scratch_size", "inputs", "outputs", "vela_end_stream"]
SMALL = Compiled(
    cmd_data=b"COP1" + bytes(range(13)),
    weight_data=b"\x07",
    scratch_size=0x01020304,
    fast_scratch_size=0,
    inputs=(Slot((1, 1, 1, 2, 3, 4), 1, 16, 1), Slot((1, 1, 1, 1, 1, 5), 4, 64, 1)),
    outputs=(Slot((1, 1, 1, 1, 1, 8), 2, 0, 1),),
    weight_region=0,
    scratch_region=1,
    fast_scratch_region=0,
    summary={},
    debug_db="",
    log="",
)


def _split(blob: bytes) -> list[tuple[str, int, bytes]]:
    """Name, size and header rest of each block, walked by the documented rule alone."""
    found: list[tuple[str, int, bytes]] = []
    at = 0
    while at < len(blob):
        (size,) = struct.unpack_from("<I", blob, at + 16)
        found.append((blob[at : at + 16].rstrip(b"\0").decode(), size, blob[at + 20 : at + 32]))
        at += 32 + (size + 15) // 16 * 16
    return found


def _find(blob: bytes, name: str) -> int:
    return blob.index(name.encode())


def _patch(blob: bytes, at: int, data: bytes) -> bytes:
    return blob[:at] + data + blob[at + len(data) :]


def test_layout_byte_by_byte() -> None:
    header = struct.Struct("<16sI12x")
    io = struct.Struct("<9i")
    expected = b"".join(
        [
            header.pack(b"vela_bin_stream", 0),
            header.pack(b"cmd_data", 17) + b"COP1" + bytes(range(13)) + bytes(15),
            header.pack(b"weight_data", 1) + b"\x07" + bytes(15),
            header.pack(b"scratch_size", 4) + b"\x04\x03\x02\x01" + bytes(12),
            header.pack(b"inputs", 76) + struct.pack("<i", 2),
            io.pack(1, 1, 1, 2, 3, 4, 1, 16, 1) + io.pack(1, 1, 1, 1, 1, 5, 4, 64, 1) + bytes(4),
            header.pack(b"outputs", 40) + struct.pack("<i", 1) + io.pack(1, 1, 1, 1, 1, 8, 2, 0, 1) + bytes(8),
            header.pack(b"vela_end_stream", 0),
        ]
    )
    assert pack(SMALL) == expected


@pytest.mark.parametrize("size", [4, 15, 16, 17, 31, 32])
def test_blocks_are_padded_to_sixteen_bytes(size: int) -> None:
    blob = pack(replace(SMALL, cmd_data=b"COP2" + bytes(size - 4), weight_data=b""))
    assert len(blob) % 16 == 0
    assert [(name, length) for name, length, _ in _split(blob)] == list(
        zip(NAMES, [0, size, 0, 4, 76, 40, 0], strict=True)
    )
    assert all(rest == bytes(12) for _, _, rest in _split(blob))
    assert unpack(blob).cmd_data == b"COP2" + bytes(size - 4)


@pytest.mark.parametrize("name", ACCELERATORS)
def test_compiled_network_survives_the_round_trip(name: str) -> None:
    b = Builder()
    x = b.input(Type(DType.I8, (1, 8, 8, 4)))
    y = b.input(Type(DType.I32, (1, 8)))
    pool = ops.max_pool2d(b, x, kernel=(2, 2), stride=(2, 2), pad=(0, 0, 0, 0))
    compiled = vela.compile(serialize(b.finish([pool, ops.add(b, y, y)])), vela.default_options(find(name)))
    blob = unpack(pack(compiled))
    assert blob.cmd_data == compiled.cmd_data
    assert blob.weight_data == compiled.weight_data
    assert blob.scratch_size == compiled.scratch_size
    assert (blob.inputs, blob.outputs) == (compiled.inputs, compiled.outputs)
    assert len(blob.inputs) == len(blob.outputs) == 2


def test_numbers_that_need_more_than_32_bits_are_invalid() -> None:
    with pytest.raises(Invalid, match="does not fit"):
        pack(replace(SMALL, outputs=(Slot((1, 1, 1, 1, 1, 8), 1, 1 << 31, 1),)))
    with pytest.raises(Invalid, match="does not fit"):
        pack(replace(SMALL, scratch_size=1 << 32))


def _damage(blob: bytes, kind: str) -> bytes:
    inputs = _find(blob, "inputs") + 32
    match kind:
        case "empty":
            return b""
        case "cut in a header":
            return blob[:-20]
        case "cut in a block":
            return blob[: _find(blob, "weight_data") + 40]
        case "cut before the end":
            return blob[:-32]
        case "bytes after the end":
            return blob + bytes(16)
        case "wrong first name":
            return _patch(blob, 0, b"cmd_data".ljust(16, b"\0"))
        case "unknown name":
            return _patch(blob, _find(blob, "weight_data"), b"weight_dada")
        case "name twice":
            return _patch(blob, _find(blob, "outputs"), b"inputs\0")
        case "first again":
            return _patch(blob, _find(blob, "weight_data"), b"vela_bin_stream")
        case "size too large":
            return _patch(blob, _find(blob, "weight_data") + 16, b"\xff\xff\xff\x7f")
        case "missing block":
            at = _find(blob, "weight_data")
            return blob[:at] + blob[at + 48 :]
        case "marker not empty":
            return _patch(blob, 16, b"\x10\0\0\0")
        case "external scratch":
            return _patch(blob, _find(blob, "scratch_size") + 20, b"\x01")
        case "bad flag":
            return _patch(blob, _find(blob, "cmd_data") + 20, b"\x02")
        case "magic":
            return _patch(blob, _find(blob, "cmd_data") + 32, b"COP3")
        case "scratch of 8 bytes":
            return _patch(blob, _find(blob, "scratch_size") + 16, b"\x08")
        case "short count":
            return _patch(blob, inputs - 16, b"\x03")[: inputs + 16] + blob[_find(blob, "outputs") :]
        case "negative count":
            return _patch(blob, inputs, b"\xff\xff\xff\xff")
        case "huge count":
            return _patch(blob, inputs, b"\xff\xff\xff\x7f")
        case "zero dimension":
            return _patch(blob, inputs + 4, bytes(4))
        case "zero element size":
            return _patch(blob, inputs + 28, bytes(4))
        case "negative offset":
            return _patch(blob, inputs + 32, b"\xff\xff\xff\xff")
        case "negative region":
            return _patch(blob, inputs + 36, b"\xff\xff\xff\xff")
        case _:
            # An offset near the end of a 32-bit scratch area.
            return _patch(blob, inputs + 32, b"\xff\xff\xff\x7f")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("empty", r"block header at offset 0[\s\S]*ends at 0"),
        ("cut in a header", "block header at offset"),
        ("cut in a block", r"`weight_data` at offset \d+[\s\S]*size is 1"),
        ("cut before the end", "block header at offset"),
        ("bytes after the end", "last block ends at"),
        ("wrong first name", "must be `vela_bin_stream`"),
        ("unknown name", "`weight_dada`[\\s\\S]*unknown block name"),
        ("name twice", "the name occurs twice"),
        ("first again", "must be `vela_bin_stream`"),
        ("size too large", "`weight_data`[\\s\\S]*size is 2147483647"),
        ("missing block", "`weight_data`[\\s\\S]*missing"),
        ("marker not empty", "must be empty"),
        ("external scratch", "`external` flag is 1"),
        ("bad flag", "`external` flag is 2"),
        ("magic", "COP3"),
        ("scratch of 8 bytes", "8 bytes; 4 are needed"),
        ("short count", "3 bytes; the count alone takes 4"),
        ("negative count", "count is -1"),
        ("huge count", "count is 2147483647"),
        ("zero dimension", "out of range"),
        ("zero element size", "out of range"),
        ("negative offset", "out of range"),
        ("negative region", "out of range"),
        ("outside scratch", "outside the scratch area"),
    ],
)
def test_damage_is_named(kind: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        unpack(_damage(pack(SMALL), kind))
    assert caught.value.where


def test_offset_of_the_damage_is_given() -> None:
    blob = pack(SMALL)
    at = _find(blob, "inputs") + 32 + 4 + 36
    with pytest.raises(Invalid) as caught:
        unpack(_patch(blob, at, bytes(4)))
    assert caught.value.where == f"block `inputs` at offset {at}"


def test_every_cut_is_invalid() -> None:
    blob = pack(SMALL)
    for end in range(len(blob)):
        with pytest.raises(Invalid):
            unpack(blob[:end])


WEIGHTS = Payload("weight_data", "flash", SMALL.weight_data)
COMMANDS = Payload("cmd_data", "sram", SMALL.cmd_data)


def test_key_of_a_payload_is_the_hash_of_placement_and_data() -> None:
    assert WEIGHTS.key == hashlib.sha256(b"flash\0\x07").hexdigest()


@pytest.mark.parametrize("external", [(WEIGHTS,), (COMMANDS,), (WEIGHTS, COMMANDS)])
def test_external_payloads_come_from_the_named_data(external: tuple[Payload, ...]) -> None:
    blob = pack(SMALL, external)
    assert list_keys(blob) == {one.block: one.key for one in external}
    flags = {name: rest for name, _, rest in _split(blob)}
    assert {name for name, rest in flags.items() if rest[0]} == {one.block for one in external}
    assert {rest[1:] for rest in flags.values()} == {bytes(11)}
    named = {one.key: one.data for one in external}
    assert unpack(blob, named=named) == unpack(pack(SMALL))
    assert pack(unpack(blob, named=named)) == pack(SMALL)


def test_blob_without_external_payloads_has_no_keys() -> None:
    assert list_keys(pack(SMALL)) == {}


def test_missing_payload_says_which_file_is_needed() -> None:
    with pytest.raises(Invalid, match="the weights of an Ethos-U delegate are missing") as caught:
        unpack(pack(SMALL, (WEIGHTS,)), named={"00" * 32: b"another"})
    assert WEIGHTS.key in caught.value.why and "`data`" in caught.value.fix
    assert "`--data`" in caught.value.to_cli_text()


@pytest.mark.parametrize("key", [b"ab" * 31, b"AB" * 32, b"../" * 20, b"\xff" * 64])
def test_key_that_is_not_a_hash(key: bytes) -> None:
    blob = pack(replace(SMALL, weight_data=key))
    with pytest.raises(Invalid, match="damaged") as caught:
        unpack(_patch(blob, _find(blob, "weight_data") + 20, b"\x01"))
    assert "64 hexadecimal digits" in caught.value.why
