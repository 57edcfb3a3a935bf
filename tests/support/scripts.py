"""The command lines of ExecuTorch's pages, as docs/moving.md lists them, and two ways to run one."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pages import ROOT
from tosaic import doctor
from tosaic.cli.script_tree import SCRIPTS
from tosaic.doctor import Check

FOLDER = "executorch"
_ROW = re.compile(r"^\| (`.*`) \| (.*) \| (.*) \|$", re.MULTILINE)


def read_rows() -> dict[str, str]:
    """The rows of the table: ExecuTorch's line, and the line that replaces it."""
    page = (ROOT / "docs" / "moving.md").read_text(encoding="utf-8")
    section = page.partition("## Command lines")[2].partition("\n## ")[0]
    rows: dict[str, str] = {}
    for was, now, _ in _ROW.findall(section):
        assert was not in rows, f"two rows for {was}"
        rows[was] = was if now == "the same" else now
    return {_strip(was): _strip(now) for was, now in rows.items()}


def _strip(cell: str) -> str:
    return cell.removeprefix("`").removesuffix("`")


def run_in_shell(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line in bash, with the programs of this environment on PATH."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def run_here(line: str, root: Path) -> int:
    """Run the script of a line in this process, as its file in `root` would."""
    path, *arguments = shlex.split(line)
    path = path.removeprefix("./").removeprefix(f"{FOLDER}/")
    found = [known for known in SCRIPTS if known == path or known.endswith(f"/{path}")]
    assert len(found) == 1, path
    module, is_rooted = SCRIPTS[found[0]]
    return importlib.import_module(f"tosaic.scripts.{module}").main([*([f"--root={root}"] * is_rooted), *arguments])


class Machine:
    """A machine that lacks everything until it is installed; notes what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, complete: bool = False) -> None:
        self.installed: list[str] = []
        self.checked: list[str] = []
        monkeypatch.setattr(doctor, "plan", lambda name: [] if complete else [f"pip install {name}"])
        monkeypatch.setattr(doctor, "install", lambda name, _: None if complete else self.installed.append(name))
        monkeypatch.setattr(doctor, "examine_fix", lambda name, _: self._examine(name))
        monkeypatch.setattr(doctor, "examine", lambda _: self._examine("ethos-u"))

    def _examine(self, name: str) -> Iterator[Check]:
        self.checked.append(name)
        yield Check(name, ok=True, found="works", target=name)
