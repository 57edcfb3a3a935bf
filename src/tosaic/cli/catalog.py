"""`tosaic ops` and `tosaic targets`: what can be compiled, and what for."""

from __future__ import annotations

from typing import Annotated

import typer

from tosaic.cli.guard import Debug, Json, guarded


@guarded
def show_ops(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET|OPERATOR",
            help="Show only the constraints of this target, or only this operator: `conv2d`, `aten.add.Tensor`,"
            " `torch.nn.functional.gelu` ...",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the operators that can run on the NPU and their constraints, or show one of them."""
    # The operators need numpy, which `--help` should not wait for.
    from tosaic.cli.listing import list_ops

    list_ops(name, as_json)


@guarded
def show_targets(as_json: Json = False, debug: Debug = False) -> None:
    """List the targets with their defaults, memory modes and system configurations."""
    from tosaic.cli.listing import list_targets

    list_targets(as_json)
