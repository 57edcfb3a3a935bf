"""`tosaic diff`: what changed between two compiled programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tosaic.cli.colors import say
from tosaic.cli.guard import Debug, Json, guarded, print_json
from tosaic.cli.run import read_data, read_program
from tosaic.cli.size import MaxMemory
from tosaic.core import input_file
from tosaic.core.errors import ExitStatus, Invalid

if TYPE_CHECKING:
    from tosaic.report.figures import Figures


@guarded
def diff_files(
    before: Annotated[Path, typer.Argument(metavar="A.pte", help="The program before.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B.pte", help="The program after.", show_default=False)],
    max_growth: Annotated[
        float | None,
        typer.Option(
            "--max-growth",
            metavar="PERCENT",
            min=0.0,
            show_default=False,
            help="Exit with code 1 if a total (bytes, SRAM, cycles ...) grows by more than this.",
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a comment in a review.")] = False,
    max_memory: MaxMemory = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also list what has not changed.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare two .pte files: bytes, memory, cycles, layers and operators.

    Layers and TOSA operators are read from the .tosaic files next to the programs. Cycles are estimates from the
    commands; a layer is a module of the model.
    """
    from tosaic.report.difference import compare_figures, show_difference, write_markdown
    from tosaic.report.terminal import Page

    found = compare_figures(_read(before, max_memory), _read(after, max_memory))
    if as_json:
        print_json(found.to_json())
    elif markdown:
        typer.echo(write_markdown(found), nl=False)
    else:
        show_difference(Page(), found, verbose=verbose)
    grown = [] if max_growth is None else found.list_grown(max_growth)
    if grown:
        names = ", ".join(change.name for change in grown)
        say(f"FAIL: {names} grew by more than {max_growth:g} %", err=as_json or markdown)
        raise typer.Exit(ExitStatus.CHECK_FAILED)


def _read(file: Path, max_memory: int | None) -> Figures:
    from tosaic.report.figures import read_figures

    data = read_program(file, max_memory)
    beside = file.with_suffix(".tosaic")
    try:
        kept = bytes(input_file.read(beside, max_memory)[0]) if beside.is_file() else None
        return read_figures(str(file), data, kept, read_data(file, data, None, max_memory), max_memory=max_memory)
    except Invalid as error:
        where = f"`{file}`{f', {error.where}' if error.where else ''}"
        raise Invalid(error.what, where=where, why=error.why, fix=error.fix) from error
