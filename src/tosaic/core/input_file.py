"""Reads a file that a user names, once and within bounds: the bytes that are checked are also those that are used."""

from __future__ import annotations

import difflib
import os
import stat
from pathlib import Path

from tosaic.core.budget import Budget
from tosaic.core.errors import Invalid

_PIECE = 1 << 20


def read(path: Path, max_memory: int | None = None) -> tuple[bytearray, Budget]:
    """Read the bytes of a file or a pipe; also return the rest of its budget."""
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
            # A pipe has no size, and a file may grow.
            while piece := file.read(_PIECE):
                budget.take(len(piece), f"`{path}`")
                data += piece
            return data, budget
    except FileNotFoundError:
        near = find_near(path)
        fix = "check the path" if near is None else f"did you mean `{near}`?"
        raise Invalid(f"there is no file `{path}`", fix=fix) from None
    except IsADirectoryError:
        raise Invalid(f"`{path}` cannot be read", why="it is a folder", fix="pass a file in it") from None
    except OSError as error:
        raise Invalid(f"`{path}` cannot be read", why=error.strerror or str(error)) from None


def find_near(path: Path) -> Path | None:
    """Find the file of the folder whose name is most like that of a missing one."""
    try:
        names = [one.name for one in path.parent.iterdir()]
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)
    return path.with_name(near[0]) if near else None
