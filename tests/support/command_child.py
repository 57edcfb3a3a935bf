"""Runs commands on damaged files in one warm process: `python -m support.command_child FOLDER FIRST LAST`.

The folder holds the files to damage. For each number one line of JSON tells the command, its exit code and its errors.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from typer.testing import CliRunner

from support.mutate import damage
from tosaic.cli import app

#: Of the clock on the wall, for one command: the default action of the signal ends the process.
SECONDS = 120
#: How `inspect` may show a file.
FORMS: tuple[list[str], ...] = ([], ["--text"], ["--commands"], ["--json"])
#: The commands that take each kind of file.
COMMANDS = {
    "pte": ("run", "inspect", "verify"),
    "tosa": ("inspect",),
    "ptd": ("inspect",),
    "vgf": ("inspect",),
    "blob": ("inspect",),
    "tosaic": ("inspect",),
    "pt2": ("compile",),
}


def choose(folder: Path, number: int, into: Path) -> tuple[str, list[str]]:
    """What is damaged for this number, and the arguments of the command that reads it."""
    files = sorted(path for path in folder.iterdir() if path.suffix[1:] in COMMANDS)
    source = files[number % len(files)]
    kind = source.suffix[1:]
    what, data = damage(source.read_bytes(), kind, 90_000 + number, [])
    path = into / f"{number}{source.suffix}"
    path.write_bytes(data)
    commands = COMMANDS[kind]
    command = commands[number // len(files) % len(commands)]
    flags = {
        "compile": ["--target", "ethos-u55-128", "-o", str(into / "out.pte")],
        "inspect": FORMS[number % len(FORMS)],
    }
    return f"{source.name}, {what}, {number}", [command, str(path), *flags.get(command, [])]


def main(folder: Path, first: int, last: int) -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as into:
        for number in range(first, last):
            what, arguments = choose(folder, number, Path(into))
            signal.alarm(SECONDS)
            done = CliRunner().invoke(app, arguments)
            signal.alarm(0)
            failed = done.exception is not None and not isinstance(done.exception, SystemExit)
            log = "".join(traceback.format_exception(done.exception)) if failed else done.stderr
            print(
                json.dumps({"what": what, "command": arguments[0], "code": done.exit_code, "log": log[-3000:]}),
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
