"""`tosaic doctor`: is everything there, and does it work?"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from tosaic import doctor
from tosaic.cli.guard import Debug, Json, guarded, print_json
from tosaic.cli.progress import Progress
from tosaic.cli.quiet import import_torch
from tosaic.core.errors import ExitStatus, Invalid

SCHEMA = "tosaic-doctor/1"
_TITLES = {
    "ethos-u": "for an Ethos-U",
    "vgf": "for VGF",
    "board": "for a board",
    "tests": "for the tests",
    "tosa": "for TOSA",
}


class Fixable(StrEnum):
    """What can be installed."""

    VGF = doctor.VGF
    BOARD = doctor.BOARD
    TESTS = doctor.TESTS


@guarded
def show_health(
    fix: Annotated[
        Fixable | None,
        typer.Option(
            help="Install what VGF, a board or Tosaic's tests need: Python packages with pip, and for VGF Debian's "
            "Vulkan driver with apt (without root: into the cache folder). Shows the commands and asks first.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before installing (with --fix).")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check the installation by compiling a tiny model for each target.

    The exit code is 0 if compiling for an Ethos-U works, or with --fix if a .vgf file runs on this machine,
    the virtual board boots, or the tests have their packages.
    """
    if fix is not None and _confirm(doctor.plan(fix), yes):
        doctor.install(fix, lambda text: typer.echo(text, err=True))
    # In a pipe the line that is overwritten would stay.
    progress = Progress(quiet=not sys.stderr.isatty())
    helpers = doctor.Helpers(import_torch, lambda name: progress(f"checking: {name}"))
    checks = _show(doctor.examine(helpers) if fix is None else doctor.examine_fix(fix, helpers), progress, as_json)
    working = doctor.list_working(checks)
    works = working["ethos-u" if fix is None else fix]
    if as_json:
        plain = {"schema": SCHEMA, "ok": works, "targets": working, "checks": [asdict(check) for check in checks]}
        print_json(plain)
    raise typer.Exit(ExitStatus.DONE if works else ExitStatus.TOOL_FAILED)


def has_terminal() -> bool:
    """Tell whether a user can answer a question."""
    return sys.stdin.isatty()


def _confirm(commands: list[str], yes: bool) -> bool:
    """Show the commands that would be run, and ask unless the user has already agreed."""
    if not commands:
        return True
    typer.echo("these commands will be run:", err=True)
    for command in commands:
        typer.echo(f"  {command}", err=True)
    if yes:
        return True
    if not has_terminal():
        raise Invalid(
            "nothing was installed: there is no terminal to ask for confirmation",
            fix="add `--yes` to install without asking, or run the commands yourself",
        )
    if typer.confirm("run them?", err=True):
        return True
    typer.echo("nothing was installed", err=True)
    return False


def _show(examination: Iterable[doctor.Check], progress: Progress, as_json: bool) -> list[doctor.Check]:
    """Return all checks; print each at once, because the next one may take seconds."""
    checks: list[doctor.Check] = []
    for check in examination:
        progress.clear()
        if not as_json:
            if check.target and (not checks or checks[-1].target != check.target):
                typer.echo(_TITLES[check.target])
            _print(check)
        checks.append(check)
    return checks


def _print(check: doctor.Check) -> None:
    mark = "ok" if check.ok else "missing" if check.needed else "optional"
    typer.echo(f"{mark:<9} {check.name:<33} {check.found}")
    if not check.ok:
        typer.echo(f"{'':<9} {'':<33} fix: {check.fix}")
