"""`tosaic fit`, `tosaic advise` and `tosaic compile --max-sram`: what they print is measured, and can be pasted."""

import hashlib
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cli import Command, Outcome, run_command
from tosaic.api import variants

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.wide = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.last = torch.nn.Conv2d(32, 4, 3, stride=2)

    def forward(self, x):
        return self.last(torch.relu(self.wide(torch.relu(self.first(x)))))

torch.manual_seed(0)
model = Net().eval()
inputs = (torch.randn(1, 3, 32, 32),)
"""
LIMIT = 48_000


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "my net.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def fitted(net: Path) -> tuple[Outcome, int]:
    """The result of a search, and how often the model was quantized."""
    count = 0
    prepare = variants.prepare

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return prepare(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variants, "prepare", counted)
        return run_command("fit", net, "-t", "ethos-u55-128", "--sram", LIMIT, "--json"), count


def test_the_search_finds_what_the_defaults_do_not(fitted: tuple[Outcome, int]) -> None:
    done, quantized = fitted
    assert done.code == 0, done.stderr
    found = done.json
    assert found["schema"] == "tosaic-fit/1" and found["fits"]
    assert found["base"]["sram"] > LIMIT
    assert 1 <= found["compiles"] <= 20 and quantized == 1
    assert all(row["sram"] <= LIMIT and row["verified"] is True for row in found["front"])
    assert [row["cycles"] for row in found["front"]] == sorted(row["cycles"] for row in found["front"])


def paste(command: str, folder: Path) -> str:
    """Run a command line that was printed; return the hash of the program that it writes."""
    words = shlex.split(command)
    assert words[:2] == ["tosaic", "compile"]
    done = run_command(*words[1:], "-o", folder / "pasted.pte", "-q")
    assert done.code == 0, done.stderr
    return hashlib.sha256((folder / "pasted.pte").read_bytes()).hexdigest()


def test_the_commands_make_the_programs(
    tosaic: Command, net: Path, fitted: tuple[Outcome, int], tmp_path: Path
) -> None:
    best = tmp_path / "best.pte"
    done = tosaic("fit", net, "--sram", LIMIT, "--no-verify", "-o", best, "--max-compiles", 6)
    assert done.code == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("tosaic compile")]
    front = fitted[0].json["front"]
    assert [paste(line, tmp_path) for line in lines] == [row["sha256"] for row in front]
    assert hashlib.sha256(best.read_bytes()).hexdigest() == front[0]["sha256"]
    assert tosaic("verify", best).code == 0


def test_the_commands_have_the_calibration_data(tosaic: Command, net: Path, tmp_path: Path) -> None:
    data, best = tmp_path / "samples.npy", tmp_path / "best.pte"
    np.save(data, np.random.default_rng(0).random((2, 3, 32, 32), dtype=np.float32))
    options = ("--sram", "1M", "--precision", "int8", "--io", "int8", "--max-compiles", 1, "--no-verify")
    done = tosaic("fit", net, *options, "--calibration", data, "-o", best)
    assert done.code == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("tosaic compile")]
    assert paste(line, tmp_path) == hashlib.sha256(best.read_bytes()).hexdigest()


def test_advice_repeats_what_every_command_needs(tosaic: Command, net: Path, tmp_path: Path) -> None:
    data = tmp_path / "samples.npy"
    np.save(data, np.random.default_rng(0).random((2, 3, 32, 32), dtype=np.float32))
    done = tosaic("advise", net, "-q", "--calibration", data)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("tosaic compile")]
    assert shlex.split(line)[-2:] == ["--calibration", str(data)]


def test_nothing_fits(tosaic: Command, net: Path) -> None:
    done = tosaic("fit", net, "--sram", "4K", "--flash", 3000, "--max-compiles", 3, "--io", "int8")
    assert done.code == 1
    words = " ".join(done.stdout.split())
    assert "nothing fits" in words and "in the way: SRAM is" in words and "in the way: flash is" in words
    assert "`wide`" in words and "3 compiles" in words


def test_a_board(tosaic: Command, net: Path, tmp_path: Path) -> None:
    board = tmp_path / "mine.toml"
    board.write_text('title = "Mine"\naccelerators = ["ethos-u55-64"]\nsram = 200_000\nclock = 100_000_000\n')
    done = tosaic("fit", net, "--board", board, "--no-verify", "--max-compiles", 1, "--json")
    assert done.code == 0, done.stderr
    row = done.json["front"][0]
    assert row["options"]["target"] == "ethos-u55-64" and row["seconds"] == pytest.approx(row["cycles"] / 1e8)
    assert done.json["limits"] == {"sram": 200_000, "flash": None, "dram": 0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--sram 256K"),
        (["--board", "nope"], "unknown board `nope`"),
        (["--sram", "1M", "-t", "vgf"], "has no memories"),
        (["--sram", "1M", "-t", "u55"], "unknown target"),
    ],
)
def test_bad_options(tosaic: Command, net: Path, options: list[str], words: str) -> None:
    done = tosaic("fit", net, *options)
    assert done.code == 2 and words in done.stderr


def test_compile_within(tosaic: Command, net: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.pte"
    done = tosaic("compile", net, "--io", "int8", "--max-sram", LIMIT, "-o", path, "--json", "--verify")
    assert done.code == 0, done.stderr
    assert sum(done.json["memory_uses"]["SRAM"].values()) <= LIMIT
    assert done.json["verify"]["ok"] and done.json["inputs"][0]["dtype"] == "int8"
    assert done.json["inputs"][0]["layout"] == "nchw"


def test_compile_within_too_little(tosaic: Command, net: Path, tmp_path: Path) -> None:
    path = tmp_path / "none.pte"
    done = tosaic("compile", net, "--max-sram", "1K", "-o", path, "-q")
    assert done.code == 1 and "in the way: SRAM" in done.stdout
    assert not path.exists()
    wrong = tosaic("compile", net, "--max-sram", "1M", "--optimize", "size")
    assert wrong.code == 2 and "cannot be combined with --optimize" in wrong.stderr


def test_advice_is_measured(tosaic: Command, net: Path, tmp_path: Path) -> None:
    done = tosaic("advise", net, "--json")
    assert done.code == 0, done.stderr
    found = done.json
    changes = {one["change"]: one for one in found["advice"]}
    assert "--io int8" in changes and found["schema"] == "tosaic-advice/1"
    for one in found["advice"]:
        first = one["gains"][0]
        assert first["after"] < first["before"] * 0.98
        figures = {"cycles": "cycles", "SRAM": "sram", "flash": "flash"}
        assert first["before"] == found["base"][figures[first["name"]]]
        assert first["after"] == one["choice"][figures[first["name"]]]
    shown = tosaic("advise", net, "-q")
    command = next(line for line in shown.stdout.splitlines() if line.startswith("tosaic compile"))
    assert paste(command, tmp_path) == (found["together"] or found["advice"][0])["choice"]["sha256"]


def test_advice_names_fixes_of_the_model(tosaic: Command, tiny: Path, cpu_line: int) -> None:
    shown = " ".join(tosaic("advise", tiny, "-q").stdout.split())
    assert "not measured:" in shown and f"tiny.py:{cpu_line}" in shown
