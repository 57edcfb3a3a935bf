"""Input files: each format, several inputs, and every way in which a file can be wrong."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from support import hostile
from tosaic.core.errors import Invalid
from tosaic.engines.inputs import read_inputs
from tosaic.formats.npy import Array
from tosaic.formats.tensors import TensorType

X = np.arange(6, dtype=np.int8).reshape(2, 3)
Y = np.float32([[0.5, -1.5]])
TYPES = [TensorType(X.dtype, X.shape), TensorType(Y.dtype, Y.shape)]


def test_nothing_is_ones() -> None:
    ones = read_inputs([], TYPES)
    assert [TensorType(a.dtype, a.shape) for a in ones] == TYPES
    assert all((a == 1).all() for a in ones)


def test_every_format(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "y.bin").write_bytes(Y.tobytes())
    (tmp_path / "y.RAW").write_bytes(Y.tobytes())
    torch.save(torch.from_numpy(X), tmp_path / "x.pt")
    np.savez(tmp_path / "both.npz", X, Y)
    np.savez_compressed(tmp_path / "named.npz", b=X, a=Y)
    torch.save((torch.from_numpy(X), torch.from_numpy(Y)), tmp_path / "tuple.pt")
    torch.save({"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}, tmp_path / "dict.pt")
    cases = [["x.npy", "y.bin"], ["x.pt", "y.RAW"], ["both.npz"], ["named.npz"], ["tuple.pt"], ["dict.pt"]]
    for names in cases:
        found = read_inputs([tmp_path / name for name in names], TYPES)
        assert np.array_equal(found[0], X), names
        assert np.array_equal(found[1], Y), names
        assert [TensorType(a.dtype, a.shape) for a in found] == TYPES


def test_strided_tensor_and_bits_of_bfloat16(tmp_path: Path) -> None:
    torch.save([torch.from_numpy(X).T.contiguous().T, torch.tensor([1.5], dtype=torch.bfloat16)], tmp_path / "x.pt")
    types = [TYPES[0], TensorType(np.dtype(np.uint16), (1,))]
    x, y = read_inputs([tmp_path / "x.pt"], types)
    assert np.array_equal(x, X)
    assert y.tolist() == [0x3FC0]


def write_pickled(path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (eval, ("1",))

    torch.save(Evil(), path)


def write_zip(path: Path, name: str, data: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, data)


def save_npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("x.txt", lambda p: p.write_text("1"), "unknown input file type: `{}`"),
        ("x.npy", lambda _: None, "there is no file `{}`"),
        ("x.npy", lambda p: p.mkdir(), "`{}` cannot be read"),
        ("x.npy", lambda p: p.write_bytes(b"hello"), "`{}` is not a .npy file"),
        (
            "x.npy",
            lambda p: np.save(p, X.astype(np.int16)),
            "`{}` is int16[2, 3], but input 0 of the program is int8[2, 3]",
        ),
        ("x.npy", lambda p: np.save(p, X.T), "`{}` is int8[3, 2], but input 0"),
        ("x.npy", lambda p: np.save(p, np.array([{}])), "`{}` cannot be used"),
        ("x.npz", lambda p: p.write_bytes(b"PK\x03\x04"), "`{}` is damaged"),
        ("x.npz", lambda p: write_zip(p, "../x.npy", save_npy(X)), "`{}` is damaged"),
        ("x.npz", lambda p: write_zip(p, "x.npy", b"1"), "`x` of `{}` is not a .npy file"),
        ("x.npz", lambda p: np.savez(p, wrong=X.T), "`wrong` of `{}` is int8[3, 2]"),
        ("x.pt", lambda p: p.write_bytes(b"1"), "`{}` is damaged"),
        ("x.pt", write_pickled, "`{}` cannot be read"),
        ("x.pt", lambda p: torch.save({"a": 1}, p), "`a` of `{}` is not a plain tensor"),
        ("x.pt", lambda p: torch.save(torch.zeros(2, dtype=torch.complex64), p), "`{}` is complex64[2], but input 0"),
        ("x.bin", lambda p: p.write_bytes(b"12345"), "`{}` has 5 bytes, but int8[2, 3] takes 6"),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, make, message: str) -> None:
    path = tmp_path / name
    make(path)
    with pytest.raises(Invalid) as caught:
        read_inputs([path], TYPES[:1])
    assert message.format(path) in str(caught.value)


def test_wrong_count(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(Invalid, match=r"1 inputs were given .*x\.npy.*, but the program takes 2"):
        read_inputs([tmp_path / "x.npy"], TYPES)
    with pytest.raises(Invalid, match=r"2 inputs were given"):
        read_inputs([tmp_path / "x.npy"] * 2, TYPES[:1])
    (tmp_path / "y.bin").write_bytes(Y.tobytes())
    with pytest.raises(Invalid, match="one input too many"):
        read_inputs([tmp_path / "x.npy", tmp_path / "y.bin"], TYPES[:1])


def test_raw_bools(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\0\1\1")
    types = [TensorType(np.dtype(np.bool_), (3,))]
    assert read_inputs([tmp_path / "x.bin"], types)[0].tolist() == [False, True, True]
    (tmp_path / "x.bin").write_bytes(b"\0\1\2")
    with pytest.raises(Invalid, match="not a bool"):
        read_inputs([tmp_path / "x.bin"], types)


@pytest.mark.parametrize("kind", hostile.AMBIGUOUS)
def test_ambiguous_files(tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(3, np.float32), y=np.zeros(3, np.float32))
    files = hostile.unpack((tmp_path / "x.npz").read_bytes())
    (tmp_path / "x.npz").write_bytes(hostile.AMBIGUOUS[kind](files))
    with pytest.raises(Invalid, match="is damaged"):
        read_inputs([tmp_path / "x.npz"], TYPES)


def test_inputs_within_the_memory(tmp_path: Path) -> None:
    types = [TensorType(np.dtype(np.int8), (1 << 20,))]
    (tmp_path / "x.bin").write_bytes(bytes(1 << 20))
    np.save(tmp_path / "x.npy", np.zeros(1 << 20, np.int8))
    for name in ("x.bin", "x.npy"):
        with pytest.raises(Invalid, match="bytes of memory"):
            read_inputs([tmp_path / name], types, (1 << 20) + 1000)
        assert len(read_inputs([tmp_path / name], types, 3 << 20)) == 1
    with pytest.raises(Invalid, match="input 0 needs"):
        read_inputs([], types, 1 << 19)
    with pytest.raises(Invalid, match="neither a file nor a pipe"):
        read_inputs([_link(tmp_path / "zero.bin", "/dev/zero")], types)


def _link(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path
