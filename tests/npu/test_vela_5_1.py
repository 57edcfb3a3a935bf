"""A miscompile of Vela 5.1.0 that only execution finds: verify finds it, and names the operator and the line.

`tanh(linear(x)) * sigmoid(linear(x))` with two rows, written as [2, 1, 1, 16]: the first convolution is sent with two
rows of output but one row of input and one of padding, so that row 2 is computed from nothing. Vela 5.2 is right, and
so is 5.1.0 on the form that Tosaic gives it, with the rows in a line.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tosaic
from tosaic.api.program import Program
from tosaic.core.paths import find_cache_folder
from tosaic.core.targets import Target
from tosaic.driver import delegate
from tosaic.ir.graph import DType, Graph, Type
from tosaic.tools import vela
from tosaic.tools.vela_debug import canonicalize

pytestmark = pytest.mark.slow

VERSION = "5.1.0"
TARGET = "ethos-u55-128"


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = torch.nn.Linear(16, 32), torch.nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.value(x)) * torch.sigmoid(self.gate(x))


LINE = next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "self.gate(x)" in line)


@pytest.fixture(scope="module")
def old_vela() -> str:
    """Vela 5.1.0 in an environment of its own, which stays in the cache folder."""
    folder = find_cache_folder() / f"vela-{VERSION}"
    program = folder / "bin" / "vela"
    if not _works(program):
        steps = (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"ethos-u-vela=={VERSION}"],
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode:
                pytest.skip(f"Vela {VERSION} cannot be installed here: {done.stderr.strip()[-300:]}")
    return str(program)


def _works(program: Path) -> bool:
    if not program.is_file():
        return False
    done = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() == VERSION


def run_old(program: str, tosa: bytes, options: vela.VelaOptions, folder: Path) -> vela.Compiled:
    """What Vela 5.1.0 makes of a graph, as the Vela here would give it."""
    (folder / "model.tosa").write_bytes(tosa)
    arguments = [
        f"--accelerator-config={options.accelerator}",
        f"--system-config={options.system_config}",
        f"--memory-mode={options.memory_mode}",
        f"--config={options.config_ini}",
        "--output-format=raw",
        "--enable-debug-db",
        "--output-dir=out",
    ]
    subprocess.run([program, "model.tosa", *arguments], cwd=folder, check=True, capture_output=True, timeout=120)
    with np.load(folder / "out" / "model_vela.npz", allow_pickle=False) as data:
        sides: list[tuple[vela.Slot, ...]] = []
        for side in ("input", "output"):
            columns = [data[f"{side}_{field}"].tolist() for field in ("shape", "elem_size", "offset", "region")]
            sides.append(tuple(vela.Slot(tuple(shape), *rest) for shape, *rest in zip(*columns, strict=True)))
        return vela.Compiled(
            cmd_data=data["cmd_data"].tobytes(),
            weight_data=data["weight_data"].tobytes(),
            scratch_size=int(data["scratch_size"]),
            fast_scratch_size=int(data["scratch_fast_size"]),
            inputs=sides[0],
            outputs=sides[1],
            weight_region=int(data["weight_region"]),
            scratch_region=int(data["scratch_region"]),
            fast_scratch_region=int(data["scratch_fast_region"]),
            summary={},
            debug_db=canonicalize((folder / "out" / "model_debug.xml").read_text()),
            log="",
        )


@pytest.fixture
def with_old_vela(old_vela: str, tmp_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vela, "version", lambda: VERSION)
        patch.setattr(vela, "compile", lambda tosa, options, timeout=None: run_old(old_vela, tosa, options, tmp_path))
        yield


def stand_rows(graph: Graph) -> Graph:
    """The same graph with its rows as [rows, 1, 1, channels]: to 1x1 convolutions and elementwise operators all one."""
    for value in graph.values():
        match value.shape:
            case (1, 1, 2, channels):
                value.type = Type(value.dtype, (2, 1, 1, channels))
            case _:
                pass
        op = value.op
        if op is not None and value.dtype is DType.SHAPE and value.shape == (4,):
            _, _, rows, channels = np.asarray(value.data).tolist()
            op.attrs = {**op.attrs, "data": np.array([rows, 1, 1, channels], np.int64)}
    return graph


@pytest.fixture
def with_standing_rows() -> Iterator[None]:
    plain = delegate.run_passes

    def run_passes(graph: Graph, target: Target, **options: Any) -> Graph:
        return stand_rows(plain(graph, target, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delegate, "run_passes", run_passes)
        yield


def compile_gate() -> Program:
    torch.manual_seed(0)
    return tosaic.compile(Gate().eval(), (torch.randn(2, 16),), target=TARGET)


@pytest.mark.usefixtures("with_old_vela", "with_standing_rows")
def test_the_miscompile_is_found_and_named() -> None:
    program = compile_gate()
    verdict = program.verify()
    assert not verdict.ok
    assert len(verdict.differences) == verdict.compared
    for found in verdict.differences:
        assert 0 < found.count <= 32 < found.size, "only the second row is wrong"
        assert found.first["op"].endswith(":CONV2D")
        assert found.first["through"].endswith(":TABLE")
        assert found.first["where"].endswith(f"{Path(__file__).name}:{LINE}")
        assert found.first["node"].startswith("linear")
        assert found.first["command"].startswith("0x0")


@pytest.mark.usefixtures("with_old_vela")
def test_rows_in_a_line_are_right() -> None:
    assert compile_gate().verify().ok


@pytest.mark.usefixtures("with_standing_rows")
def test_the_vela_of_today_is_right() -> None:
    program = compile_gate()
    assert vela.version() != VERSION
    assert program.verify().ok
