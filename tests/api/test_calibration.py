"""Calibration data: what is taken, and what is refused with a reason."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tosaic.api import calibration
from tosaic.core.errors import Invalid
from tosaic.formats.npy import write_npy

ONE = (torch.zeros(1, 2, 3),)
TWO = (torch.zeros(1, 2), torch.zeros(3, dtype=torch.int32))


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _equal(samples: list[calibration.Sample], wanted: list[tuple[torch.Tensor, ...]]) -> None:
    assert len(samples) == len(wanted)
    for got, want in zip(samples, wanted, strict=True):
        assert [g.shape for g in got] == [w.shape for w in want]
        assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


def test_iterables_of_tensors_tuples_and_dicts() -> None:
    samples = [_numbers(1, 2, 3, seed=i) for i in range(3)]
    _equal(calibration.read(iter(samples), ONE), [(s,) for s in samples])
    _equal(calibration.read([(s,) for s in samples], ONE), [(s,) for s in samples])
    pair = (_numbers(1, 2), torch.arange(3, dtype=torch.int32))
    _equal(calibration.read([pair], TWO), [pair])
    _equal(calibration.read([{"a": pair[0], "b": pair[1]}], TWO), [pair])


def test_numpy_arrays_and_doubles_are_taken() -> None:
    array = np.arange(6, dtype=np.float64).reshape(1, 2, 3)
    ((sample,),) = calibration.read([array], ONE)
    assert sample.dtype == torch.float32 and sample.tolist() == array.tolist()


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt"])
@pytest.mark.parametrize("shape", [(1, 2, 3), (4, 1, 2, 3), (4, 2, 3)], ids=["one", "stacked", "batch"])
def test_one_sample_or_several_in_a_file(tmp_path: Path, suffix: str, shape: tuple[int, ...]) -> None:
    data = _numbers(*shape)
    path = tmp_path / f"data{suffix}"
    match suffix:
        case ".npy":
            np.save(path, data.numpy())
        case ".npz":
            np.savez(path, data=data.numpy())
        case _:
            torch.save(data, path)
    _equal(calibration.read(path, ONE), [(s.reshape(1, 2, 3),) for s in data.reshape(-1, 1, 2, 3)])


def test_several_inputs_in_a_file(tmp_path: Path) -> None:
    first, second = _numbers(5, 1, 2), torch.arange(15, dtype=torch.int32).reshape(5, 3)
    np.savez(tmp_path / "data.npz", first=first.numpy(), second=second.numpy())
    _equal(calibration.read(tmp_path / "data.npz", TWO), [(first[i], second[i]) for i in range(5)])
    torch.save([(first[0], second[0]), (first[1], second[1])], tmp_path / "data.pt")
    _equal(calibration.read(str(tmp_path / "data.pt"), TWO), [(first[i], second[i]) for i in range(2)])
    torch.save({"first": first[0], "second": second[0]}, tmp_path / "data.pt")
    _equal(calibration.read(tmp_path / "data.pt", TWO), [(first[0], second[0])])


def test_a_folder_is_read_in_order(tmp_path: Path) -> None:
    samples = [_numbers(1, 2, 3, seed=i) for i in range(3)]
    np.save(tmp_path / "b.npy", samples[1].numpy())
    np.savez(tmp_path / "a.npz", x=samples[0].numpy())
    torch.save(samples[2], tmp_path / "c.pt")
    (tmp_path / "notes.txt").write_text("not data")
    _equal(calibration.read(tmp_path, ONE), [(s,) for s in samples])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "the calibration data is empty"),
        (_numbers(1, 2, 3), "calibration is a single tensor"),
        ([_numbers(1, 2, 4)], "input 0 of sample 0 has shape [1, 2, 4], the model takes [1, 2, 3]"),
        ([_numbers(1, 2, 3), _numbers(3, 2)], "input 0 of sample 1 has shape [3, 2]"),
        ([(_numbers(1, 2, 4), _numbers(1))], "sample 0 has 2 inputs, the model takes 1"),
        ([torch.ones(1, 2, 3, dtype=torch.int8)], "is int8, the model takes float32"),
        ([torch.full((1, 2, 3), float("nan"))], "contains NaN or infinity"),
        ([torch.full((1, 2, 3), -float("inf"))], "contains NaN or infinity"),
        ([torch.full((1, 2, 3), 2.0)] * 3, "is 2 everywhere"),
        (["text"], "is of type `str`, not a tensor"),
        ([[[1.0], [2.0, 3.0]]], "has 2 inputs"),
    ],
)
def test_refused_samples(data: Any, words: str) -> None:
    with pytest.raises(Invalid) as caught:
        calibration.read(data, ONE)
    assert words in str(caught.value)
    assert caught.value.fix


def test_a_data_loader_with_labels_and_batches() -> None:
    images, labels, notes = _numbers(10, 2, 3), torch.arange(10), list[str]()
    dataset = torch.utils.data.TensorDataset(images, labels)
    _equal(calibration.read(dataset, ONE, notes=notes), [(image[None],) for image in images])
    assert notes == ["calibration samples have 2 elements: the model takes the first"]
    loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    _equal(calibration.read(loader, ONE), [(image[None],) for image in images])
    notes.clear()
    pairs = calibration.read(loader, (torch.zeros(3, 2, 3),), notes=notes)
    _equal(pairs, [(images[0:3],), (images[4:7],)])
    assert notes[1] == "4 calibration samples were not used: they do not fill a batch of the model"


def test_inputs_are_found_by_name_in_dicts(tmp_path: Path) -> None:
    first, second = _numbers(1, 2), torch.arange(3, dtype=torch.int32)
    sample = {"labels": torch.zeros(1), "b": second, "a": first}
    _equal(calibration.read([sample], TWO, names=("a", "b")), [(first, second)])
    np.savez(tmp_path / "data.npz", **{name: value.numpy() for name, value in sample.items()})
    _equal(calibration.read(tmp_path / "data.npz", TWO, names=("a", "b")), [(first, second)])
    with pytest.raises(Invalid, match="has the arrays `labels`, `b`, `a`, the model takes 2 inputs"):
        calibration.read(tmp_path / "data.npz", TWO, names=("x", "y"))


def test_hints_for_pixels_and_channels() -> None:
    example = (torch.zeros(1, 3, 4, 5),)
    for shape, axes in (((1, 4, 5, 3), "0, 3, 1, 2"), ((8, 4, 5, 3), "0, 3, 1, 2"), ((4, 5, 3), "2, 0, 1")):
        with pytest.raises(Invalid) as caught:
            calibration.read([torch.zeros(shape)], example)
        assert f"`x.permute({axes})`" in caught.value.fix
    with pytest.raises(Invalid) as caught:
        calibration.read([np.zeros((1, 3, 4, 5), np.uint8)], example)
    assert caught.value.fix == "convert it with .astype('float32'), and scale pixels as in training (often `/ 255`)"


def test_constants_that_differ_between_samples_are_taken() -> None:
    assert len(calibration.read([torch.full((1, 2, 3), float(i)) for i in range(2)], ONE)) == 2


def test_single_numbers_and_integers_may_be_constant() -> None:
    calibration.read([torch.ones(1)], (torch.zeros(1),))
    calibration.read([torch.ones(4, dtype=torch.int32)], (torch.zeros(4, dtype=torch.int32),))


class _Danger:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("/tmp/tosaic-was-run"),))


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.npy", b""), ("x.npz", b"PK\x03\x04"), ("x.pt", b""), ("x.pt", b"garbage"), ("x.npy", b"\x93NUMPY\x01")],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Invalid, match="cannot be read as calibration data") as caught:
        calibration.read(tmp_path / name, ONE)
    assert str(tmp_path) in caught.value.where


def test_pickles_are_not_run(tmp_path: Path) -> None:
    mark = Path("/tmp/tosaic-was-run")
    mark.unlink(missing_ok=True)
    torch.save([_Danger()], tmp_path / "x.pt")
    np.save(tmp_path / "x.npy", np.array([_Danger()], dtype=object), allow_pickle=True)
    for name in ("x.pt", "x.npy"):
        with pytest.raises(Invalid, match="cannot be read"):
            calibration.read(tmp_path / name, ONE)
    assert not mark.exists()


class _Huge:
    """What torch's careful unpickler would allocate without a word."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (bytearray, (1 << 40,))


