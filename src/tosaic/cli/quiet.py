"""Warnings as the command shows them."""

from __future__ import annotations

import sys
import warnings
from contextlib import redirect_stdout
from typing import TextIO

from tosaic.cli.colors import say
from tosaic.core.heap import import_for_good
from tosaic.core.quiet import import_quietly, silence


def import_torch() -> None:
    """Import torch for the first time in a command, and hide its messages from then on."""
    with import_for_good():
        import_quietly("torch")
    silence()
    warnings.showwarning = _show


def redirect_prints() -> redirect_stdout[TextIO]:
    """Print what the code of a model prints on stderr: stdout is for the report."""
    return redirect_stdout(sys.stderr)


def _show(message: Warning | str, *_: object) -> None:
    say(f"warning: {message}", err=True)
