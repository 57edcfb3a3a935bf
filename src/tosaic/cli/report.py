"""`tosaic report`: a compiled program as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tosaic.cli.colors import say
from tosaic.cli.guard import Debug, guarded
from tosaic.cli.quiet import import_torch
from tosaic.cli.run import Data, File, read_data, read_program
from tosaic.cli.size import MaxMemory
from tosaic.core import input_file
from tosaic.core.output import check_writable, write_files


@guarded
def write_report(
    file: File,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE.html", show_default=False, help="The file to write. Default: FILE.html."
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run the program, compare it with TOSA and torch, and show the result.")
    ] = False,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="The method to show.")] = "forward",
    data_files: Data = None,
    max_memory: MaxMemory = None,
    debug: Debug = False,
) -> None:
    """Write an HTML report about a .pte: one file that opens in any browser, without a network.

    It shows where the cycles go, the graph folded by module, every layer, the memory over time, and why operators are
    on the CPU. Names and source lines are in the .tosaic file next to the .pte.
    """
    target = output or file.with_suffix(".html")
    check_writable(target)
    if verify:
        # Its packages print messages for their developers.
        import_torch()
    from tosaic.api.html_report import describe
    from tosaic.report.files import check_is_program, open_program
    from tosaic.report.html import render

    data = read_program(file, max_memory)
    check_is_program(data)
    files = read_data(file, data, data_files, max_memory)
    beside = file.with_suffix(".tosaic")
    kept = bytes(input_file.read(beside, max_memory)[0]) if beside.is_file() else None
    opened = open_program(data, kept, files, method=method, max_memory=max_memory)
    found = describe(opened, file.stem, verify=verify, max_memory=max_memory)
    page = render(found).encode()
    write_files({target: page})
    say(found.verdict)
    for text in found.profile.missing:
        say(f"not known: {text}")
    say(f"wrote `{target}` ({len(page):,} bytes)")
