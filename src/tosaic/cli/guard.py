"""Error handling of every command: typed errors become a message and an exit code, and a traceback only on request."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec

import typer

from tosaic.cli.colors import say
from tosaic.core.errors import ExitStatus, ToolFailed, TosaicError

Parameters = ParamSpec("Parameters")

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback and the tool's log on failure.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


def print_json(plain: Any, *, allow_nan: bool = False) -> None:
    """Print a report as JSON, which is then all of stdout. Values that a program has computed may be NaN."""
    # For `--help` its import would be a good part of the time.
    import json

    typer.echo(json.dumps(plain, indent=2, allow_nan=allow_nan))


def guarded(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Wrap a command so that its errors are reported on stderr; it must take a `debug` flag."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (typer.Exit, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(ExitStatus.INTERRUPTED) from None
        except Exception as error:
            if kwargs.get("debug"):
                _print_details(error)
            say(explain(error), err=True)
            raise typer.Exit(exit_code(error)) from None

    return run


def explain(error: Exception) -> str:
    """Describe an error for a user."""
    if isinstance(error, TosaicError):
        return f"error: {error.to_cli_text()}"
    if isinstance(error, OSError) and error.errno is not None:
        # A full disk names no file.
        place = f"`{error.filename}`: " if error.filename is not None else ""
        return f"error: {place}{error.strerror}"
    first = next(iter(str(error).strip().splitlines()), "")
    return f"error: {type(error).__name__}: {first}\n  fix: this is a bug in Tosaic; `--debug` shows the traceback"


def exit_code(error: Exception) -> ExitStatus:
    """Return the exit code of an error: bad input, or anything else that stopped the work."""
    if isinstance(error, TosaicError):
        return error.exit_code
    is_file_error = isinstance(error, OSError) and error.errno is not None
    return ExitStatus.BAD_INPUT if is_file_error else ExitStatus.TOOL_FAILED


def _print_details(error: Exception) -> None:
    traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, ToolFailed) and error.log:
        typer.echo(f"log of the tool:\n{error.log}", err=True)
