"""`verify` for VGF: equal where all is well, different where the TOSA is another, and plain words without Vulkan."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tosaic
from support.cli import run_command
from tosaic.api.program import Program
from tosaic.api.verification import is_exact, measure, verify
from tosaic.backends.vgf import VgfCompileSpec
from tosaic.engines import vulkan
from tosaic.formats import sidecar
from tosaic.formats.tosa_writer import read, serialize
from tosaic.ir.graph import DType

BF16 = "TOSA-1.0+FP+INT+int16+int4+bf16"


class Net(torch.nn.Module):
    """Two delegates with a CPU operator between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Conv2d(3, 40, 3, padding=1)
        self.last = torch.nn.Linear(40, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(self.first(x)).mean((2, 3))
        return self.last(torch.native_dropout(y, 0.0, True)[0])


X = (torch.linspace(-2, 2, 3 * 8 * 8).reshape(1, 3, 8, 8),)


def compile_net(**options: Any) -> Program:
    return tosaic.compile(Net().eval(), X, **{"target": "vgf", **options})


def change(program: Program, kind: str, bit: int) -> sidecar.Sidecar:
    """The sidecar with one bit of the first constant of an operator flipped."""
    beside = sidecar.read(program.sidecar())
    graph = read(beside.delegates[0].tosa)
    op = next(op for op in graph.ops if op.kind == kind)
    source = op.inputs[1].op
    assert source is not None
    data = np.array(source.attrs["data"])
    data.reshape(-1).view(f"u{data.itemsize}")[0] ^= 1 << bit
    source.attrs = {**source.attrs, "data": data}
    first = dataclasses.replace(beside.delegates[0], tosa=serialize(graph))
    return dataclasses.replace(beside, delegates=(first, *beside.delegates[1:]))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("options", "exact"),
    [
        ({}, True),
        ({"target": VgfCompileSpec("TOSA-1.0+INT")}, True),
        ({"io": "int8", "layout": "nhwc"}, True),
        ({"quantized": False}, False),
    ],
    ids=["int8", "int8 without float", "int8 at the borders", "float"],
)
def test_equal(options: dict[str, Any], exact: bool) -> None:
    program = compile_net(**options)
    assert len(program.delegates) == 2
    verdict = program.verify(rounds=1)
    assert verdict.ok, str(verdict)
    assert (verdict.engine, verdict.exact, verdict.compared, verdict.skipped) == ("vulkan", exact, 4, ())
    assert verdict.sqnr[0] > (25 if exact else 100)
    assert f"4 delegate runs on Vulkan compared with the TOSA reference model, {'bit' if exact else 'int'}" in str(
        verdict
    )
    json.dumps(verdict.to_json(), allow_nan=False)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("quantized", "bit"), [(True, 30), (False, 22)])
def test_different(quantized: bool, bit: int) -> None:
    program = compile_net(quantized=quantized)
    verdict = verify(program.pte, change(program, "RESCALE" if quantized else "CONV2D", bit), rounds=1)
    assert not verdict.ok
    found = verdict.differences[0]
    assert (found.delegate, found.output, found.first) == (0, 0, {})
    assert found.largest > 0


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("dtype", "spec"), [(torch.float16, None), (torch.bfloat16, BF16)])
def test_16_bit_floats(dtype: torch.dtype, spec: str | None) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Tanh()).to(dtype).eval()
    x = X[0].to(dtype)
    program = tosaic.compile(model, (x,), VgfCompileSpec(spec), quantized=False)
    verdict = program.verify(rounds=1)
    assert verdict.ok, str(verdict)
    assert not verdict.exact
    (got,) = program.run(x)
    assert got.dtype == (np.float16 if dtype is torch.float16 else ml_dtypes.bfloat16)
    with torch.no_grad():
        want = model(x).to(torch.float64).numpy()
    assert float(np.abs(got.astype(np.float64) - want).max()) <= 4 * 2.0 ** (-11 if dtype is torch.float16 else -8)


def test_what_counts_as_exact() -> None:
    int8, real = compile_net(), compile_net(quantized=False)
    assert all(is_exact(read(int8.tosa(i))) for i in range(2))
    assert not any(is_exact(read(real.tosa(i))) for i in range(2))


def test_distances() -> None:
    one = np.array([1.0, np.nan, np.inf, 200.0], np.float32)
    other = np.array([1.0, np.nan, np.inf, 200.001], np.float32)
    gap, allowed = measure(one, other, DType.F32, exact=False)
    assert gap[:3].tolist() == [0, 0, 0] and 0 < gap[3] <= allowed < 0.0021
    assert measure(one, other, DType.F32, exact=True)[1] == 0
    gap, _ = measure(np.float32([np.nan, 1.0, np.inf]), np.float32([1.0, np.nan, -np.inf]), DType.F32, exact=False)
    assert np.isinf(gap).all()
    # The largest number is below 4 and has steps of 2 / 1024.
    assert measure(np.float16([3.9]), np.float16([3.9]), DType.F16, exact=False)[1] == 16 * 2 / 1024
    bits = np.array([3.0], ml_dtypes.bfloat16).view(np.uint16)
    assert measure(bits, bits, DType.BF16, exact=False)[1] == 16 * 2 / 128
    assert measure(np.int8([-128]), np.int8([127]), DType.I8, exact=False) == (np.array([255.0]), 0.0)


class TestCommand:
    """Exit codes and words of `tosaic verify` and `tosaic compile --verify`."""

    @pytest.mark.usefixtures("device")
    def test_verify(self, tmp_path: Path) -> None:
        path = compile_net().save(tmp_path / "net.pte")
        done = run_command("verify", path, "--rounds", 1, "--json")
        assert done.code == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["ok"], found["engine"], found["exact"]) == (True, "vulkan", True)

    @pytest.mark.usefixtures("device")
    def test_compile(self, tmp_path: Path) -> None:
        done = run_command("compile", "add", "-t", "vgf", "-o", tmp_path / "add.pte", "--verify")
        assert done.code == 0, done.stderr
        assert done.stdout.rstrip().endswith("\nPASS: bit-exact")

    def test_without_vulkan(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = compile_net().save(tmp_path / "net.pte")
        monkeypatch.setattr(vulkan, "probe", lambda: vulkan.Probe(False, "there is no driver", "install one"))
        for arguments in (("verify", path), ("compile", "add", "-t", "vgf", "-o", tmp_path / "add.pte", "--verify")):
            done = run_command(*arguments)
            assert (done.code, done.stdout) == (3, "")
            assert "Vulkan is not usable here" in done.stderr and "fix: install one" in done.stderr
        assert not (tmp_path / "add.pte").exists()
