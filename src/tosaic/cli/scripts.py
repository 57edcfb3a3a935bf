"""`tosaic scripts`: the scripts of ExecuTorch's tutorials."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tosaic.cli.guard import Debug, guarded
from tosaic.core.errors import Invalid
from tosaic.core.output import write_files

_EXECUTABLE = 0o755


@guarded
def write_scripts(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write them to.", show_default=False)],
    debug: Debug = False,
) -> None:
    """Write the scripts of ExecuTorch's Arm tutorials under their own paths.

    Their command lines then work in DIR: `examples/arm/run.sh --model_name=mv2`. Each script is also a Python module:
    `python -m tosaic.scripts.run`.
    """
    from tosaic.cli.script_tree import MARK, make_tree

    files = {folder / path: data for path, data in make_tree(sys.executable).items()}
    for path in files:
        if path.is_file() and MARK.encode() not in path.read_bytes():
            raise Invalid(
                f"`{path}` is not a script of Tosaic", why="it would be replaced", fix="choose another folder"
            )
    write_files(files)
    for path in files:
        path.chmod(_EXECUTABLE)
    typer.echo(f"wrote {len(files)} scripts to `{folder}`")
