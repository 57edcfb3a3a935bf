"""What the scripts share: options whose errors are typed, calls of the command `tosaic`, and the exit code."""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import tosaic
from tosaic.cli.guard import exit_code, explain
from tosaic.core.errors import ExitStatus, Invalid

#: The target of the tutorials.
TARGET = "ethos-u55-128"


class Parser(argparse.ArgumentParser):
    """The options of a script."""

    def __init__(self, script: str, description: str) -> None:
        super().__init__(prog=script, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise Invalid(f"{self.prog}: {message}", fix="`--help` lists the options")

    def add_root(self) -> None:
        self.add_argument("--root", type=Path, default=Path(), help="the folder for results; default: the current one")

    def add_yes(self) -> None:
        self.add_argument("-y", "--yes", action="store_true", help="install without asking")


class Script(Protocol):
    """The main function of a script."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int: ...


def script(main: Script) -> Script:
    """Let a main function report its errors on stderr, and return its exit code."""

    @functools.wraps(main)
    def run(arguments: Sequence[str] | None = None) -> int:
        try:
            return main(arguments)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            return ExitStatus.INTERRUPTED
        except Exception as error:
            sys.stderr.write(f"{explain(error)}\n")
            return exit_code(error)

    return run


def call_tosaic(*words: str | Path) -> int:
    """Run the command `tosaic` in this process, show it, and return its exit code."""
    from typer.main import get_command

    from tosaic.cli import app

    command = [str(word) for word in words]
    sys.stderr.write(f"+ tosaic {shlex.join(command)}\n")
    code = get_command(app).main(command, prog_name="tosaic", standalone_mode=False)
    return code if isinstance(code, int) else ExitStatus.DONE


def call_each(*commands: Sequence[str]) -> int:
    """Run commands of `tosaic` until one fails; return its exit code."""
    return next((code for command in commands if (code := call_tosaic(*command))), ExitStatus.DONE)


def find_checkout() -> Path:
    """Return the folder of the sources that Tosaic is installed from; raise Invalid if it is installed without them."""
    folder = Path(tosaic.__file__).parents[2]
    if (folder / "pyproject.toml").is_file() and (folder / "tests").is_dir():
        return folder
    raise Invalid(
        "the tests of Tosaic are not here",
        why="it is installed as a package, without its sources",
        fix="clone its repository and run `pip install -e '.[dev,vision]'` there",
    )
