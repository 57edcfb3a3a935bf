"""The .ptd reader: what exir writes, and files that are damaged."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import executorch.extension.flat_tensor.serialize as schema
import pytest
from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

from support.hostile_tables import add_data_header, make_ptd, share_table
from tosaic.core.errors import Invalid
from tosaic.formats import ptd, pte_schema

HEADER_AT = 8


def write(buffers: list[bytes], keys: dict[str, int]) -> bytes:
    """A .ptd file by exir: the number of the buffer of each key."""
    entries = {key: DataEntry(index, 16, None) for key, index in keys.items()}
    return bytes(FlatTensorSerializer().serialize(DataPayload(buffers, entries)))


@pytest.fixture(scope="module")
def data() -> bytes:
    return write([b"first", bytes(range(200)), b""], {"a" * 64: 0, "b" * 64: 1, "empty": 2, "again": 1})


def set_field(data: bytes, index: int, value: int) -> bytes:
    """Change a number of the header: flatbuffer offset and size, segment offset and size."""
    at = HEADER_AT + 8 + 8 * index
    return data[:at] + struct.pack("<Q", value) + data[at + 8 :]


def test_data_by_key(data: bytes) -> None:
    found = ptd.read(data)
    assert found.named == {"a" * 64: b"first", "b" * 64: bytes(range(200)), "empty": b"", "again": bytes(range(200))}
    assert found.size == len(data) and 205 < found.taken < 20_000
    # Two keys of one segment share a copy.
    assert found.named["again"] is found.named["b" * 64]


def test_file_without_data() -> None:
    assert ptd.read(write([], {})).named == {}


def test_field_numbers_are_those_of_the_installed_schema() -> None:
    text = re.sub(r"//[^\n]*", "", Path(next(iter(schema.__path__)), "flat_tensor.fbs").read_text())
    tables = {
        name: re.findall(r"(\w+)\s*:", body) for name, body in re.findall(r"table\s+(\w+)\s*\{(.*?)\}", text, re.DOTALL)
    }
    assert tuple(tables["FlatTensor"]) == pte_schema.DATA_FIELDS["FlatTensor"]
    for name in ("DataSegment", "NamedData"):
        known = pte_schema.FIELDS[name]
        assert tuple(tables[name][: len(known)]) == known
    assert f'file_identifier "{ptd.IDENTIFIER.decode()}"' in text


def test_every_cut_is_invalid(data: bytes) -> None:
    for end in range(len(data)):
        with pytest.raises(Invalid):
            ptd.read(data[:end])


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("value", [0, 1, 1 << 20, (1 << 64) - 1])
def test_header_that_leads_elsewhere(data: bytes, index: int, value: int) -> None:
    with pytest.raises(Invalid, match="damaged"):
        ptd.read(set_field(data, index, value))


def test_other_files() -> None:
    for other in (b"", b"PK\3\4", b"\0\0\0\0ET12" + bytes(64)):
        with pytest.raises(Invalid, match=r"not a \.ptd file"):
            ptd.read(other)


@pytest.mark.parametrize(
    ("segments", "keys", "message"),
    [
        ([(0, 64), (32, 64)], {"a": 0}, "is not between"),
        ([(64, 32), (0, 32)], {"a": 0}, "is not between"),
        ([(0, 1 << 40)], {"a": 0}, "is not between"),
        ([((1 << 64) - 16, 16)], {"a": 0}, "is not between"),
        ([(0, 16)], {"a": 1}, "refers to segment 1; there are 1"),
        ([(8, 16)], {"a": 0}, "multiple of 16"),
    ],
)
def test_segments_that_do_not_fit(segments: list[tuple[int, int]], keys: dict[str, int], message: str) -> None:
    with pytest.raises(Invalid, match=r"the \.ptd file is damaged") as caught:
        ptd.read(make_ptd(segments, list(keys.items()), 128))
    assert message in str(caught.value)


def test_key_that_occurs_twice() -> None:
    with pytest.raises(Invalid, match="occurs twice"):
        ptd.read(make_ptd([(0, 16), (16, 16)], [("a", 0), ("a", 1)], 32))


def test_version_that_is_not_supported() -> None:
    with pytest.raises(Invalid, match="version 7"):
        ptd.read(make_ptd([], [], 0, version=7))


def test_memory_is_counted(data: bytes) -> None:
    with pytest.raises(Invalid, match="bytes of memory"):
        ptd.read(data, max_memory=1000)
    many = make_ptd([(0, 16)], [(str(i), 0) for i in range(2000)], 16)
    assert len(ptd.read(many).named) == 2000
    with pytest.raises(Invalid, match="bytes of memory"):
        ptd.read(many, max_memory=1 << 20)


@pytest.mark.parametrize("slot", [1, 2])
def test_one_table_a_million_times(slot: int) -> None:
    data = add_data_header(share_table(b"FT01", slot, 2 << 20), b"")
    with pytest.raises(Invalid, match="bytes of memory"):
        ptd.read(data)
