"""The options of `tosaic compile` from end to end: each changes the program, the report or the files as it says."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
from executorch.devtools.etrecord import parse_etrecord

from support.cli import Command
from tosaic.formats.tosa_reader import read as read_tosa

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.head(x.mean((2, 3)))

torch.manual_seed(0)
model = Net().eval()
inputs = (torch.rand(1, 3, 32, 32),)
"""


class Compiler:
    """Compiles the model with some options; the folder has the files of the last program of a name."""

    def __init__(self, tosaic: Command, folder: Path) -> None:
        self.tosaic, self.folder = tosaic, folder
        (folder / "net.py").write_text(MODEL)

    def __call__(self, *options: object, name: str = "net.pte") -> dict[str, Any]:
        path = self.folder / name
        done = self.tosaic("compile", self.folder / "net.py", "-o", path, "--io", "int8", "--json", *options)
        assert done.code == 0, done.stderr
        return done.json | {"data": path.read_bytes()}


@pytest.fixture(scope="module")
def compiler(tosaic: Command, tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tosaic, tmp_path_factory.mktemp("options"))


@pytest.fixture(scope="module")
def plain(compiler: Compiler) -> dict[str, Any]:
    return compiler()


def test_optimize(compiler: Compiler, plain: dict[str, Any]) -> None:
    small = compiler("--optimize", "size")
    assert small["memory"]["scratch"] < plain["memory"]["scratch"]
    assert small["options"]["extra_flags"] == "--optimise=Size"
    fast = compiler("--optimize", "performance")
    assert fast["memory"] == plain["memory"]
    assert fast["delegates"][0]["estimate"] == plain["delegates"][0]["estimate"]


def test_vela_option_is_passed_on(compiler: Compiler) -> None:
    assert compiler("--vela-option=--optimise=Size")["data"] == compiler("--optimize", "size")["data"]


def test_arena_cache_size(compiler: Compiler) -> None:
    """The memory mode decides what the limit is for; here it is for the fast scratch in front of a DRAM."""
    options = ["-t", "ethos-u85-256", "--memory-mode", "Dedicated_Sram"]
    free = compiler(*options)["memory"]["fast_scratch"]
    assert free > 8 << 10
    assert compiler(*options, "--arena-cache-size", "8K")["memory"]["fast_scratch"] <= 8 << 10


def test_config_ini(compiler: Compiler, plain: dict[str, Any]) -> None:
    (bundled,) = (file for file in files("ethos-u-vela") or () if file.name == "vela.ini")
    text = bundled.read_text().replace("[System_Config.Ethos_U55_High_End_Embedded]", "[System_Config.My_Board]")
    (compiler.folder / "board.ini").write_text(text.replace("core_clock=500e6", "core_clock=250e6"))
    report = compiler("--config-ini", compiler.folder / "board.ini", "--system-config", "My_Board")
    (before,), (after,) = plain["delegates"], report["delegates"]
    assert report["options"]["system_config"] == "My_Board"
    assert (before["estimate"]["clock"], after["estimate"]["clock"]) == (500e6, 250e6)
    assert after["vela"]["inference_time"] > 1.5 * before["vela"]["inference_time"]


def test_float(compiler: Compiler, plain: dict[str, Any]) -> None:
    assert [reason for reason in plain["reasons"] if not reason["is_io"]] == []
    report = compiler("--float", "head")
    assert any(op.startswith(("aten::addmm", "aten::linear")) for op in report["cpu_ops"])
    left = {reason["module"] for reason in report["reasons"] if not reason["is_io"]}
    assert "head" in left and not {"first", "second"} & left


def test_per_tensor(compiler: Compiler) -> None:
    scales: dict[bool, list[bool]] = {}
    for per_tensor in (False, True):
        options = ["--per-tensor"] if per_tensor else []
        compiler("-t", "TOSA-1.0+INT", *options, name="net.tosa")
        graph = read_tosa((compiler.folder / "net.tosa").read_bytes())
        scales[per_tensor] = [op.attrs["per_channel"] for op in graph.ops if op.kind == "RESCALE"]
    assert any(scales[False]) and not any(scales[True])


