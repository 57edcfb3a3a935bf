"""Locations in code, as file:line: the user's own before a package's before torch's."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

_PYTHON = sysconfig.get_paths()["stdlib"] + os.sep
_TOSAIC = str(Path(__file__).parents[1]) + os.sep
#: code of Python, torch.fx and Tosaic, which is never a location for the user
_NOT_USER_CODE = ("<frozen", "<string>", "<eval_with_key>", _PYTHON, _TOSAIC)
_USER, _PACKAGE, _TORCH = 3, 2, 1


def find_innermost(frames: Iterable[tuple[str, int | str | None]], least: int = _TORCH) -> str:
    """Return file:line of the last frame of the nearest owner, "" if there is none; frames are outermost first."""
    places = [(_find_owner(file), f"{file}:{line}") for file, line in frames]
    best = max((owner for owner, _ in places), default=0)
    return next(place for owner, place in reversed(places) if owner == best) if best >= least else ""


def find_line(error: BaseException) -> str:
    """Return file:line of the user's code that led to an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return describe_place(f"{error.filename}:{error.lineno}", "", "")
    frames = traceback.extract_tb(error.__traceback__)
    line = find_innermost(((frame.filename, frame.lineno) for frame in frames), least=_PACKAGE)
    return describe_place(line, "", "")


def describe_place(where: str, module: str, layer: str) -> str:
    """Describe a location: relative to the working folder, and with the layer if the line is torch's."""
    short = where.removeprefix(f"{Path.cwd()}{os.sep}").rpartition("/site-packages/")[2]
    named = f"{'.'.join(filter(None, ('model', module)))} ({layer}) at "
    return named + short if layer and _find_owner(where) == _TORCH else short


def _find_owner(file: str) -> int:
    place = file.replace("\\", "/")
    if file.startswith(f"{_TOSAIC}zoo"):
        return _PACKAGE
    if any(f"/site-packages/{name}/" in place for name in ("torch", "torchao", "executorch")):
        return _TORCH
    if file.startswith(_TOSAIC):
        return 0
    if "/site-packages/" in place:
        return _PACKAGE
    return 0 if file.startswith(_NOT_USER_CODE) else _USER