def _write_bomb(path: Path) -> None:
    """A file of a few bytes whose directory, header or pickle claims far more."""
    match path.suffix:
        case ".npy":
            path.write_bytes(write_npy(np.zeros((1, 2, 3))).replace(b"(1, 2, 3)", b"(9" + b"9" * 6 + b",)"))
        case ".npz":
            np.savez_compressed(path, x=np.zeros(3 << 20, np.float32))
        case _:
            torch.save([_Huge()], path)


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.pt"])
def test_small_files_that_claim_much(tmp_path: Path, name: str) -> None:
    _write_bomb(tmp_path / name)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(Invalid, match="cannot be read as calibration data"):
            calibration.read(path, ONE, 10 << 20)


def test_a_tensor_that_repeats_few_numbers(tmp_path: Path) -> None:
    torch.save(torch.zeros(1, 1, 2, 3).expand(1 << 40, 1, 2, 3), tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < 4096
    with pytest.raises(Invalid, match=r"a tensor of `data/0` of .* needs"):
        calibration.read(tmp_path / "x.pt", ONE)


def test_a_folder_is_bounded_as_a_whole(tmp_path: Path) -> None:
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", _numbers(1, 2, 3, seed=i).numpy())
    limit = 2 * (24 + calibration.SAMPLE_COST)
    with pytest.raises(Invalid, match=f"larger than {limit:,} bytes"):
        calibration.read(tmp_path, ONE, limit)


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"contains no \.npz"):
        calibration.read(tmp_path, ONE)
    with pytest.raises(Invalid, match="there is no calibration data at"):
        calibration.read(tmp_path / "nothing", ONE)
    (tmp_path / "x.csv").write_text("1,2")
    with pytest.raises(Invalid, match="unknown calibration file type"):
        calibration.read(tmp_path / "x.csv", ONE)


def test_stacked_images_with_channels_last_are_recognized() -> None:
    example = (torch.zeros(1, 3, 8, 9),)
    for shape, axes in (((8, 9, 3), "2, 0, 1"), ((4, 8, 9, 3), "0, 3, 1, 2"), ((4, 1, 8, 9, 3), "0, 1, 4, 2, 3")):
        with pytest.raises(Invalid) as caught:
            calibration.read([torch.rand(shape)], example)
        assert f"x.permute({axes})" in caught.value.fix
