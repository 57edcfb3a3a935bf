"""`tosaic doctor`: is everything there, and does it work?"""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from tosaic import doctor
from tosaic.cli.guard import FAILED, Debug, Json, guarded
from tosaic.cli.quiet import import_torch

SCHEMA = "tosaic-doctor/1"


@guarded
def show_health(as_json: Json = False, debug: Debug = False) -> None:
    """Check versions and tools, and compile a model of one operator. Takes some seconds.

    Ends with exit code 0 if compiling for an Ethos-U works.
    """
    checks: list[doctor.Check] = []
    for check in doctor.examine(import_torch):
        checks.append(check)
        if not as_json:
            _print(check)
    works = all(check.ok for check in checks if check.name == doctor.DECISIVE)
    if as_json:
        typer.echo(json.dumps({"schema": SCHEMA, "ok": works, "checks": [asdict(check) for check in checks]}, indent=2))
    raise typer.Exit(0 if works else FAILED)


def _print(check: doctor.Check) -> None:
    """One line at once, because the next check may take seconds."""
    mark = "ok" if check.ok else "missing" if check.needed else "optional"
    typer.echo(f"{mark:<9} {check.name:<21} {check.found}")
    if not check.ok:
        typer.echo(f"{'':<9} {'':<21} fix: {check.fix}")
