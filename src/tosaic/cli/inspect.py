"""`tosaic inspect`: what is in a file that a compile made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tosaic.cli.guard import Debug, Json, guarded, print_json
from tosaic.cli.run import Data, open_bundle, read_data
from tosaic.cli.size import MaxMemory
from tosaic.core import input_file
from tosaic.core.errors import Invalid
from tosaic.core.output import write_files

if TYPE_CHECKING:
    from tosaic.report.contents import Contents

#: Bytes of a command in a listing.
_LINE_BYTES = 512


@guarded
def show_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to show.", show_default=False)],
    text: Annotated[bool, typer.Option("--text", help="Print the TOSA graphs as text, one line per operator.")] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print the command stream of every Ethos-U delegate in Vela's format.")
    ] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Print the layer profile of a .pte: names, cycles, bytes of every layer.")
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE.csv", show_default=False, help="Write the layer profile as CSV."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.json",
            show_default=False,
            help="Write the layer profile as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing.",
        ),
    ] = None,
    method: Annotated[str, typer.Option("--method", metavar="NAME", help="The method to profile.")] = "forward",
    data_files: Data = None,
    max_memory: MaxMemory = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Also print Vela's cycle estimate.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the contents of a .pte, .bpte, .ptd, .tosa, .vgf or .tosaic file, or of the blob of an Ethos-U delegate.

    The file type is detected from the contents, not from the name.
    """
    # The readers need numpy, which `--help` should not wait for.
    from tosaic.formats import foreign
    from tosaic.report import contents

    data = bytes(input_file.read(file, max_memory)[0])
    beside = file.with_suffix(".tosaic")
    kind = contents.detect(data)
    if not kind:
        foreign.refuse_to_read(data, str(file))
    is_pte = kind in ("pte", "bpte")
    try:
        program, _ = open_bundle(data, max_memory)
        files = read_data(file, program, data_files, max_memory) if is_pte else []
        if commands:
            _print_commands(program, "pte" if is_pte else kind, files, max_memory)
            return
        if layers or csv or trace:
            _show_layers(file, data, files, method, csv, trace, as_json, max_memory)
            return
        kept = bytes(input_file.read(beside, max_memory)[0]) if is_pte and beside.is_file() else None
        found = contents.read(data, beside=kept, files=files, text=text, max_memory=max_memory)
    except Invalid as error:
        raise Invalid(
            error.what, where=f"`{file}`{f', {error.where}' if error.where else ''}", why=error.why, fix=error.fix
        ) from error
    if as_json:
        print_json(found.to_json(str(file)))
    elif text:
        _print_text(found)
    else:
        from tosaic.report.describe import show_contents
        from tosaic.report.terminal import Page

        show_contents(Page(), found, str(file), verbose=verbose)


def _show_layers(
    file: Path,
    data: bytes,
    files: list[bytes],
    method: str,
    csv: Path | None,
    trace: Path | None,
    as_json: bool,
    max_memory: int | None,
) -> None:
    from tosaic.report.files import open_program

    beside = file.with_suffix(".tosaic")
    kept = bytes(input_file.read(beside, max_memory)[0]) if beside.is_file() else None
    profile = open_program(data, kept, files, method=method, max_memory=max_memory).profile
    written: dict[Path, bytes] = {}
    if csv is not None:
        written[csv] = profile.to_csv().encode()
    if trace is not None:
        import json

        written[trace] = json.dumps(profile.to_trace(), indent=1, allow_nan=False).encode()
    write_files(written)
    if as_json:
        print_json(profile.to_json(str(file)))
        return
    from tosaic.report.layers import show_profile
    from tosaic.report.terminal import Page, count

    page = Page()
    if not written:
        show_profile(page, profile, str(file))
    for path, content in written.items():
        page.line(f"wrote `{path}` ({count(len(content), 'byte')})")


def _print_text(found: Contents) -> None:
    graphs = found.list_tosa()
    if not graphs:
        raise Invalid(
            "this file contains no TOSA graph",
            fix="the TOSA graphs of a .pte are in its .tosaic file: keep both in one folder",
        )
    for graph in graphs:
        typer.echo(graph.text, nl=False)


def _print_commands(data: bytes, kind: str, files: list[bytes], max_memory: int | None) -> None:
    from tosaic import npu
    from tosaic.core.budget import Budget
    from tosaic.formats import blob, external
    from tosaic.formats.blob import BACKEND
    from tosaic.npu.stream import parse

    streams: list[tuple[str, bytes]] = []
    budget = Budget(len(data) + sum(map(len, files)), max_memory)
    if kind == "blob":
        streams.append(("", blob.unpack(data).cmd_data))
    elif kind == "pte":
        program = external.read(data, files, max_memory=max_memory)
        for plan in program.plans:
            for index, delegate in enumerate(plan.delegates):
                if delegate.id == BACKEND:
                    parts = blob.unpack(delegate.blob)
                    streams.append((f"delegate {index} of `{plan.name}`, ", parts.cmd_data))
    if not streams:
        raise Invalid("this file contains no Ethos-U command stream", fix="pass a .pte compiled for an Ethos-U")
    for label, stream in streams:
        typer.echo(f"# {label}{parse(stream).accelerator.name}, {len(stream):,} bytes")
        budget.take(len(stream) // 4 * _LINE_BYTES, "the listing of a command stream")
        typer.echo(npu.disassemble(stream), nl=False)
        budget.give_back(len(stream) // 4 * _LINE_BYTES)
