"""`--config FILE.toml`: options of a command from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import typer

from tosaic.core import input_file
from tosaic.core.errors import Invalid

_MAX_BYTES = 1 << 20


def apply_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the options in a file as defaults of the command; option names are those of the command line."""
    if path is not None:
        context.default_map = {**(context.default_map or {}), **_read(context, path)}
    return path


def _read(context: typer.Context, path: Path) -> dict[str, Any]:
    import difflib

    parameters = {
        word.removeprefix("--"): parameter
        for parameter in context.command.params
        for word in parameter.opts
        if word.startswith("--") and parameter.name not in ("config", "help")
    }
    found: dict[str, Any] = {}
    for key, value in _parse(path).items():
        name = key.replace("_", "-")
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            fix = f"did you mean `{near[0]}`?" if near else "`--help` lists the options"
            raise Invalid(f"`{key}` in `{path}` is not an option of this command", fix=fix)
        found[parameters[name].name] = _check(key, value, parameters[name], path)
    return found


def _parse(path: Path) -> Mapping[str, Any]:
    import tomllib

    try:
        return tomllib.loads(bytes(input_file.read(path, _MAX_BYTES)[0]).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"`{path}` is not a TOML file", why=str(error)) from None


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _check(key: str, value: Any, parameter: Any, path: Path) -> Any:
    """Check the type of a value: a flag is true or false, and only a repeatable option takes a list."""
    values = value if _is_list(value) else [value]
    if parameter.is_flag:
        kind, fits = "true or false", isinstance(value, bool)
    elif parameter.multiple:
        kind, fits = "a text or a list of them", all(isinstance(one, str) for one in values)
        value = values
    else:
        kind, fits = "a text or a number", isinstance(value, str | int) and not isinstance(value, bool)
        value = str(value)
    if not fits:
        raise Invalid(f"`{key}` in `{path}` has the wrong type", fix=f"it takes {kind}")
    return value
