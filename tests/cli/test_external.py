"""Weights or commands in .ptd files, from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from support.boards import needs_board
from support.cli import Command, run_command
from tosaic.formats.npy import Array


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with all of its delegates' parts in two files."""
    folder = tmp_path_factory.mktemp("external")
    done = run_command("compile", tiny, "-o", folder / "tiny.pte", "--external", "weights", "--external", "commands")
    assert done.code == 0
    assert "tiny.weights.ptd" in done.stdout and "tiny.commands.ptd" in done.stdout
    return folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """The same without the .ptd files, which are in a folder of their own."""
    shutil.copytree(folder, tmp_path / "net")
    (tmp_path / "data").mkdir()
    for path in (tmp_path / "net").glob("*.ptd"):
        path.rename(tmp_path / "data" / path.name)
    return tmp_path / "net" / "tiny.pte"


def test_files_beside_are_found(tosaic: Command, folder: Path, floats: tuple[Path, object], tmp_path: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {"tiny.pte", "tiny.tosaic", "tiny.weights.ptd", "tiny.commands.ptd"}
    results: list[dict[str, Array]] = []
    for file in (folder / "tiny.pte", floats[0]):
        assert tosaic("run", file, "-o", tmp_path / "out.npz").code == 0
        with np.load(tmp_path / "out.npz") as saved:
            results.append({name: saved[name] for name in saved.files})
    assert all(np.array_equal(results[0][name], results[1][name]) for name in results[1])
    done = tosaic("verify", folder / "tiny.pte")
    assert done.code == 0 and "PASS: bit-exact" in done.stdout


@needs_board
def test_firmware_has_the_files(tosaic: Command, tmp_path: Path) -> None:
    """Also when it runs: the command needs the NPU's commands to know the NPU."""
    net, elf, outputs = tmp_path / "net.pte", tmp_path / "x.elf", tmp_path / "out.npz"
    assert tosaic("compile", "ds_cnn", "-o", net, "--external", "weights", "--external", "commands").code == 0
    build = ("build", net, "--board", "corstone-300", "-o", elf)
    assert tosaic(*build, "--with-samples").code == 0
    done = tosaic("run", elf)
    assert done.code == 0 and "Test_result: PASS" in done.stdout
    results: list[bytes] = []
    for engine in ("board", "npu"):
        assert tosaic("run", net, "--engine", engine, "-o", outputs).code == 0
        with np.load(outputs) as saved:
            results.append(saved["output_0"].tobytes())
    assert results[0] == results[1]
    moved = [tmp_path / f"net.{name}.ptd" for name in ("weights", "commands")]
    for index, path in enumerate(moved):
        moved[index] = path.rename(tmp_path / f"{index}.bin")
    done = tosaic(*build)
    assert done.code == 2 and "the commands of an Ethos-U delegate are missing" in done.stderr
    assert tosaic(*build, "--data", moved[0], "--data", moved[1]).code == 0


def test_names_that_executorch_gives_the_files(tosaic: Command, copy: Path) -> None:
    for name in ("weights", "commands"):
        shutil.copy(copy.parent.parent / "data" / f"tiny.{name}.ptd", copy.with_name(f"{name}.ptd"))
    assert tosaic("run", copy).code == 0


@pytest.mark.parametrize("command", ["run", "verify", "inspect"])
def test_files_that_are_given(tosaic: Command, copy: Path, command: str) -> None:
    data = [copy.parent.parent / "data" / f"tiny.{name}.ptd" for name in ("weights", "commands")]
    assert tosaic(command, copy, "--data", data[0], "--data", data[1]).code == 0
    done = tosaic(command, copy)
    assert done.code == 2 and done.stdout == ""
    assert "the commands of an Ethos-U delegate are missing" in done.stderr and "`--data`" in done.stderr
    done = tosaic(command, copy, "--data", data[1])
    assert done.code == 2 and "the weights of an Ethos-U delegate are missing" in done.stderr
    done = tosaic(command, copy, "--data", copy)
    assert done.code == 2 and "not a .ptd file" in done.stderr
    done = tosaic(command, copy, "--data", copy.with_name("none.ptd"))
    assert done.code == 2 and "there is no file" in done.stderr and "none.ptd`" in done.stderr


def test_inspect(tosaic: Command, folder: Path, copy: Path) -> None:
    done = tosaic("inspect", folder / "tiny.pte", "--json")
    delegate = done.json["pte"]["methods"][0]["delegates"][0]
    assert delegate["blob"]["blocks"]["weight_data"] > 0 and delegate["blob"]["estimate"] is not None
    assert delegate["bytes"] < delegate["blob"]["bytes"]
    assert "external_block_placements" in delegate["settings"]
    listed = tosaic("inspect", folder / "tiny.pte", "--commands")
    assert listed.code == 0 and "NPU_SET_IFM" in listed.stdout
    done = tosaic("inspect", folder / "tiny.weights.ptd", "--json")
    assert done.json["kind"] == "ptd" and len(done.json["ptd"]["data"]) >= 1
    done = tosaic("inspect", folder / "tiny.weights.ptd")
    assert done.code == 0 and "data of an ExecuTorch program" in done.stdout


def test_targets_are_checked_before_the_work(tosaic: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.weights.ptd").mkdir()
    done = tosaic("compile", tiny, "-o", tmp_path / "tiny.pte", "--external", "weights")
    assert done.code == 2 and "it is a folder" in done.stderr and "export" not in done.stderr
    done = tosaic("compile", tiny, "-o", tmp_path / "tiny.ptd")
    assert done.code == 2 and "is for a data file" in done.stderr
    done = tosaic("compile", tiny, "-t", "TOSA-1.0+INT", "-o", tmp_path / "x.tosa", "--external", "weights")
    assert done.code == 2 and "cannot be outside the .pte" in done.stderr
