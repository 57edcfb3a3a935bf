"""Hints for a user, in the words of the Python API and in those of the command line."""

from __future__ import annotations


class Hint(str):
    """A hint with two forms: the string itself is for users of the Python API, `cli` for those of the command.

    It is a string, so that callers who do not need the command's form can treat it as one. A text formatted from a
    hint has one form only: `prepend` keeps both.
    """

    __slots__ = ("cli",)

    cli: str

    def __new__(cls, api: str, cli: str) -> Hint:
        hint = super().__new__(cls, api)
        hint.cli = cli
        return hint

    def __reduce__(self) -> tuple[type[Hint], tuple[str, str]]:
        """Keep both forms in copies and pickles."""
        return Hint, (str(self), self.cli)


def prepend(text: str, hint: str) -> str:
    """Return a hint with text before it, in both forms where it has two."""
    return Hint(text + hint, text + hint.cli) if isinstance(hint, Hint) else text + hint


def get_cli_form(hint: str) -> str:
    """Return a hint in the words of the command line."""
    return hint.cli if isinstance(hint, Hint) else hint
