"""The command `tosaic`: a command line for the Python API."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tosaic import __version__
from tosaic.cli.build import build_firmware
from tosaic.cli.catalog import show_ops, show_targets
from tosaic.cli.compile import compile_model
from tosaic.cli.doctor import show_health
from tosaic.cli.inspect import show_file
from tosaic.cli.run import run_file, verify_file
from tosaic.cli.scripts import write_scripts

app = typer.Typer(
    name="tosaic",
    help="Compile PyTorch models for Arm Ethos-U NPUs and verify the result bit for bit.",
    epilog="Exit codes: 0 success, 1 verification failed, 2 bad input, 3 a tool failed.",
    no_args_is_help=True,
    add_completion=False,
    # Plain help reads the same with and without color, and needs no import of rich.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile", short_help="Compile a model for a target.")(compile_model)
app.command("build", short_help="Build the firmware of a board from a .pte.")(build_firmware)
app.command("run", short_help="Run a .pte or a firmware on this machine.")(run_file)
app.command("verify", short_help="Compare a .pte with TOSA bit for bit, and with torch.")(verify_file)
app.command("inspect", short_help="Show what is in a compiled file.")(show_file)
app.command("ops", short_help="List operators and their constraints.")(show_ops)
app.command("targets", short_help="List the targets.")(show_targets)
app.command("doctor", short_help="Check the installation.")(show_health)
app.command("scripts", short_help="Write the scripts of ExecuTorch's tutorials.")(write_scripts)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tosaic {__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Compile PyTorch models for Arm Ethos-U NPUs and verify the result bit for bit."""


def main() -> None:
    """Run the installed command."""
    # The simulator's matrices are small: threads of numpy's BLAS cost more than they gain.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    app()
