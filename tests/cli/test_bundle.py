"""`run`, `verify` and `inspect` with a .bpte: the program in it, and its test cases."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import tosaic
from support.cli import run_command
from tosaic.driver.bundle import make_bundle


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


@pytest.fixture(scope="module")
def program() -> tosaic.Program:
    torch.manual_seed(0)
    inputs = torch.randn(1, 3, 8, 8)
    return tosaic.compile(Net().eval(), (inputs,), "ethos-u55-128", calibration=[(inputs,), (inputs * 0.5,)])


@pytest.fixture
def file(program: tosaic.Program, tmp_path: Path) -> Path:
    (tmp_path / "net.bpte").write_bytes(program.bundle())
    return tmp_path / "net.bpte"


@pytest.fixture
def wrong(program: tosaic.Program, tmp_path: Path) -> Path:
    """Expects something else in one place."""
    x = torch.from_numpy(np.asarray(program.samples[0].inputs[0]))
    y = torch.from_numpy(program.run(x)[0]).clone()
    y[0, 2] = -3.0
    (tmp_path / "wrong.bpte").write_bytes(make_bundle(program.pte, [([x], [y])]))
    return tmp_path / "wrong.bpte"


call = functools.partial(run_command, env={"COLUMNS": "100"})


def test_run_checks_every_case(file: Path, program: tosaic.Program) -> None:
    done = call("run", str(file))
    assert done.code == 0, done.stderr
    assert f"{len(program.samples)} test cases of the bundle" in done.stdout
    assert "output 0 against the expected values: 100 % within 1 step, at most 0 off" in done.stdout
    assert done.stdout.splitlines()[-1] == "PASS"
    plain = json.loads(call("run", str(file), "--json").stdout)
    assert plain["bundle"]["ok"] and plain["bundle"]["cases"] == len(program.samples)


def test_run_shows_the_first_difference(wrong: Path) -> None:
    done = call("run", str(wrong))
    assert done.code == 1
    assert "DIFFERENT: output 0 against the expected values" in done.stdout
    assert "first at case 0, output 0, element [0, 2, 0, 0]: " in done.stdout and "instead of -3.0" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAIL"


def test_other_inputs_are_not_checked(wrong: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    done = call("run", str(wrong), "--input", str(tmp_path / "x.npy"))
    assert done.code == 0, done.stderr
    assert "test cases" not in done.stdout


def test_verify_with_and_without_a_sidecar(file: Path, program: tosaic.Program, wrong: Path) -> None:
    done = call("verify", str(file))
    assert done.code == 0, done.stderr
    assert "not checked: the delegates against TOSA" in done.stdout
    assert done.stdout.splitlines()[-1] == "PASS"
    file.with_suffix(".tosaic").write_bytes(program.sidecar())
    done = call("verify", str(file))
    assert done.code == 0, done.stderr
    assert "test cases of the bundle" in done.stdout
    assert done.stdout.splitlines()[-1] == "PASS: bit-exact"
    assert call("verify", str(wrong)).code == 1


def test_inspect_shows_program_and_cases(file: Path, program: tosaic.Program) -> None:
    done = call("inspect", str(file))
    assert done.code == 0, done.stderr
    assert "ExecuTorch program with test cases" in done.stdout
    assert f"{len(program.samples)} cases" in done.stdout and "EthosUBackend" in done.stdout
    plain = json.loads(call("inspect", str(file), "--json").stdout)
    assert plain["bpte"] == {"pte_bytes": len(program.pte), "cases": {"forward": len(program.samples)}}
    assert "NPU_OP_STOP" in call("inspect", str(file), "--commands").stdout


def test_damaged_bundle(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:60])
    for command in ("run", "verify", "inspect"):
        done = call(command, str(file))
        assert done.code == 2
        assert ".bpte file is damaged" in done.stderr
