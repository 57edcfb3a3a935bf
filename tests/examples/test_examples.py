"""The examples and notebooks do what they say: each is run as a user runs it."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
}


def run_example(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode == 1 and "cannot be fetched" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def count(printed: str, title: str) -> tuple[int, int]:
    found = re.search(rf"^{re.escape(title)}: +(\d+) of (\d+)", printed, re.MULTILINE)
    assert found, printed
    return int(found[1]), int(found[2])


@pytest.mark.slow
def test_own_cnn(tmp_path: Path) -> None:
    printed = run_example("own_cnn", tmp_path)
    assert "PASS: bit-exact" in printed and "fallback nodes         0" in printed
    (wanted, all_), (found, _) = count(printed, "float"), count(printed, "int8")
    assert wanted > 0.9 * all_ and found > wanted - 0.03 * all_


@pytest.mark.slow
def test_dataloader_calibration(tmp_path: Path) -> None:
    printed = run_example("dataloader_calibration", tmp_path)
    one, loader = (float(found) for found in re.findall(r": (-?[\d.]+) dB", printed))
    assert loader > 25 and loader > one + 6, printed


@pytest.mark.slow
def test_qat(tmp_path: Path) -> None:
    printed = run_example("qat", tmp_path)
    wanted, all_ = count(printed, "float")
    assert wanted > 0.9 * all_
    assert count(printed, "4-bit weights, trained with them")[0] > wanted - 0.03 * all_


@pytest.mark.slow
def test_keywords(tmp_path: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("the recordings are in a Debian package, which needs apt-get and dpkg-deb")
    printed = run_example("keywords", tmp_path)
    assert "PASS: bit-exact" in printed
    (wanted, all_), (found, _) = count(printed, "float"), count(printed, "int8")
    assert wanted > 0.8 * all_ and found > wanted - 0.05 * all_


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the package transformers")
def test_hf_vit(tmp_path: Path) -> None:
    printed = run_example("hf_vit", tmp_path)
    assert "delegates              1" in printed and "fallback nodes         0" in printed
    assert "PASS: bit-exact" in printed


@pytest.mark.slow
def test_npu_and_cmsis_nn(tmp_path: Path) -> None:
    printed = run_example("npu_and_cmsis_nn", tmp_path)
    assert "on the NPU: 1 delegate" in printed and "cortex_m::quantized_conv2d" in printed
    command = [sys.executable, "-m", "tosaic", "verify", "npu_and_cmsis_nn.pte"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "PASS" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_has_code_and_no_outputs(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    for cell in cells:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        text = "".join(cell["source"])
        if not text.startswith("!"):
            ast.parse(text)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    for name in ("PATH", "OMP_NUM_THREADS", "NO_COLOR"):
        monkeypatch.setenv(name, ENVIRONMENT[name])
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = json.dumps(notebook)
    wanted = "PASS: bit-exact" if path.stem == "first_steps" else "all passed"
    assert wanted in printed and "error:" not in printed


def test_every_example_is_on_its_page() -> None:
    page = (ROOT / "docs" / "tutorials" / "examples.md").read_text()
    assert [
        path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb") and path.name not in page
    ] == []
