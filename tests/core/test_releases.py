"""The combinations of releases that are known to work."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tosaic.core.releases import TESTED, Releases
from tosaic.doctor import fits

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@pytest.mark.parametrize(
    ("python", "torch", "executorch", "matches"),
    [
        ("3.11.7", "2.13.0+cpu", "1.4.1", True),
        ("3.11", "2.13.0", "1.4.1", True),
        ("3.1.1", "2.13.0", "1.4.1", False),
        ("3.11.7", "2.13.1", "1.4.1", False),
        ("3.11.7", "2.13.0", "1.4.10", False),
    ],
)
def test_versions_of_a_combination(python: str, torch: str, executorch: str, matches: bool) -> None:
    assert Releases("3.11", "2.13.0", "1.4.1").matches(python, torch, executorch) is matches


@pytest.mark.parametrize("one", TESTED, ids=str)
def test_what_is_tested_can_be_installed(one: Releases) -> None:
    wanted = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    for package, version in (("torch", one.torch), ("executorch", one.executorch)):
        (bounds,) = (line.removeprefix(package) for line in wanted if line.startswith(f"{package}>"))
        assert fits(version, bounds), bounds
