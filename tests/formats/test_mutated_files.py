"""Damaged files of every kind: each gives a typed error or a result, quickly and within its budget of memory."""

from __future__ import annotations

import collections
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tosaic
from support import join_python_path
from support.command_child import choose
from support.corpus import list_files
from tosaic.formats import pte

#: Damage that is not in tables, headers, commands or directories.
PLAIN = {"cut_off", "flip_anywhere", "flip_weights"}
BY_HAND = "made by hand"
#: How a file made by hand ends: an error that Tosaic raises on purpose.
ENDS = {"Invalid", "TooMuch", "Malformed", "OutOfRange", "UnknownField", "Unsupported"}


class Net(torch.nn.Module):
    """A convolution with its table and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.conv(x))
        return y + y.mean((2, 3), keepdim=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, add: Any, conv: Any, mixed_pte: bytes) -> Path:
    """The files to damage: both forms of a .pte, one delegate or two or none, blobs, and all that goes with them."""
    torch.manual_seed(0)
    model, inputs = Net().eval(), (torch.randn(1, 3, 8, 8),)
    nets = {name: tosaic.compile(model, inputs, target=name) for name in ("ethos-u55-128", "ethos-u65-512")}
    folder = tmp_path_factory.mktemp("whole")
    nets["ethos-u55-128"].save(folder / "net.pte")
    files = {
        "add_inline.pte": add.pte["inline"],
        "add_segment.pte": add.pte["segment"],
        "conv_u85.pte": conv.pte["inline"],
        "mixed.pte": mixed_pte,
        "net.tosa": nets["ethos-u55-128"].delegates[0].tosa,
        "probe.vgf": pte.read(Path(tosaic.__file__).with_name("engines").joinpath("probe.pte").read_bytes())
        .find("forward")
        .delegates[0]
        .blob,
    }
    external = tosaic.compile(model, inputs, external=["weights", "commands"])
    files |= {f"{name}.ptd": data for name, data in external.data.items()}
    files |= {f"{name}.blob": net.delegates[0].blob for name, net in nets.items()}
    files |= {f"conv_u85_{i}.blob": data for i, data in enumerate(conv.tosa)}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    np.savez(folder / "inputs.npz", x=np.ones((1, 3, 8, 8), np.float32), y=np.arange(5))
    torch.save({"x": torch.ones(3), "y": [torch.arange(4)]}, folder / "inputs.pt")
    torch.export.save(torch.export.export(model, inputs), folder / "net.pt2")
    return folder


@pytest.fixture(scope="module")
def by_hand(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of files made by hand, beside one whole file of each kind."""
    beside = tmp_path_factory.mktemp("corpus")
    (beside / "by_hand").mkdir()
    for path in folder.iterdir():
        (beside / path.name).write_bytes(path.read_bytes())
    kinds = {
        "pt2": "net.pt2",
        "pt": "inputs.pt",
        "npz": "inputs.npz",
        "tosaic": "net.tosaic",
        "blob": "ethos-u55-128.blob",
    }
    good = {kind: (folder / name).read_bytes() for kind, name in kinds.items()}
    for number, (name, kind, data) in enumerate(list_files(good, beside / "was-run")):
        (beside / "by_hand" / f"{number:03} {name}.{kind}").write_bytes(data)
    return beside


def run(folder: Path, first: int, last: int, *flags: str) -> list[dict[str, Any]]:
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "support.mutated_child", str(folder), str(first), str(last), *flags],
        capture_output=True,
        text=True,
        env={**os.environ, **threads, "PYTHONPATH": join_python_path()},
        timeout=3600,
        check=False,
    )
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    ended = f"after {len(lines)} files the process ended with {done.returncode}: {done.stderr[-2000:]}"
    made = len(list(folder.glob("by_hand/*")))
    assert (done.returncode, len(lines)) == (0, made + last - first + ("-c" in flags)), ended
    return lines


