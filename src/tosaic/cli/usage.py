"""Errors about the command line itself, in the form of all other errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from tosaic.core.errors import Invalid

#: The base of what typer raises for options and arguments that it cannot use; it has no public name.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_CHOICE = re.compile(r"(?:Value error, )?'(?P<given>.*)' is not one of (?P<known>'.*')\.?")
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((?P<given>.*)\)")


def suggest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Suggest the known name that is most like another one."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f"did you mean `{near[0]}`?" if near else otherwise


def translate(error: Any, command: str, words: Sequence[str] = ()) -> Invalid | None:
    """Describe an error about a command's line, which has these words; None if it is a request for help."""
    context, message = error.ctx, str(error.message)
    if context is not None and message == context.get_help():
        return None
    command = command if context is None else context.command_path
    fix = f"`{command} -h` shows its options and examples"
    parameter = getattr(error, "param", None)
    if parameter is not None and not message:
        return Invalid(f"`{command}` needs {_name(parameter)}", fix=fix)
    if choice := _CHOICE.fullmatch(message):
        known = choice["known"].replace("'", "`")
        return Invalid(f"`{choice['given']}` is not a value of {_name(parameter)}", fix=f"use one of {known}")
    if extra := _EXTRA.fullmatch(message):
        return Invalid(f"`{command}` cannot use the argument `{extra['given']}`", fix=fix)
    if parameter is not None:
        return Invalid(f"cannot use the value of {_name(parameter)}", why=_clean(message), fix=fix)
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        option = _find_word(option, words)
        return Invalid(f"`{command}` has no option `{option}`", fix=suggest(option, _list_options(context), fix))
    return Invalid(_clean(message), fix=fix)


def _find_word(option: str, words: Sequence[str]) -> str:
    """Find the word in which an option of one letter is: `-calibration` is read as `-c` and others."""
    whole = (word.partition("=")[0] for word in words if len(word) > 2 and word.startswith("-") and word[1] != "-")
    return next((word for word in whole if option[1:] in word[1:]), option) if len(option) == 2 else option


def _list_options(context: Any) -> list[str]:
    return [option for parameter in context.command.params for option in parameter.opts if option.startswith("-")]


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"the argument {parameter.metavar}"
    return f"`{max(parameter.opts, key=len)}`"


def _clean(message: str) -> str:
    """Return a message of typer without its quotation marks, capital and full stop."""
    text = message.removeprefix("Value error, ").partition(", unable")[0].replace("'", "`").rstrip(".")
    text = text.replace("requires an argument", "needs a value")
    return text[:1].lower() + text[1:]
