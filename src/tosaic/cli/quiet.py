"""Warnings as the command shows them."""

from __future__ import annotations

import warnings

import typer

from tosaic.core.quiet import import_quietly, silence


def import_torch() -> None:
    """Import torch for the first time in a command, and hide its messages from then on."""
    import_quietly("torch")
    silence()
    warnings.showwarning = _show


def _show(message: Warning | str, *_: object) -> None:
    typer.echo(f"warning: {message}", err=True)