def test_bundled_io_and_etrecord(compiler: Compiler, tosaic: Command) -> None:
    report = compiler("--bundled-io", "--etrecord", name="extra.pte")
    for suffix in (".bpte", ".etrecord"):
        path = compiler.folder / f"extra{suffix}"
        assert report["files"][str(path)] == path.stat().st_size
    done = tosaic("run", compiler.folder / "extra.bpte")
    assert (done.code, done.stdout.splitlines()[-1]) == (0, "PASS")
    record = parse_etrecord(str(compiler.folder / "extra.etrecord"))
    assert record.edge_dialect_program is not None


def test_config_file_is_the_same_as_options(compiler: Compiler) -> None:
    path = compiler.folder / "options.toml"
    path.write_text('optimize = "size"\nfloat = ["head"]\nper-tensor = true\nmemory_mode = "Sram_Only"\n')
    options = ["--optimize", "size", "--float", "head", "--per-tensor", "--memory-mode", "Sram_Only"]
    found, wanted = compiler("--config", path), compiler(*options)
    assert found["data"] == wanted["data"] and found["options"] == wanted["options"]
    assert found["options"]["memory_mode"] == "Sram_Only"
    assert compiler("--config", path, "--memory-mode", "Shared_Sram")["options"]["memory_mode"] == "Shared_Sram"


def test_verbose_tells_memory_macs_and_the_figure_of_vela(compiler: Compiler, plain: dict[str, Any]) -> None:
    path = compiler.folder / "verbose.pte"
    done = compiler.tosaic("compile", compiler.folder / "net.py", "-o", path, "--io", "int8", "-v")
    assert done.code == 0, done.stderr
    text = " ".join(done.stdout.split())
    memory, (delegate,) = plain["memory"], plain["delegates"]
    cycles = int(delegate["vela"]["cycles_total"])
    for words in (
        f"weights {memory['network']:,} bytes ({memory['network_in']})",
        f"scratch {memory['scratch']:,} bytes ({memory['scratch_in']})",
        "fast scratch not used (scratch is already in SRAM)",
        f"commands {memory['commands']:,} bytes",
        f"MACs {delegate['estimate']['macs']:,}, ",
        f"{cycles:,} (",
        "), Vela's own estimate",
        f"planned IO {sum(memory['planned']):,} bytes",
    ):
        assert words in text, words
    shown = " ".join(compiler.tosaic("inspect", path, "-v").stdout.split())
    assert f"{cycles:,}, Vela's own estimate" in shown


def test_what_a_model_prints_is_not_in_the_report(tosaic: Command, tmp_path: Path) -> None:
    path = tmp_path / "talk.py"
    path.write_text(
        "import torch\nprint('imported')\n"
        "class Talk(torch.nn.Module):\n"
        "    def forward(self, x):\n        print('called')\n        return torch.relu(x)\n"
        "model, inputs = Talk().eval(), (torch.linspace(-1, 1, 8).reshape(1, 8),)\n"
    )
    done = tosaic("compile", path, "-o", tmp_path / "x.pte", "--json")
    assert done.json["schema"].startswith("tosaic-report/")
    assert "imported" in done.stderr and "called" in done.stderr


def test_the_default_target_is_named(tosaic: Command, tmp_path: Path) -> None:
    line = ("compile", "add", "-o", tmp_path / "x.pte")
    words = "the target is ethos-u55-128: choose another with `-t NAME`"
    assert words in tosaic(*line).stderr
    assert words not in tosaic(*line, "-t", "ethos-u55-128").stderr
    (tmp_path / "options.toml").write_text('target = "ethos-u85-256"')
    assert "the target is" not in tosaic(*line, "--config", tmp_path / "options.toml").stderr
