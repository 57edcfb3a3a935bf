"""The GitHub action and the Dockerfile: the script runs here, in its own repository and with a `gh` that records."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "compile"
MODEL = """
import torch
torch.manual_seed(0)
model = torch.nn.Conv2d(3, SIZE, 3).eval()
inputs = (torch.randn(1, 3, 8, 8),)
"""


def test_every_variable_of_the_script_is_set() -> None:
    """And none is text in a command, where an input could add commands."""
    action, script = (ACTION / "action.yml").read_text(), (ACTION / "run.sh").read_text()
    given = set(re.findall(r"^ +([A-Z_]+): \$\{\{", action, re.MULTILINE))
    used = set(re.findall(r"\$\{?([A-Z][A-Z_]+)", script))
    assert used - given == {"RUNNER_TEMP", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"}
    commands = re.findall(r"^ +run: (.*)$", action, re.MULTILINE)
    assert commands and not any("inputs." in line or "github.event" in line for line in commands)


def test_the_image_has_all_that_it_copies() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    for line in re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists() and f"!{name}" in ignored


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("comment_fails", [False, True])
def test_the_script_compares_with_the_base(tmp_path: Path, comment_fails: bool) -> None:
    repository, programs = tmp_path / "repository", tmp_path / "bin"
    repository.mkdir()
    programs.mkdir()
    git(repository, "init", "-q")
    shas = []
    for size in (4, 64):
        (repository / "net.py").write_text(MODEL.replace("SIZE", str(size)))
        git(repository, "add", "net.py")
        git(repository, "commit", "-q", "-m", "model")
        shas.append(git(repository, "rev-parse", "HEAD").strip())
    end = "exit 1" if comment_fails else f'cp "$5" {tmp_path}/comment.md'
    for name, text in (("tosaic", f'exec {sys.executable} -m tosaic "$@"'), ("gh", end)):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": paths,
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "MODEL": "net.py",
        "TARGET": "ethos-u55-128",
        "OPTIONS": "--io int8",
        "MAX_GROWTH": "5",
        "COMMENT": "true",
        "BASE": shas[0],
        "PULL_REQUEST": "7",
    }
    command = ["bash", str(ACTION / "run.sh")]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "PASS: bit-exact" in done.stdout and "FAIL: " in done.stderr and "NPU cycles" in done.stderr
    summary = (tmp_path / "summary").read_text()
    assert "| NPU cycles |" in summary and "`before.pte` -> `after.pte`" in summary
    assert ("no permission to comment" in done.stdout) == comment_fails
    if not comment_fails:
        assert (tmp_path / "comment.md").read_text() == summary
    assert (tmp_path / "output").read_text() == f"program={tmp_path}/tosaic/after.pte\n"
    assert git(repository, "worktree", "list").count("\n") == 1
