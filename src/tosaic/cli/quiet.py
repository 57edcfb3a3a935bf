"""Keeps other packages' notes to their developers out of a user's terminal; Tosaic's own warnings stay."""

from __future__ import annotations

import importlib
import logging
import os
import warnings

import typer

#: packages whose warnings a user of the command can do nothing about
_OTHERS = r"(torch|torchao|torchvision|executorch|numpy|sympy|pydantic)(\.|$)"


def import_torch() -> None:
    """The first import of torch in a command, with the filters set around it."""
    for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
        warnings.simplefilter("ignore", category)
    warnings.filterwarnings("ignore", module=_OTHERS)
    warnings.showwarning = _show
    for name in ("torchao", "executorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    importlib.import_module("torch")
    # Only now: torch sets the level of its logger while it is imported.
    if "TORCH_LOGS" not in os.environ:
        logging.getLogger("torch").setLevel(logging.ERROR)


def _show(message: Warning | str, *_: object) -> None:
    typer.echo(f"warning: {message}", err=True)
