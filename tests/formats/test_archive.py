"""The one reader of zip files: it takes what every reader sees the same, within the memory it may take."""

import io
import re
import zipfile

import numpy as np
import pytest
import torch

from support import hostile
from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid
from tosaic.formats.archive import unpack

NAMES = re.compile(r"[^\\]+")
FILES = {"x/first": b"one", "x/second": b"two" * 100}


def _unpack(data: bytes, max_memory: int | None = None) -> dict[str, bytes]:
    found = unpack(data, NAMES, "the file", Budget(len(data), max_memory))
    return {name: bytes(content) for name, content in found.items()}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_files_of_python(method: int) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
    assert _unpack(file.getvalue()) == FILES
    assert _unpack(hostile.plain(FILES)) == FILES


def test_files_that_were_written_to_a_pipe() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise io.UnsupportedOperation

    file = Pipe()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", b"one")
        with archive.open("y", "w", force_zip64=True) as part:
            part.write(b"two")
    assert _unpack(file.getvalue()) == {"x": b"one", "y": b"two"}


def test_files_of_numpy_and_torch() -> None:
    arrays, tensors = io.BytesIO(), io.BytesIO()
    np.savez_compressed(arrays, x=np.arange(1000))
    torch.save({"x": torch.arange(1000)}, tensors)
    assert list(_unpack(arrays.getvalue())) == ["x.npy"]
    found = _unpack(tensors.getvalue())
    assert found == hostile.unpack(tensors.getvalue())


@pytest.mark.parametrize("kind", hostile.AMBIGUOUS)
def test_files_that_two_readers_could_see_differently(kind: str) -> None:
    data = hostile.AMBIGUOUS[kind](FILES)
    assert data != hostile.plain(FILES)
    with pytest.raises(Invalid, match="the file is damaged"):
        _unpack(data)


@pytest.mark.parametrize("size", range(0, 400, 7))
def test_cut_off_files(size: int) -> None:
    with pytest.raises(Invalid, match="damaged"):
        _unpack(hostile.plain(FILES)[:size])


def test_flipped_bytes_change_nothing_unseen() -> None:
    data = hostile.plain(FILES)
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        try:
            found = _unpack(changed)
        except Invalid:
            continue
        # Dates, versions and permissions are not read.
        assert list(found.values()) == list(FILES.values())


def test_contents_larger_than_the_memory() -> None:
    data = hostile.bomb("x", 64 << 20)
    assert len(data) < 100_000
    with pytest.raises(Invalid, match=r"`x` needs 67,108,864 bytes"):
        _unpack(data, 32 << 20)
    assert len(_unpack(data)["x"]) == 64 << 20


def test_contents_larger_than_declared() -> None:
    data = hostile.bomb("x", 64 << 20, declared=1000)
    with pytest.raises(Invalid, match="damaged") as caught:
        _unpack(data, 1 << 20)
    assert "does not unpack to its declared size" in caught.value.why
