"""Progress on stderr: what is being done, and for how long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import typer

from tosaic.cli.quiet import import_torch
from tosaic.core.heap import import_for_good

_WIDTH = 40


class Progress:
    """One line per stage: its name when it begins, its seconds when it ends. A text `stage: detail` is part of a stage.

    On a terminal the line shows the detail and counts the seconds.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._stage, self._detail, self._start = "", "", 0.0
        self._live = sys.stderr.isatty()
        self._ended = threading.Event()
        self._clock: threading.Thread | None = None

    def __call__(self, text: str) -> None:
        if self._quiet:
            return
        stage, _, detail = text.partition(": ")
        self._detail = detail
        if stage == self._stage:
            return
        self.finish()
        self._stage, self._start = stage, time.perf_counter()
        if self._live:
            self._ended = threading.Event()
            self._clock = threading.Thread(target=self._tick, args=(self._ended,), daemon=True)
            self._clock.start()
        else:
            typer.echo(f"{stage:<9} ", err=True, nl=False)

    def finish(self) -> None:
        """End the line of the stage that is running."""
        if not self._stage:
            return
        if self._stop_clock():
            typer.echo(f"\r{self._stage:<9} {self._seconds()}{'':<{_WIDTH}}", err=True)
        else:
            typer.echo(self._seconds(), err=True)
        self._stage = ""

    def clear(self) -> None:
        """Remove the line of the stage that is running from a terminal."""
        if self._stage and self._stop_clock():
            typer.echo(f"\r{'':<{_WIDTH + 20}}\r", err=True, nl=False)
        self._stage = ""

    def _stop_clock(self) -> bool:
        """Stop to count the seconds; return whether they were counted."""
        if self._clock is None:
            return False
        self._ended.set()
        self._clock.join()
        self._clock = None
        return True

    def _seconds(self) -> str:
        return f"{time.perf_counter() - self._start:6.1f} s"

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(0.25):
            typer.echo(f"\r{self._stage:<9} {self._seconds()}  {self._detail:<{_WIDTH - 2}}", err=True, nl=False)


@contextmanager
def show_progress(quiet: bool) -> Generator[Progress]:
    """Show the progress of a command that compiles; its first stage imports torch."""
    progress = Progress(quiet=quiet)
    try:
        progress("load: importing PyTorch")
        import_torch()
        with import_for_good():
            from tosaic.api import build as _  # noqa: F401  with all that it imports
        yield progress
    finally:
        progress.finish()
