"""What tests of several folders share. pytest finds this package by `pythonpath` in pyproject.toml."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def join_python_path() -> str:
    """Return a PYTHONPATH with which a child process can import this package."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(TESTS), *([given] if given else [])])
