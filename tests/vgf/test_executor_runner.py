"""ExecuTorch's runner for Linux, and the script of the tutorial, with a .pte for VGF."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tosaic
from tosaic import zoo
from tosaic.scripts import executor_runner, run


@pytest.mark.usefixtures("device")
def test_runner(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, inputs = zoo.load("add")
    pte = tosaic.compile(model, inputs, "vgf").save(tmp_path / "add.pte")
    numbers = tmp_path / "numbers.npy"
    np.save(numbers, np.arange(5, dtype=np.int32))
    assert executor_runner.main([f"--model_path={pte}", f"--inputs={numbers}"]) == 0
    shown = capfd.readouterr()
    assert f"+ tosaic run {pte} --log --input {numbers}\n" in shown.err
    assert "Output[0][4]: (int) 8\n" in shown.out


@pytest.mark.usefixtures("device")
def test_script(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--model_name=add", "--target=vgf", f"--root={tmp_path}"]) == 0
    assert "Output[0][4]: (int) 2\n" in capfd.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["add_arm_delegate.pte", "add_arm_delegate.tosaic"]