def check(lines: list[dict[str, Any]]) -> None:
    assert [line for line in lines if line["end"].startswith("UNTYPED")] == []
    assert [line for line in lines if line["damage"] == BY_HAND and line["end"] == "result"] == []
    lines = [line for line in lines if line["damage"] != BY_HAND]
    structural = sum(line["damage"] not in PLAIN for line in lines)
    assert structural >= 0.8 * len(lines)
    assert sum(line["header"] for line in lines) >= len(lines) // 8
    assert {line["end"] for line in lines if line["header"]} - {"result"}, "no damage behind the header was noticed"


def show(lines: list[dict[str, Any]], coverage: dict[str, tuple[int, int]]) -> str:
    """Outcomes per kind of file, and the lines of the readers that ran."""
    kinds: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    slowest: dict[str, float] = collections.defaultdict(float)
    for line in lines:
        kind = line["file"].rpartition(".")[2] + (" by hand" if line["damage"] == BY_HAND else "")
        kinds[kind][line["end"]] += 1
        slowest[kind] = max(slowest[kind], line["seconds"])
    text = [
        f"{kind:15} {sum(ends.values()):5} files, {slowest[kind]:5.2f} s at most: {dict(ends)}"
        for kind, ends in kinds.items()
    ]
    damaged = [line for line in lines if line["damage"] != BY_HAND]
    structural = sum(line["damage"] not in PLAIN for line in damaged)
    peak = max(line["peak"] for line in lines)
    text.append(f"structural damage: {structural} of {len(damaged)}; peak memory of the process: {peak} MiB")
    text += [f"{name:24} {ran:4} of {all_} lines" for name, (ran, all_) in coverage.items()]
    return "\n".join(text)


def test_a_hundred_damaged_files(folder: Path) -> None:
    check(run(folder, 0, 112))


@pytest.mark.slow
def test_files_made_by_hand(by_hand: Path) -> None:
    lines = run(by_hand, 0, 0)
    print(f"\n{show(lines, {})}")
    assert len(lines) > 150
    assert [line for line in lines if line["end"] not in ENDS] == []
    assert not (by_hand / "was-run").exists()


@pytest.mark.slow
def test_five_thousand_damaged_files(by_hand: Path) -> None:
    lines = run(by_hand, 0, 5000, "-c")
    coverage = lines.pop()["coverage"]
    print(f"\n{show(lines, coverage)}")
    check(lines)
    assert all(2 * ran >= all_ for ran, all_ in coverage.values())


def check_command(what: str, command: str, code: int, log: str) -> None:
    """A command ends with a code that it documents, and an error that is not a bug of its own."""
    seen = f"{command} of {what}: {code}\n{log}"
    assert code in (0, 1, 2, 3), seen
    assert "Traceback" not in log and "this is a bug" not in log, seen


def test_damaged_files_through_the_commands_in_one_process(folder: Path) -> None:
    """`run`, `inspect`, `verify` and `compile` as a user calls them."""
    done = subprocess.run(
        [sys.executable, "-m", "support.command_child", str(folder), "0", "60"],
        env={**os.environ, "PYTHONPATH": join_python_path()},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(lines)) == (0, 60), f"after {len(lines)} files: {done.stderr[-2000:]}"
    for line in lines:
        check_command(line["what"], line["command"], line["code"], line["log"])
    assert {line["command"] for line in lines} == {"run", "inspect", "verify", "compile"}
    assert {line["code"] for line in lines} >= {0, 2}


@pytest.mark.slow
def test_fifty_damaged_files_through_the_commands(folder: Path, tmp_path: Path) -> None:
    """The same in a process each; few of the commands that import torch, which takes most of the time."""
    codes: collections.Counter[str] = collections.Counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    wanted = {"inspect": 38, "run": 4, "verify": 4, "compile": 4}
    for number in itertools.count(100):
        what, arguments = choose(folder, number, tmp_path)
        if not any(wanted.values()):
            break
        if not wanted[arguments[0]]:
            continue
        wanted[arguments[0]] -= 1
        done = subprocess.run(
            [sys.executable, "-c", "from tosaic.cli import main; main()", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
            check=False,
        )
        check_command(what, arguments[0], done.returncode, (done.stderr + done.stdout)[-3000:])
        codes[f"{arguments[0]} {done.returncode}"] += 1
    print(f"\n{dict(codes)}")
    assert codes.total() == 50
