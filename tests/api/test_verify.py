"""`verify`: equal where all is well; where something is wrong, the first operator, its command and its line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import tosaic
from support.cli import run_command
from tosaic.api.program import Program
from tosaic.api.verification import Difference, Verdict, verify
from tosaic.core.errors import Invalid
from tosaic.formats import blob, pte, sidecar
from tosaic.formats.tosa_writer import read, serialize

WRONG = Verdict(1, (Difference(0, "random 0", 0, 1, 2, 3.0),), (), ())
NPUS = ("ethos-u55-128", "ethos-u65-512", "ethos-u85-256")


class Net(torch.nn.Module):
    """Two convolutions, a table and a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, stride=2)
        self.last = torch.nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        z = torch.tanh(self.second(y))
        return self.last(z.mean((2, 3)))


SECOND_LINE = next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "self.second(y)" in line)


@pytest.fixture(scope="module")
def programs() -> Callable[[str], Program]:
    made: dict[str, Program] = {}

    def make(target: str) -> Program:
        if target not in made:
            torch.manual_seed(0)
            made[target] = tosaic.compile(Net().eval(), (torch.randn(1, 3, 16, 16),), target=target)
        return made[target]

    return make


def change_tosa(program: Program, kind: str, index: int) -> tuple[bytes, bytes]:
    """The .pte, and its sidecar with one multiplier of the n-th operator of a kind (a RESCALE) doubled."""
    beside = sidecar.read(program.sidecar())
    graph = read(beside.delegates[0].tosa)
    op = [op for op in graph.ops if op.kind == kind][index]
    scale = op.inputs[1].op
    assert scale is not None
    data = np.array(scale.attrs["data"])
    data.reshape(-1)[0] //= 2
    scale.attrs = {**scale.attrs, "data": data}
    delegate = dataclasses.replace(beside.delegates[0], tosa=serialize(graph))
    return program.pte, sidecar.write(dataclasses.replace(beside, delegates=(delegate,)))


def change_weights(program: Program, at: int) -> tuple[bytes, bytes]:
    """The program with another byte among its scales, and a sidecar that belongs to it."""
    plan = pte.read(program.pte).find("forward")
    data = plan.delegates[0].blob
    weights = blob.unpack(data).weight_data
    changed = bytearray(weights)
    changed[at] ^= 1
    file = program.pte.replace(data, data.replace(weights, bytes(changed)))
    assert file != program.pte
    beside = sidecar.read(program.sidecar())
    return file, sidecar.write(dataclasses.replace(beside, pte_sha256=hashlib.sha256(file).hexdigest()))


@pytest.mark.parametrize("target", NPUS)
def test_equal(programs: Callable[[str], Program], target: str) -> None:
    verdict = programs(target).verify()
    assert verdict.ok, str(verdict)
    assert verdict.compared == 3
    assert verdict.skipped == ()
    assert [m.ok for m in verdict.torch] == [True]
    assert verdict.sqnr[0] > 20
    assert str(verdict).endswith("\nPASS: bit-exact")
    json.dumps(verdict.to_json(), allow_nan=False)


@pytest.mark.parametrize("target", NPUS)
def test_wrong_scale_is_found_and_named(programs: Callable[[str], Program], target: str) -> None:
    kinds = [op.kind for op in read(programs(target).tosa()).ops]
    second = max(i for i, kind in enumerate(kinds[: kinds.index("TABLE")]) if kind == "CONV2D")
    file, beside = change_tosa(programs(target), "RESCALE", kinds[:second].count("RESCALE"))
    verdict = verify(file, sidecar.read(beside), rounds=1)
    assert not verdict.ok
    found = verdict.differences[0]
    assert (found.delegate, found.output) == (0, 0)
    assert 0 < found.count <= found.size
    conv = f"t{second}:CONV2D"
    assert found.first["op"] == conv
    assert found.first["through"].endswith(":TABLE")
    assert found.first["node"].startswith("conv2d")
    assert found.first["where"].endswith(f"test_verify.py:{SECOND_LINE}")
    assert int(found.first["command"], 16) % 4 == 0
    assert f"first at op {conv}, through" in str(verdict)
    assert str(verdict).endswith("\nFAIL")


def test_wrong_weights_are_found(programs: Callable[[str], Program]) -> None:
    # The records of the first convolution stand at the beginning: 10 bytes per channel, the bias first.
    file, beside = change_weights(programs("ethos-u55-128"), 1)
    verdict = verify(file, sidecar.read(beside), rounds=1)
    assert not verdict.ok
    assert all(found.first["op"] and found.first["command"] and found.first["where"] for found in verdict.differences)


def test_another_sidecar_is_refused(programs: Callable[[str], Program]) -> None:
    first, second = programs(NPUS[0]), programs(NPUS[2])
    with pytest.raises(Invalid, match="does not belong to this"):
        verify(first.pte, sidecar.read(second.sidecar()))


