"""Colors on a terminal: red for errors, yellow for warnings, green for a check that passed. Never in a pipe."""

from __future__ import annotations

import os

import typer

_WORDS = (
    ("error:", "red"),
    ("warning:", "yellow"),
    ("PASS", "green"),
    ("FAIL", "red"),
    ("DIFFERENT", "red"),
)


def say(text: str, *, err: bool = False) -> None:
    """Print text; a line that begins with `error:`, `warning:`, `PASS` or `FAIL` has that word in color."""
    # typer drops the codes where the output is not a terminal.
    colored = text if os.environ.get("NO_COLOR") else "\n".join(map(_color, text.split("\n")))
    typer.echo(colored, err=err)


def _color(line: str) -> str:
    for word, color in _WORDS:
        if line.startswith(word):
            return typer.style(word, fg=color, bold=True) + line.removeprefix(word)
    return line
