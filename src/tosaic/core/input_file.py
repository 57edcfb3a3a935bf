"""Reads a file that a user names, once and within bounds: what is checked is also what is used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid

_PIECE = 1 << 20


def read(path: Path, max_memory: int | None = None) -> tuple[bytearray, Budget]:
    """The bytes of a file or a pipe, and what is left of the memory that it may take."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
                raise Invalid(f"`{path}` cannot be read", why="it is neither a file nor a pipe")
            budget = Budget(status.st_size, max_memory)
            budget.take(status.st_size, f"`{path}`")
            data = bytearray(status.st_size)
            filled = file.readinto(data)
            del data[filled:]
            # A pipe says no size, and a file may grow.
            while piece := file.read(_PIECE):
                budget.take(len(piece), f"`{path}`")
                data += piece
            return data, budget
    except OSError as error:
        raise Invalid(f"`{path}` cannot be read", why=error.strerror or str(error)) from None
