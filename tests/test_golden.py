"""Golden files: a change of a lowering or of a pass shows as text in the diff. `make golden` rewrites them."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.golden import OPS, PASS_FILES, SUFFIX, list_ops, write_op, write_pass
from tosaic.passes import ALL


def compare(path: Path, text: str) -> None:
    assert path.exists(), "`make golden` writes it"
    assert text == path.read_text(), "`make golden` rewrites it; the difference is what reviewers see"


@pytest.mark.parametrize("op", list_ops())
def test_lowering(op: str) -> None:
    compare(OPS / f"{op}{SUFFIX}", write_op(op))


@pytest.mark.parametrize("name", [step.name for step in ALL])
def test_pass(name: str) -> None:
    compare(PASS_FILES / f"{name}{SUFFIX}", write_pass(name))


def test_no_file_is_left_over() -> None:
    assert {path.name for path in OPS.iterdir()} == {f"{op}{SUFFIX}" for op in list_ops()}
    assert {path.name for path in PASS_FILES.iterdir()} == {f"{step.name}{SUFFIX}" for step in ALL}