def test_the_limit_holds_for_all_that_verify_reads(programs: Callable[[str], Program]) -> None:
    """The planned memory fits such a limit; tables, graphs and the simulated NPU do not."""
    program = programs(NPUS[0])
    planned = sum(pte.read(program.pte).find().planned_sizes)
    with pytest.raises(Invalid, match="bytes of memory"):
        verify(program.pte, sidecar.read(program.sidecar()), rounds=1, max_memory=planned)


def test_without_a_sidecar(programs: Callable[[str], Program]) -> None:
    with pytest.raises(Invalid, match=r"\.tosaic file is missing"):
        verify(programs(NPUS[0]).pte, None)


def test_nothing_on_the_npu() -> None:
    program = tosaic.compile(torch.nn.ReLU().eval(), (torch.randn(2, 3),), target=NPUS[0], delegate=False)
    verdict = program.verify()
    assert verdict.ok
    assert verdict.compared == 0
    assert verdict.skipped == ("the NPU: no part of the program runs on it",)


class Select(torch.nn.Module):
    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.index_select(torch.sigmoid(x), 0, index)


class Products(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumprod(1, dtype=torch.int32)


def test_random_integers_are_in_the_range_of_the_samples() -> None:
    """What overflows 32 bits, and what is read at an index that a tensor does not have, is undefined in TOSA."""
    x = torch.arange(-6, 6, dtype=torch.int32).reshape(3, 4)
    verdict = tosaic.compile(Products().eval(), (x,), target="ethos-u55-128").verify()
    assert verdict.ok, str(verdict)
    assert verdict.compared == 3
    inputs = (torch.randn(7, 4), torch.tensor([1, 6, 3], dtype=torch.int32))
    verdict = tosaic.compile(Select().eval(), inputs, target="ethos-u85-256").verify()
    assert verdict.ok, str(verdict)
    assert (verdict.compared, verdict.skipped) == (3, ())


def test_undefined_inputs_are_told() -> None:
    """Random numbers are no legal indices: TOSA does not define what comes out, and the NPU stops."""
    inputs = (torch.randn(7, 4), torch.tensor([1, 6, 3], dtype=torch.int32))
    program = tosaic.compile(Select().eval(), inputs, target="ethos-u85-256")
    assert len(program.delegates) == 1
    verdict = verify(program.pte, dataclasses.replace(sidecar.read(program.sidecar()), samples=()))
    assert verdict.ok, str(verdict)
    assert verdict.compared == 0
    assert verdict.skipped[0].startswith("delegate 0 on random 0 inputs: ")


class TestCommand:
    """Exit codes and words of `tosaic verify` and `tosaic compile --verify`."""

    def test_equal(self, programs: Callable[[str], Program], tmp_path: Path) -> None:
        path = programs(NPUS[0]).save(tmp_path / "net.pte")
        done = run_command("verify", path, "--rounds", 1, "--json")
        assert done.code == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["schema"], found["ok"], found["differences"]) == ("tosaic-verify/1", True, [])

    def test_different(self, programs: Callable[[str], Program], tmp_path: Path) -> None:
        file, beside = change_tosa(programs(NPUS[0]), "RESCALE", 0)
        (tmp_path / "net.pte").write_bytes(file)
        (tmp_path / "net.tosaic").write_bytes(beside)
        done = run_command("verify", tmp_path / "net.pte")
        assert done.code == 1
        assert "DIFFERENT: delegate 0, output 0" in done.stdout
        assert re.search(r"where \S*test_verify\.py:\d+", done.stdout)

    def test_no_sidecar(self, programs: Callable[[str], Program], tmp_path: Path) -> None:
        path = programs(NPUS[0]).save(tmp_path / "net.pte", with_sidecar=False)
        done = run_command("verify", path)
        assert done.code == 2
        assert "the .tosaic file is missing" in done.stderr
        assert "--no-sidecar" in done.stderr

    def test_sidecar_of_another(self, programs: Callable[[str], Program], tmp_path: Path) -> None:
        path = programs(NPUS[0]).save(tmp_path / "net.pte")
        (tmp_path / "net.tosaic").write_bytes(programs(NPUS[1]).sidecar())
        done = run_command("verify", path)
        assert done.code == 2
        assert "does not belong to this .pte" in done.stderr

    def test_compile(self, tmp_path: Path) -> None:
        done = run_command("compile", "add", "-o", tmp_path / "add.pte", "--verify")
        assert done.code == 0, done.stderr
        assert done.stdout.rstrip().endswith("\nPASS: bit-exact")
        assert "delegate runs compared with the TOSA reference model" in done.stdout

    def test_compile_that_went_wrong(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Program, "verify", lambda self: WRONG)
        done = run_command("compile", "add", "-o", tmp_path / "add.pte", "--verify", "--json")
        assert done.code == 1
        assert json.loads(done.stdout)["verify"]["ok"] is False
        plain = run_command("compile", "add", "-o", tmp_path / "add.pte", "--verify")
        assert plain.code == 1 and plain.stdout.rstrip().endswith("\nFAIL")
