"""Runs a native program to its end: argument list, separate folder, time limit, captured output."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tosaic.core.errors import Invalid, ToolFailed

#: Seconds that a program or a request may take unless the caller or the environment overrides it.
DEFAULT_TIMEOUT = 600.0
#: The environment variable that replaces DEFAULT_TIMEOUT.
TIMEOUT_VARIABLE = "TOSAIC_TOOL_TIMEOUT"
#: Bytes of each output that are kept.
_MAX_OUTPUT = 4 << 20


class ToolTimedOut(ToolFailed):
    """A native tool that was stopped at its time limit."""

    def __init__(self, tool: str, verb: str, limit: float, log: str) -> None:
        super().__init__(
            f"{tool} was stopped: it did not {verb} within {limit:g} s",
            log=log,
            fix=f"allow more seconds with the environment variable `{TIMEOUT_VARIABLE}`",
        )


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended. `output` includes stderr unless it was captured separately in `errors`."""

    code: int
    output: str
    errors: str = ""

    @property
    def signal(self) -> str:
        """The name of the signal that ended the program; empty if none did."""
        return name_signal(-self.code) if self.code < 0 else ""


def run_tool(
    tool: str,
    arguments: Sequence[str],
    *,
    folder: Path | None = None,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
    keep_errors_apart: bool = False,
) -> Finished:
    """Run a program in a folder, by default a temporary one, and return how it ended.

    Raise ToolTimedOut after `timeout` seconds (default: `find_time_limit`), ToolFailed if it cannot be started.
    `tool` is the name of the program in messages.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="tosaic-") as name:
            return _run(tool, arguments, Path(name), find_time_limit(timeout), environment, keep_errors_apart)
    return _run(tool, arguments, folder, find_time_limit(timeout), environment, keep_errors_apart)


def _run(
    tool: str,
    arguments: Sequence[str],
    folder: Path,
    limit: float,
    environment: Mapping[str, str] | None,
    keep_errors_apart: bool,
) -> Finished:
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            code = subprocess.run(
                arguments,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors if keep_errors_apart else subprocess.STDOUT,
                timeout=limit,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise ToolTimedOut(tool, "end", limit, _read(output) + _read(errors)) from None
        except OSError as error:
            raise ToolFailed(f"{tool} cannot be started", why=error.strerror or str(error)) from None
        return Finished(code, _read(output), _read(errors))


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MAX_OUTPUT).decode("utf-8", "replace")


def find_time_limit(timeout: float | None) -> float:
    """Return the seconds that a tool gets: the caller's number, else the environment's, else the default."""
    if timeout is not None:
        return timeout
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < threading.TIMEOUT_MAX:
        raise Invalid(f"`{TIMEOUT_VARIABLE}={text}` is not a number of seconds above 0")
    return seconds


def name_signal(number: int) -> str:
    """Return the name of a signal, for messages."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
