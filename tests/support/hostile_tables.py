"""Files whose tables ask for far more memory or time than their size."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import flatbuffers
import numpy as np

from tosaic.formats import vgf

Field = Callable[[flatbuffers.Builder, int], None]


def share_table(identifier: bytes, slot: int, count: int) -> bytes:
    """A root table whose field is a vector of `count` offsets to one empty table."""
    root_fields = struct.pack("<HH", 4 + 2 * (slot + 1), 8) + bytes(2 * slot) + struct.pack("<H", 4)
    root_fields += bytes(-len(root_fields) % 4)
    root_at = 8 + len(root_fields)
    vector_at = root_at + 8
    empty_at = vector_at + 4 + 4 * count
    root = struct.pack("<iI", len(root_fields), 4)
    places = (empty_at - vector_at - 4 * np.arange(count)).astype("<u4").tobytes()
    empty = struct.pack("<HHi", 4, 4, 4)
    return struct.pack("<I", root_at) + identifier + root_fields + root + struct.pack("<I", count) + places + empty


def add_table(builder: flatbuffers.Builder, fields: dict[int, Field]) -> int:
    builder.StartObject(max(fields, default=0) + 1)
    for slot, write in fields.items():
        write(builder, slot)
    return int(builder.EndObject())


def offset(target: int) -> Field:
    return lambda builder, slot: builder.PrependUOffsetTRelativeSlot(slot, target, 0)


def number(value: int, size: int) -> Field:
    kinds = {1: "PrependUint8Slot", 4: "PrependUint32Slot", 8: "PrependUint64Slot"}
    return lambda builder, slot: getattr(builder, kinds[size])(slot, value, 0)


def add_vector(builder: flatbuffers.Builder, width: int, items: list[int]) -> int:
    builder.StartVector(width, len(items), width)
    prepend = {4: builder.PrependInt32, 8: builder.PrependInt64}[width]
    for item in reversed(items):
        prepend(item)
    return int(builder.EndVector())


def add_offsets(builder: flatbuffers.Builder, *targets: int) -> int:
    builder.StartVector(4, len(targets), 4)
    for target in reversed(targets):
        builder.PrependUOffsetTRelative(target)
    return int(builder.EndVector())


def make_tosa(rank: int) -> bytes:
    """A graph that gives back its input of this rank."""
    builder = flatbuffers.Builder(1024)
    text = builder.CreateString("x")
    tensor = add_table(
        builder, {0: offset(text), 1: offset(add_vector(builder, 4, [2] * rank)), 2: number(_float32(), 4)}
    )
    names = add_offsets(builder, text)
    block = add_table(builder, {2: offset(add_offsets(builder, tensor)), 3: offset(names), 4: offset(names)})
    blocks, main = add_offsets(builder, block), builder.CreateString("main")
    region = add_table(builder, {0: offset(main), 1: offset(blocks)})
    version = add_table(builder, {0: lambda b, slot: b.PrependInt32Slot(slot, 1, -1)})
    root = add_table(builder, {0: offset(version), 1: offset(add_offsets(builder, region))})
    builder.Finish(root, file_identifier=b"TOSA")
    return bytes(builder.Output())


def _float32() -> int:
    from tosaic.formats import tosa_binding as binding
    from tosaic.ir.graph import DType

    return int(binding.DTYPES[DType.F32].value)


def make_vgf(rank: int, size: int) -> bytes:
    """A file with one constant of this rank, without data."""

    def finish(builder: flatbuffers.Builder, fields: dict[int, Field]) -> bytes:
        builder.Finish(add_table(builder, fields))
        return bytes(builder.Output())

    builder = flatbuffers.Builder(1024)
    description = add_table(builder, {0: offset(add_vector(builder, 8, [size] * rank))})
    resource_at = add_table(builder, {1: number(14, 4), 2: number(3, 1), 3: offset(description)})
    resources = finish(builder, {0: offset(add_offsets(builder, resource_at))})
    empty = finish(flatbuffers.Builder(64), {0: lambda builder, slot: None})
    constants = b"CONST00\0" + struct.pack("<Q", 1) + struct.pack("<IiQQ", 0, -1, 0, 0)
    sections, places = b"", []
    for section in (empty, empty, resources, constants):
        places.append((vgf.HEADER_SIZE + len(sections), len(section)))
        sections += section + bytes(-len(section) % 8)
    header = b"VGF1" + bytes(4) + bytes((0, 4, 0, 0)) + bytes(4)
    header += b"".join(struct.pack("<QQ", *place) for place in places)
    return header.ljust(vgf.HEADER_SIZE, b"\0") + sections


def make_ptd(
    segments: Sequence[tuple[int, int]], keys: Sequence[tuple[str, int]], size: int, version: int = 0
) -> bytes:
    """A .ptd file with these segments (offset, size), keys (name, segment) and bytes of data."""
    builder = flatbuffers.Builder(1024)
    names = [builder.CreateString(key) for key, _ in keys]
    rows = [add_table(builder, {0: number(at, 8), 1: number(length, 8)}) for at, length in segments]
    entries = [
        add_table(builder, {0: offset(name), 1: number(index, 4)}) for name, (_, index) in zip(names, keys, strict=True)
    ]
    lists = {1: offset(add_offsets(builder, *rows)), 2: offset(add_offsets(builder, *entries))}
    builder.Finish(add_table(builder, {0: number(version, 4), **lists}), file_identifier=b"FT01")
    return add_data_header(bytes(builder.Output()), bytes(size))


def add_data_header(tables: bytes, data: bytes) -> bytes:
    """Put the header of a .ptd file between the first eight bytes of a flatbuffer and the rest, and the data behind."""
    base = 48 + len(tables) + -len(tables) % 16
    header = struct.pack("<4sIQQQQ", b"FH01", 40, 48, len(tables), base, len(data)).ljust(48, b"\0")
    root = struct.pack("<I", struct.unpack_from("<I", tables)[0] + len(header))
    return (root + tables[4:8] + header + tables[8:]).ljust(base, b"\0") + data


def make_blob(count: int) -> bytes:
    """A blob that says it has so many inputs, and has none."""
    header = struct.Struct("<16sIB11x")
    blocks = {b"vela_bin_stream": b"", b"cmd_data": b"COP1", b"weight_data": b"", b"scratch_size": bytes(4)}
    blocks |= {b"inputs": struct.pack("<i", count), b"outputs": struct.pack("<i", -1), b"vela_end_stream": b""}
    return b"".join(header.pack(name, len(part), 0) + part + bytes(-len(part) % 16) for name, part in blocks.items())
