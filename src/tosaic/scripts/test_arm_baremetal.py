"""The script that runs the tests, under the names of ExecuTorch's workflow.

python -m tosaic.scripts.test_arm_baremetal test_pytest -m 'not slow'
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tosaic.core.errors import ExitStatus
from tosaic.doctor import BOARD, TESTS, VGF
from tosaic.scripts import run
from tosaic.scripts.entry import Parser, call_each, find_checkout, script

#: What pytest runs for each command, and what must be installed for it.
_PYTEST: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "test_pytest": (("-n", "auto", "--ignore=tests/board", "tests"), (TESTS,)),
        "test_pytest_ethosu_fvp": (("-n", "auto", "tests"), (TESTS, BOARD)),
        "test_full_ethosu_fvp": (("tests/board/test_zoo.py",), (TESTS, BOARD)),
        "test_pytest_vkml": (("-n", "auto", "-k", "vgf or vulkan", "tests"), (TESTS, VGF)),
        "test_full_vkml": (("tests/vgf/test_models.py", "tests/vgf/test_efficientnet.py"), (TESTS, VGF)),
    }
)
_RUN = "test_run_ethosu_fvp"
_TARGETS = ("ethos-u55-128", "ethos-u85-256")
#: Those of pytest: all passed, some failed, a wrong option, no tests.
_EXIT_CODES = {0: ExitStatus.DONE, 1: ExitStatus.CHECK_FAILED, 4: ExitStatus.BAD_INPUT, 5: ExitStatus.BAD_INPUT}


@script
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests of a command."""
    parser = Parser("test_arm_baremetal", "Run tests; where the original uses Corstone's FVP, on the virtual board.")
    parser.add_argument("command", choices=(*_PYTEST, _RUN))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=f"further options of pytest, or of run for {_RUN}")
    options = parser.parse_args(arguments)
    if options.command == _RUN:
        return next((code for target in _TARGETS if (code := _run_models(target, options.arguments))), ExitStatus.DONE)
    checkout = find_checkout()
    words, needed = _PYTEST[options.command]
    return call_each(*(["doctor", "--fix", name] for name in needed)) or _run_pytest(
        [*words, *options.arguments], checkout
    )


def _run_models(target: str, arguments: Sequence[str]) -> int:
    return run.main([f"--target={target}", *arguments])


def _run_pytest(words: Sequence[str], checkout: Path) -> int:
    command = [sys.executable, "-m", "pytest", *words]
    sys.stderr.write(f"+ {shlex.join(command)}\n")
    code = subprocess.run(command, cwd=checkout, check=False).returncode
    return _EXIT_CODES.get(code, ExitStatus.TOOL_FAILED)


if __name__ == "__main__":
    sys.exit(main())
