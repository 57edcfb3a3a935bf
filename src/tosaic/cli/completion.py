"""`tosaic completion`: complete commands, options and their values with the tab key."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

from tosaic.cli.guard import Debug, guarded


class Shell(StrEnum):
    """The shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@guarded
def show_completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)],
    debug: Debug = False,
) -> None:
    """Print a script that lets a shell complete commands, options and values.

    Load it when the shell starts, as in the examples.
    """
    typer.echo(get_completion_script(prog_name="tosaic", complete_var="_TOSAIC_COMPLETE", shell=shell.value))
