"""The scripts under the paths that ExecuTorch has them at, so that its command lines work in a folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

#: The module of each script, and whether its results belong into the folder.
SCRIPTS: Mapping[str, tuple[str, bool]] = MappingProxyType(
    {
        "install_executorch.sh": ("install_executorch", False),
        "examples/arm/setup.sh": ("setup", False),
        "examples/arm/run.sh": ("run", True),
        "backends/arm/scripts/build_executorch.sh": ("build_executorch", True),
        "backends/arm/scripts/build_executor_runner.sh": ("build_executor_runner", True),
        "backends/arm/scripts/run_fvp.sh": ("run_fvp", False),
        "backends/arm/test/test_arm_baremetal.sh": ("test_arm_baremetal", False),
        "backends/arm/test/setup_testing.sh": ("setup_testing", False),
        "backends/arm/test/setup_testing_vkml.sh": ("setup_testing_vkml", False),
        "cmake-out/executor_runner": ("executor_runner", False),
    }
)
#: Every file has these words.
MARK = "Written by `tosaic scripts`."
_COMPILER = "examples/arm/aot_arm_compiler.py"
_PATH, _HOOK = "examples/arm/ethos-u-scratch/setup_path.sh", "backends/arm/scripts/pre-commit"
_MODULE = """\
\"\"\"Runs tosaic.scripts.aot_arm_compiler. Written by `tosaic scripts`.\"\"\"

import sys

from tosaic.scripts.aot_arm_compiler import main

if __name__ == "__main__":
    sys.exit(main())
"""


def make_tree(python: str) -> dict[str, bytes]:
    """Return the scripts by their paths. They run with this interpreter unless the variable PYTHON names another."""
    files = {path: _wrap(path, module, python, rooted) for path, (module, rooted) in SCRIPTS.items()}
    files |= {
        _COMPILER: _MODULE,
        _PATH: _set_path(),
        _HOOK: (Path(__file__).parents[1] / "scripts" / "pre-commit").read_text("utf-8"),
    }
    return {path: text.encode() for path, text in sorted(files.items())}


def _wrap(path: str, module: str, python: str, rooted: bool) -> str:
    lines = ["#!/usr/bin/env bash", f"# Runs tosaic.scripts.{module}. {MARK}", f"python={shlex.quote(python)}"]
    lines += [_find_root(path)] if rooted else []
    root = ' --root="$root"' if rooted else ""
    return "\n".join([*lines, f'exec "${{PYTHON:-$python}}" -m tosaic.scripts.{module}{root} "$@"', ""])


def _set_path() -> str:
    folders = sorted({PurePosixPath(path).parent.as_posix() for path in (*SCRIPTS, _HOOK)} - {"."})
    value = ":".join(f"$root/{folder}" for folder in folders)
    lines = [
        f"# Puts the scripts on PATH: source {_PATH}. {MARK}",
        _find_root(_PATH),
        f'export PATH="{value}:$PATH"',
        "unset root",
    ]
    return "\n".join([*lines, ""])


def _find_root(path: str) -> str:
    up = "/.." * path.count("/")
    return f'root=$(cd "$(dirname "${{BASH_SOURCE[0]}}"){up}" && pwd)'
