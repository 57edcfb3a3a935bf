"""`tosaic fit`: which programs of a model fit on a board."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tosaic.board.profile import find_profile, list_profiles
from tosaic.cli import options as o
from tosaic.cli.guard import Debug, Json, guarded, print_json
from tosaic.cli.progress import show_progress
from tosaic.cli.quiet import redirect_prints
from tosaic.cli.size import MaxMemory, parse_size
from tosaic.core.errors import ExitStatus, Invalid
from tosaic.core.hints import get_cli_form
from tosaic.core.output import check_writable
from tosaic.core.targets import find

Targets = Annotated[
    list[str] | None,
    typer.Option(
        "-t",
        "--target",
        metavar="NAME",
        show_default=False,
        help="An accelerator to try. Repeatable. Default: the board's.",
    ),
]
Ios = Annotated[
    list[o.Io] | None, o.repeat("--io", "A type of inputs and outputs. Repeatable. Default: float and int8.", o.Io)
]
Layouts = Annotated[list[o.Layout] | None, o.repeat("--layout", "A layout. Repeatable. Default: both.", o.Layout)]
Precisions = Annotated[
    list[o.PrecisionName] | None,
    o.repeat(
        "--precision",
        "A precision. Repeatable. Default: int8, and others where flash is short or --calibration is given.",
        o.PrecisionName,
    ),
]
MemoryModes = Annotated[list[str] | None, o.repeat("--memory-mode", "A memory mode. Repeatable. Default: all.")]


@guarded
def fit_model(
    model: o.Model,
    target: Targets = None,
    board: Annotated[
        str | None,
        typer.Option("--board", metavar="NAME", help=f"{', '.join(list_profiles())}, or your FILE.toml."),
    ] = None,
    sram: Annotated[
        int | None, typer.Option(parser=parse_size, metavar="SIZE", show_default=False, help="SRAM to fit into: 512K.")
    ] = None,
    flash: Annotated[
        int | None, typer.Option(parser=parse_size, metavar="SIZE", show_default=False, help="Space for the .pte: 2M.")
    ] = None,
    dram: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="SIZE", show_default=False, help="DRAM for tensors; 0: none."),
    ] = None,
    calibration: o.Calibration = None,
    io: Ios = None,
    layout: Layouts = None,
    precision: Precisions = None,
    memory_mode: MemoryModes = None,
    system_config: o.SystemConfig = None,
    max_compiles: Annotated[
        int, typer.Option("--max-compiles", min=1, metavar="N", help="Largest number of compiles to try.")
    ] = 20,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not run the results on the simulator.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.pte", help="Write the best program, with its sidecar."),
    ] = None,
    allow_op: o.AllowOp = None,
    max_memory: MaxMemory = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="List all choices that were compiled.")] = False,
    quiet: o.NoProgress = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Find the programs of a model that fit into a board's memories, the fastest first.

    It tries memory modes, Vela's goals and arena sizes, layouts and types of inputs and outputs and, where it may
    help, precisions. The table lists the choices that no other choice beats in cycles, SRAM, flash and accuracy; each
    was run on the simulator and compared with TOSA and torch. Cycles are estimates. If nothing fits, the exit code is
    1, and the layers that need the most memory are listed.
    """
    from tosaic.api import model_file
    from tosaic.report.choices import Limits

    profile = None if board is None else find_profile(board)
    limits = Limits.of(profile, sram, flash, dram)
    if limits == Limits():
        raise Invalid(
            "no limits are given",
            fix="pass `--board NAME`, or the bytes that your application leaves: `--sram 256K`, `--flash 1M`",
        )
    names = target or (list(profile.accelerators) if profile is not None else ["ethos-u55-128"])
    targets = tuple(find(name).name for name in names)
    if output is not None:
        check_writable(output)
    o.check_calibration(calibration)
    checked = model_file.check(model, max_memory)
    with show_progress(quiet) as progress:
        from tosaic.api.fitting import Space, fit

        with redirect_prints():
            loaded = model_file.load_with_samples(model, checked=checked, allow_ops=allow_op or ())
            found = fit(
                loaded.model,
                loaded.inputs,
                Space(
                    targets,
                    ios=tuple(dict.fromkeys(one.value for one in io)) if io else ("float", "int8"),
                    layouts=tuple(dict.fromkeys(one.value for one in layout)) if layout else ("nchw", "nhwc"),
                    precisions=tuple(dict.fromkeys(one.value for one in precision or ())),
                    memory_modes=tuple(memory_mode or ()),
                    system_config=system_config or (profile.system_config if profile is not None else ""),
                ),
                limits,
                board=profile,
                calibration=loaded.calibration if calibration is None else calibration,
                name=model,
                max_compiles=max_compiles,
                verify=not no_verify,
                progress=progress,
                max_memory=max_memory,
            )
    if output is not None and found.best is not None:
        found.best.save(output)
    report = replace(
        found.report,
        notes=tuple(map(get_cli_form, found.report.notes)),
        given=o.repeat_words(calibration, allow_op),
    )
    if as_json:
        print_json(report.to_json())
    else:
        from tosaic.report.fit import show_fit
        from tosaic.report.terminal import Page

        show_fit(Page(), report, verbose=verbose)
    if not report.front or any(choice.verified is False for choice in report.front):
        raise typer.Exit(ExitStatus.CHECK_FAILED)
