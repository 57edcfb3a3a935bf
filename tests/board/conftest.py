"""The firmware's runtime on the host, built once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.firmware import Firmware, build_harness


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_harness(tmp_path_factory.mktemp("harness"))


@pytest.fixture
def firmware(program: Path, tmp_path: Path) -> Iterator[Firmware]:
    process = Firmware(program, tmp_path / "log")
    yield process
    process.close()
