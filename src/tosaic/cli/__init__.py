"""The command `tosaic`: a command line for the Python API."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tosaic import __version__
from tosaic.cli.group import SETTINGS, CommandGroup

app = typer.Typer(
    name="tosaic",
    cls=CommandGroup,
    help="Compile PyTorch models for Arm Ethos-U NPUs and verify the result bit for bit.",
    epilog="Exit codes: 0 success, 1 a check failed, 2 bad input, 3 a tool failed."
    " `tosaic COMMAND -h` shows options and examples.",
    no_args_is_help=True,
    **SETTINGS,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tosaic {__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool,
        typer.Option("-V", "--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Compile PyTorch models for Arm Ethos-U NPUs and verify the result bit for bit."""


def main() -> None:
    """Run the installed command."""
    # Nothing here gains from threads of numpy's BLAS, and to start them takes time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "_TOSAIC_COMPLETE" in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    app(prog_name="tosaic")
