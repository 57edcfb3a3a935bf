"""`tosaic sweep`: many models, targets and options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tosaic.cli import options as o
from tosaic.cli.guard import Debug, Json, guarded, print_json
from tosaic.cli.progress import show_progress
from tosaic.core.errors import ExitStatus, Invalid
from tosaic.core.targets import ACCELERATORS, find


@guarded
def sweep_models(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="Built-in models, .py files or .pt2 files.", show_default=False),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the results.", show_default=False)
    ],
    target: Annotated[
        list[str] | None,
        typer.Option("-t", "--target", metavar="NAME", show_default=False, help="A target. Repeatable."),
    ] = None,
    all_targets: Annotated[bool, typer.Option("--all-targets", help="Compile for all eleven accelerators.")] = False,
    io: Annotated[
        list[o.Io] | None, o.repeat("--io", "A type of inputs and outputs. Repeatable. Default: float.", o.Io)
    ] = None,
    layout: Annotated[
        list[o.Layout] | None, o.repeat("--layout", "A layout. Repeatable. Default: nchw.", o.Layout)
    ] = None,
    precision: Annotated[
        list[o.PrecisionName] | None,
        o.repeat("--precision", "A precision. Repeatable. Default: int8.", o.PrecisionName),
    ] = None,
    memory_mode: Annotated[
        list[str] | None, o.repeat("--memory-mode", "A memory mode. Repeatable. Default: the target's.")
    ] = None,
    optimize: Annotated[
        list[o.Goal] | None, o.repeat("--optimize", "A goal of Vela. Repeatable. Default: performance.", o.Goal)
    ] = None,
    calibration: o.Calibration = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every program with TOSA and with torch.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Write the .pte and .tosaic files too.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            "-j",
            "--processes",
            min=1,
            metavar="N",
            show_default=False,
            help="Number of worker processes. Default: one per core.",
        ),
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="ADDRESS", help="A Dask scheduler to run on: tcp://host:8786.")
    ] = "",
    retry: Annotated[bool, typer.Option("--retry", help="Run failed jobs again.")] = False,
    quiet: o.NoProgress = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compile each model for each target with each combination of options, on all cores of this machine.

    MODEL is the same as for `tosaic compile`; a .py file is run. Each finished program adds a line to
    DIR/results.jsonl, and DIR/table.html is written at the end. Running the same command again compiles only what is
    missing. The exit code is 1 if a job or a check of --verify failed.
    With --cluster, the workers read the models and the calibration data, so they need the same paths.
    """
    names = [*(target or ()), *(ACCELERATORS if all_targets else ())]
    if not names:
        raise Invalid(
            "there is no target to compile for", fix="pass -t NAME, several times if you like, or --all-targets"
        )
    targets = [find(name) for name in names]
    for one in targets:
        if not one.is_npu:
            raise Invalid(f"`{one.name}` cannot be part of a sweep", fix="use the accelerators of `tosaic targets`")
    if processes is not None and cluster:
        raise Invalid("`--processes` and `--cluster` exclude each other", fix="leave one of them out")
    o.check_calibration(calibration)
    with show_progress(quiet) as progress:
        from tosaic.api.sweeping import plan_jobs, sweep

        jobs = plan_jobs(
            models,
            {
                "target": [one.name for one in targets],
                "memory_mode": memory_mode or [""],
                "optimize": [
                    "" if goal is o.Goal.PERFORMANCE else goal.value for goal in optimize or [o.Goal.PERFORMANCE]
                ],
                "io": [one.value for one in io or [o.Io.FLOAT]],
                "layout": [one.value for one in layout or [o.Layout.NCHW]],
                "precision": [one.value for one in precision or [o.PrecisionName.INT8]],
            },
            calibration=calibration,
            verify=verify,
        )
        cores = len(os.sched_getaffinity(0))
        found = sweep(
            jobs, output, processes=processes or cores, cluster=cluster, keep=keep, retry=retry, progress=progress
        )
    if as_json:
        print_json([result.to_json() for result in found.results])
    else:
        from tosaic.report.sweep import show_sweep
        from tosaic.report.terminal import Page

        show_sweep(Page(), found.results, found.known, str(output))
    if not found.ok:
        raise typer.Exit(ExitStatus.CHECK_FAILED)
