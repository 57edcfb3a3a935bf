"""The command, run in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from tosaic.cli import app


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found


Command = Callable[..., Outcome]


def run_command(*arguments: object, env: dict[str, str] | None = None) -> Outcome:
    """`tosaic` with these arguments; an exception that is no exit fails the test."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env, catch_exceptions=False)
    return Outcome(done.exit_code, done.stdout, done.stderr)
