"""`tosaic inspect` on a .vgf file and on a .pte whose delegates are VGF."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch

import tosaic
from support.cli import run_command
from tosaic.api.program import Program

inspect = functools.partial(run_command, "inspect")


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    return tosaic.compile(model.eval(), (torch.randn(1, 3, 8, 8),), "vgf", quantized=False)


@pytest.fixture
def vgf(program: Program, tmp_path: Path) -> Path:
    path = tmp_path / "net.bin"
    path.write_bytes(program.delegates[0].blob)
    return path


def test_vgf(vgf: Path) -> None:
    done = inspect(vgf)
    assert done.code == 0, done.stderr
    text = " ".join(done.stdout.split())
    for words in (
        "VGF file",
        "version 0.4.0",
        "module 0 graph, entry point `graph_partition_0`",
        "bytes of SPIR-V",
        "segment 0 runs module 0 with 1 input, 1 output,",
        "float32 [1, 3, 8, 8]",
        "float32 [1, 8, 6, 6]",
    ):
        assert words in text, words


def test_vgf_as_json(vgf: Path) -> None:
    found = json.loads(inspect(vgf, "--json").stdout)
    assert (found["kind"], found["bytes"]) == ("vgf", vgf.stat().st_size)
    inside = found["vgf"]
    (module,) = inside["modules"]
    assert module["entry_point"] == "graph_partition_0" and module["spirv_bytes"] > 0
    shapes = [inside["resources"][constant["resource"]]["shape"] for constant in inside["constants"]]
    assert [8, 3, 3, 3] in shapes
    assert all(inside["resources"][constant["resource"]]["category"] == "constant" for constant in inside["constants"])
    assert [inside["resources"][i]["dtype"] for i in inside["inputs"] + inside["outputs"]] == ["float32"] * 2


def test_pte(program: Program, tmp_path: Path) -> None:
    path = program.save(tmp_path / "net.pte")
    done = inspect(path)
    assert done.code == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "backend `VgfBackend`" in text and "entry point `graph_partition_0`" in text and "`CONV2D` x1" in text
    (method,) = json.loads(inspect(path, "--json").stdout)["pte"]["methods"]
    assert method["delegates"][0]["vgf"]["bytes"] == len(program.delegates[0].blob)
    assert inspect(path, "--text").stdout.startswith("graph(")


def test_a_damaged_file_is_refused(vgf: Path, program: Program, tmp_path: Path) -> None:
    data = vgf.read_bytes()
    damaged = {
        "cut": data[: len(data) // 2],
        "header": data[:40],
        "version": data[:9] + b"\x09" + data[10:],
        "sections": data[:16] + b"\xff" * 64 + data[80:],
        "pte": program.pte.replace(data[:80], data[:16] + b"\xff" * 64),
    }
    for name, content in damaged.items():
        path = tmp_path / name
        path.write_bytes(content)
        for options in ([], ["--json"]):
            done = inspect(path, *options)
            assert (done.code, done.stdout) == (2, ""), name
            assert done.stderr.startswith("error: ") and str(path) in done.stderr and ".vgf file" in done.stderr
